"""What is held is seen, and what is given back is no longer."""

import json
import subprocess
import sys

PROGRAM = """
import json
from components.telemetry.memory import resident_bytes

found = [resident_bytes()]
held = bytearray(b"1") * (64 * 2**20)
found.append(resident_bytes())
del held
print(json.dumps([*found, resident_bytes()]))
"""


def test_resident_memory_grows_with_what_is_held_and_shrinks_after_it():
    # A process of its own: here, threads of other tests may give back what they held.
    said = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True).stdout
    before, holding, after = json.loads(said)
    assert 60 * 2**20 < holding - before < 80 * 2**20
    assert after < before + 16 * 2**20
