"""A frozen weight matrix -> the same in 8 or 4 bits, and back when it is multiplied.

`int8`: one float32 scale per output channel. `nf4`: the sixteen levels of arXiv:2305.14314 (normal quantiles), one
float32 scale per block of 64 inputs of an output channel; `nf4_double` keeps those scales in 8 bits themselves. The
embedding and the head are int8 with one scale per token in every kind: they are looked up by rows, and 4 bits of a
small model's embedding cost more than they save.

A quantised matrix is a pytree of arrays, so a base of them is trained on, sampled from, placed and shared like any
other. It has no gradient. Nothing but `dense` knows how it is stored.
"""

import dataclasses
import functools
import itertools
import math
from typing import Any, Literal, TypeVar, no_type_check

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, Int8, UInt8

from components.errors import WeightsError

Kind = Literal["none", "int8", "nf4", "nf4_double"]
T = TypeVar("T")

BLOCK = 64
_LEVELS = (
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
)
_MIDDLES = tuple((low + high) / 2 for low, high in itertools.pairwise(_LEVELS))


_LINEAR = ("weight", "gate_up", "down")
"""What the arrays that are `[..., inputs, outputs]` are called in a base."""
_TABLES = ("embedding", "head", "table")
"""What those are called that have a row for every token."""


@no_type_check  # its leaves may stand for arrays: shapes, shardings, nothing
@struct.dataclass
class Int8Matrix:
    """`codes * scales`, multiplied in `dtype`. The scales have length 1 along the axis that shares one."""

    codes: Int8[Array, "*leading rows columns"]
    scales: Float[Array, "*leading _ _"]
    dtype: DTypeLike = struct.field(pytree_node=False)


@no_type_check  # its leaves may stand for arrays: shapes, shardings, nothing
@struct.dataclass
class Nf4Matrix:
    """Levels times scales, multiplied in `dtype`. A byte holds two codes that lie half a block of inputs apart."""

    codes: UInt8[Array, "*leading blocks half_block outputs"]
    scales: Float[Array, "*leading blocks 1 outputs"] | Int8Matrix
    dtype: DTypeLike = struct.field(pytree_node=False)


Matrix = Float[Array, "... _ _"] | Int8Matrix | Nf4Matrix
"""What stands for `[rows, columns]`, or for several of them behind each other."""


def store(field: str, array: Array, kind: Kind, dtype: DTypeLike) -> Array | Int8Matrix | Nf4Matrix:
    """An array of a base as `kind` stores it, to be multiplied in `dtype`; `field` is its path, as in `q_proj.weight`.

    Norms, biases and the router of a mixture, which are small and decide much, come back as they are.
    """
    name = field.rpartition(".")[2]
    if kind == "none" or name not in (*_LINEAR, *_TABLES):
        return array
    if kind == "int8" or name in _TABLES:
        return to_int8(array, -1 if name in _TABLES else -2, dtype)
    return to_nf4(array, dtype, double=kind == "nf4_double")


def is_table(field: str) -> bool:
    """Whether the array at this path has a row for every token, each row stored by itself whatever the kind."""
    return field.rpartition(".")[2] in _TABLES


def quantise_tree(tree: T, kind: Kind, dtype: DTypeLike) -> T:
    """The same tree with `store` applied to every array."""

    def at(path: tuple[Any, ...], array: Array) -> Array | Int8Matrix | Nf4Matrix:
        return store(jax.tree_util.keystr(path, simple=True, separator="."), array, kind, dtype)

    return jax.tree.map_with_path(at, tree)


@functools.partial(jax.jit, static_argnums=(1, 2))
def to_int8(matrix: Float[Array, "*leading rows columns"], axis: int, dtype: DTypeLike) -> Int8Matrix:
    """The nearest multiples, up to 127, of the largest magnitude along `axis` divided by 127."""
    largest = jnp.max(jnp.abs(matrix), axis=axis, keepdims=True).astype(jnp.float32)
    scales = largest / 127
    codes = jnp.round(matrix / jnp.where(scales == 0, 1, scales))
    return Int8Matrix(codes=codes.astype(jnp.int8), scales=scales, dtype=jnp.dtype(dtype))


@functools.partial(jax.jit, static_argnames=("dtype", "double"))
def to_nf4(weight: Float[Array, "*leading inputs outputs"], dtype: DTypeLike, *, double: bool = False) -> Nf4Matrix:
    """The nearest levels of each block, divided by its largest magnitude, which is its scale.

    Raises WeightsError for an odd number of inputs, as a byte holds two.
    """
    *leading, inputs, outputs = weight.shape
    size = block_size(inputs)
    if size == 1:
        raise WeightsError(f"a linear layer of {inputs} inputs, an odd number, cannot be stored as nf4; use int8")
    blocks = weight.astype(jnp.float32).reshape(*leading, inputs // size, size, outputs)
    scales = jnp.max(jnp.abs(blocks), axis=-2, keepdims=True)
    stored = to_int8(scales, -3, jnp.float32) if double else scales
    used = dense(stored)
    levels = blocks / jnp.where(used == 0, 1, used)
    codes = sum((levels > middle).astype(jnp.uint8) for middle in _MIDDLES)
    low, high = jnp.split(codes, 2, axis=-2)
    return Nf4Matrix(codes=low | (high << 4), scales=stored, dtype=jnp.dtype(dtype))


def dense(matrix: Matrix) -> Float[Array, "*leading rows columns"]:
    """The matrix as numbers, in the dtype that it is multiplied in; an array is what it is."""
    match matrix:
        case Int8Matrix(codes, scales, dtype):
            return (codes.astype(jnp.float32) * scales).astype(dtype)
        case Nf4Matrix(codes, scales, dtype):
            levels = jnp.asarray(_LEVELS)[jnp.concatenate([codes & 15, codes >> 4], axis=-2)]
            *leading, blocks, size, outputs = levels.shape
            return (levels * dense(scales)).reshape(*leading, blocks * size, outputs).astype(dtype)
        case _:
            return matrix


def dense_beside(matrix: Matrix, x: Float[Array, "..."]) -> Float[Array, "*leading rows columns"]:
    """`dense`, but not before `x` is known.

    A loop that decodes tokens reads the same weights every time. A compiler that sees so makes the numbers of all
    layers once, in front of the loop, and keeps them: the memory that quantising saves.
    """
    if isinstance(matrix, jax.Array):
        return matrix
    bits = lax.bitcast_convert_type(x.reshape(-1)[0].astype(jnp.float32), jnp.int32)
    zero = bits * bits & 2  # the second bit of a square is never set
    return dense(dataclasses.replace(matrix, codes=matrix.codes + zero.astype(matrix.codes.dtype)))


def take_rows(matrix: Matrix, indices: Int[Array, "..."]) -> Float[Array, "... columns"]:
    """Some rows of a table, as numbers."""
    return dense(jax.tree.map(lambda part: part[indices], matrix))


def is_quantised(value: object) -> bool:
    """Whether the value is a quantised matrix."""
    return isinstance(value, Int8Matrix | Nf4Matrix)


def block_size(inputs: int) -> int:
    """How many inputs share a scale: 64, or the largest power of two in `inputs` where that is less."""
    return math.gcd(inputs, BLOCK)
