import jax
import jax.numpy as jnp
import pytest

from components.errors import ConfigError
from components.telemetry.spans import clear, span, spans
from components.training.profiling import Profiler, StepRange


def test_a_range_is_first_to_last():
    assert StepRange.parse("10:12", "--steps") == StepRange(10, 12)


@pytest.mark.parametrize("text", ["10", "12:10", "0:3", "a:b", ":3", "-1:2"])
def test_what_is_no_range_is_refused_with_how_to_write_one(text):
    with pytest.raises(ConfigError, match="FIRST:LAST"):
        StepRange.parse(text, "--steps")


def test_the_timeline_holds_the_steps_and_the_spans_by_their_names(tmp_path):
    clear()
    profiler = Profiler(str(tmp_path), StepRange(2, 2))
    for step in (1, 2, 3):
        profiler.before(step)
        with span("microbatch", step=step):
            jax.block_until_ready(jax.jit(lambda x: x @ x)(jnp.ones((64, 64))))
        profiler.after(step)
    (file,) = tmp_path.rglob("*.xplane.pb")
    assert b"microbatch" in file.read_bytes()
    # Profiled or not, a span is a span.
    assert [each.attributes["step"] for each in spans() if each.name == "microbatch"] == [1, 2, 3]


def test_a_run_that_is_never_profiled_has_no_folder_for_it(tmp_path):
    profiler = Profiler(str(tmp_path), None)
    profiler.before(1)
    profiler.after(1)
    profiler.close()
    assert list(tmp_path.iterdir()) == []
