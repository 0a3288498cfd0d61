"""One of two processes that share a mesh of eight devices: `test_two_hosts.py` starts both.

    python -m tests.training.one_of_two_hosts COORDINATOR PROCESS ARGUMENTS

The first trains as a user's process would, the second follows.
"""

import json
import sys

import jax

from components.model.lockstep import follow, lead


def main(coordinator: str, process: str, arguments: str) -> None:
    jax.config.update("jax_num_cpu_devices", 4)
    # Collectives of two programs at once would find the wrong partner on a CPU.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    jax.distributed.initialize(coordinator, num_processes=2, process_id=int(process))
    if jax.process_index():
        follow()
        return
    from components.training.run import train

    with lead():
        train(**json.loads(arguments))


if __name__ == "__main__":
    main(*sys.argv[1:])
