"""In one process a program is its function; what two hosts do together is in `tests/training/test_two_hosts.py`."""

import io

import jax
import jax.numpy as jnp
import numpy as np

from components.model.lockstep import Program, _Reader, _Writer, made, on_host, program


def double(x: jax.Array) -> jax.Array:
    """Twice x."""
    return 2 * x


def test_in_one_process_a_program_is_the_function_that_it_was_made_of():
    doubled = program(double)
    np.testing.assert_array_equal(doubled(jnp.arange(3)), [0, 2, 4])
    assert doubled.__doc__ == "Twice x."
    assert isinstance(doubled, Program)
    assert doubled.name == f"{__name__}:double"
    assert made(double).name is None


def test_a_jitted_program_is_known_by_the_function_inside():
    assert program(jax.jit(double)).name == f"{__name__}:double"


def test_what_other_hosts_hold_is_named_and_a_device_is_found_again():
    array, device = jnp.arange(3), jax.devices()[0]

    known = {id(array): (7, lambda: array)}
    message = io.BytesIO()
    _Writer(message, known).dump((array, device, "text"))
    assert b"arange" not in message.getvalue()
    held = jnp.ones(3)
    found = _Reader(io.BytesIO(message.getvalue()), {7: held}).load()
    assert found[0] is held
    assert found[1:] == (device, "text")


def test_arrays_of_this_process_stay_as_they_are():
    tree = {"weight": jnp.ones(2)}
    assert on_host(tree) is tree
