"""A function -> the same function whose backward pass computes its insides again instead of keeping them.

`jax.checkpoint` alone does nothing of the kind on a CPU: nothing there keeps the compiler from doing the second
computation early, or from finding that it equals the first. Here it is the branch of a condition on the incoming
gradient, so that it cannot start before the gradient is there, and nothing of it outlives the branch.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array


def rematerialise(function: Callable[..., Array]) -> Callable[..., Array]:
    """`function`, whose result is one array of floats, keeping only its arguments for the backward pass.

    Everything that is traced must be an argument (any pytrees), not a closure. Only what is differentiated gets a
    gradient computed.
    """
    return functools.partial(_rematerialised, function)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _rematerialised(function: Callable[..., Array], *arguments: Any) -> Array:
    return function(*arguments)


def _forward(function: Callable[..., Array], *arguments: Any) -> tuple[Array, Callable[[Any], Any]]:
    leaves, tree = jax.tree.flatten(arguments, is_leaf=lambda leaf: isinstance(leaf, _PRIMAL))
    wanted = tuple(leaf.perturbed for leaf in leaves)
    values = [leaf.value for leaf in leaves]
    pull_back = functools.partial(_pull_back, function, tree, wanted)
    return function(*jax.tree.unflatten(tree, values)), jax.tree_util.Partial(pull_back, values)


def _backward(function: Callable[..., Array], saved: Callable[[Any], Any], cotangent: Any) -> Any:
    return saved(cotangent)


def _pull_back(
    function: Callable[..., Array], tree: Any, wanted: tuple[bool, ...], values: list[Array], cotangent: Any
) -> Any:
    if isinstance(cotangent, SymbolicZero):
        return jax.tree.unflatten(tree, [None] * len(values))
    chosen = [value for value, want in zip(values, wanted, strict=True) if want]

    def partly(*chosen: Array) -> Array:
        rest = iter(chosen)
        leaves = [next(rest) if want else value for value, want in zip(values, wanted, strict=True)]
        return function(*jax.tree.unflatten(tree, leaves))

    def again(cotangent: Array) -> tuple[Array, ...]:
        return jax.vjp(partly, *chosen)[1](cotangent)

    def spoiled(cotangent: Array) -> tuple[Array, ...]:
        return tuple(jnp.full_like(value, jnp.nan) for value in chosen)

    probe = cotangent.ravel()[0]
    gradients = iter(jax.lax.cond(probe == probe, again, spoiled, cotangent))
    return jax.tree.unflatten(tree, [next(gradients) if want else None for want in wanted])


_PRIMAL = jax.custom_derivatives.CustomVJPPrimal
_rematerialised.defvjp(_forward, _backward, symbolic_zeros=True)
