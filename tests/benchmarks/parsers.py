"""Parsers of tool calls under fuzzed outputs: exceptions, and the longest time for a megabyte.

    python -m tests.benchmarks.parsers --json [--quick]

Every format reads every output. Times are of the processor, the best of three, as others may use the machine.
"""

import argparse
import json
import sys
import time
from collections import Counter
from typing import Any

from components.environments.calculator import CALCULATOR
from components.environments.tools import tool
from components.rollout.thinking import split_thinking
from components.rollout.tool_calls import HERMES, HERMES_OR_BARE, LLAMA_JSON, QWEN_XML, CallFormat, TaggedCalls
from tests.rollout.outputs_of_models import fuzzed_outputs, megabytes


def edit(old: str, count: int = 1) -> str:
    """Edit a text."""
    return old * count


TOOLS = {"all": (tool(edit), CALCULATOR), "one": (CALCULATOR,)}
FORMATS: dict[str, CallFormat] = {
    "hermes": HERMES,
    "hermes_or_bare": HERMES_OR_BARE,
    "qwen_xml": QWEN_XML,
    "llama_json": LLAMA_JSON,
    "plain": TaggedCalls("<tool>", "</tool>"),
    "compact": TaggedCalls("[", "]"),
}


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    print(json.dumps(measure(5_000 if options.quick else 100_000)))


def measure(count: int) -> dict[str, Any]:
    """The figures of FIGURES.md, and what came of the outputs; the slowest text of each format on standard error."""
    exceptions, calls, malformed = 0, 0, Counter[str]()
    for text in fuzzed_outputs(count):
        for name in FORMATS:
            try:
                found = read(name, text)
            except Exception as error:  # What is measured is that there is none.
                exceptions += 1
                print(f"{name}: {type(error).__name__}: {error} for {text[:200]!r}", file=sys.stderr)
                continue
            calls += len(found.calls)
            malformed.update(call.kind for call in found.malformed)
    slowest = {name: max((_milliseconds(name, text), label) for label, text in megabytes().items()) for name in FORMATS}
    for name, (milliseconds, label) in slowest.items():
        print(f"{name}: {milliseconds:.1f} ms per megabyte ({label})", file=sys.stderr)
    return {
        "fuzzed_outputs": count,
        "exceptions": exceptions,
        "worst_milliseconds_per_megabyte": round(max(slowest.values())[0], 1),
        "formats": len(FORMATS),
        "calls": calls,
        "malformed": dict(sorted(malformed.items())),
    }


def read(name: str, text: str) -> Any:
    """What a renderer of that format does with a text."""
    form = FORMATS[name]
    if isinstance(form, TaggedCalls):
        return form.parse(text.split("\n", 1)[0].strip(), TOOLS["one"])
    return form.parse(split_thinking(text, form.opens)[1], TOOLS["all"])


def _milliseconds(name: str, text: str) -> float:
    best = float("inf")
    for _ in range(3):
        started = time.thread_time()
        read(name, text)
        best = min(best, time.thread_time() - started)
    return 1000 * best / (len(text) / 1e6)


if __name__ == "__main__":
    main()
