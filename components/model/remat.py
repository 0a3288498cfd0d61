"""A function -> the same function whose backward pass computes its insides again instead of keeping them.

`jax.checkpoint` alone does nothing of the kind on a CPU: nothing there keeps the compiler from doing the second
computation early, or from finding that it equals the first. Here it is the branch of a condition on the incoming
gradient, so that it cannot start before the gradient is there, and nothing of it outlives the branch.

How much is computed again is a setting: `full` keeps a function's arguments alone; `linear_outputs` also keeps what
`kept` names inside it, the outputs of linear layers, so that no large product is made twice; `none` keeps everything.
"""

import functools
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array

Remat = Literal["full", "linear_outputs", "none"]

_KEPT = "kept"
KEEP_NAMED = jax.checkpoint_policies.save_only_these_names(_KEPT)
"""For `jax.checkpoint`: keep what `kept` names."""


def kept(array: Array) -> Array:
    """The array, as one that `linear_outputs` keeps."""
    return checkpoint_name(array, _KEPT)


def rematerialise(function: Callable[..., Array], *, keep_named: bool = False) -> Callable[..., Array]:
    """`function`, whose result is one array of floats, keeping only its arguments for the backward pass.

    With `keep_named` it keeps what `kept` names, too. Everything that is traced must be an argument (any pytrees), not
    a closure. Only what is differentiated gets a gradient computed.
    """
    return functools.partial(_rematerialised, function, keep_named)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _rematerialised(function: Callable[..., Array], keep_named: bool, *arguments: Any) -> Array:
    return function(*arguments)


def _forward(
    function: Callable[..., Array], keep_named: bool, *arguments: Any
) -> tuple[Array, tuple[Callable[[Any], Any], Callable[[Any], Any] | None]]:
    leaves, tree = jax.tree.flatten(arguments, is_leaf=lambda leaf: isinstance(leaf, _PRIMAL))
    wanted = tuple(leaf.perturbed for leaf in leaves)
    values = [leaf.value for leaf in leaves]
    pull_back = jax.tree_util.Partial(functools.partial(_pull_back, function, tree, wanted), values)
    if not keep_named:
        return function(*jax.tree.unflatten(tree, values)), (pull_back, None)
    partly, chosen = _partly(function, tree, wanted, values)
    result, continued = jax.vjp(jax.checkpoint(partly, policy=KEEP_NAMED), *chosen)
    return result, (pull_back, continued)


def _backward(function: Callable[..., Array], keep_named: bool, saved: Any, cotangent: Any) -> Any:
    pull_back, continued = saved
    return pull_back(continued, cotangent)


def _partly(
    function: Callable[..., Array], tree: Any, wanted: tuple[bool, ...], values: list[Array]
) -> tuple[Callable[..., Array], list[Array]]:
    """The function of those arguments alone whose gradient is wanted, and these."""

    def partly(*chosen: Array) -> Array:
        rest = iter(chosen)
        leaves = [next(rest) if want else value for value, want in zip(values, wanted, strict=True)]
        return function(*jax.tree.unflatten(tree, leaves))

    return partly, [value for value, want in zip(values, wanted, strict=True) if want]


def _pull_back(
    function: Callable[..., Array],
    tree: Any,
    wanted: tuple[bool, ...],
    values: list[Array],
    continued: Callable[[Any], Any] | None,
    cotangent: Any,
) -> Any:
    if isinstance(cotangent, SymbolicZero):
        return jax.tree.unflatten(tree, [None] * len(values))
    partly, chosen = _partly(function, tree, wanted, values)

    def again(cotangent: Array) -> tuple[Array, ...]:
        pull = jax.vjp(partly, *chosen)[1] if continued is None else continued
        return tuple(pull(cotangent))

    def spoiled(cotangent: Array) -> tuple[Array, ...]:
        return tuple(jnp.full_like(value, jnp.nan) for value in chosen)

    probe = cotangent.ravel()[0]
    gradients = iter(jax.lax.cond(probe == probe, again, spoiled, cotangent))
    return jax.tree.unflatten(tree, [next(gradients) if want else None for want in wanted])


_PRIMAL = jax.custom_derivatives.CustomVJPPrimal
_rematerialised.defvjp(_forward, _backward, symbolic_zeros=True)
