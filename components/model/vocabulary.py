"""A table with a row for every token -> its rows a block at a time, as numbers.

A head of 256k tokens is large, its products with many tokens are larger, and a quantised one would be larger again if
it were made numbers whole. So what needs all of its rows goes over blocks of them, in a loop that holds one. On a mesh
that splits the vocabulary a block takes a share of its rows from every device.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from components.model.quantise import Matrix, dense
from components.model.sharding import constrain, shares

T = TypeVar("T")

BLOCK_ROWS = 2048
"""Two CPU cores are about as fast with 1024 to 8192; products with 1024 tokens are 8 MiB."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """`count` blocks of `size` rows from each of `lanes` equal parts of a table of `rows`.

    The last block starts early enough to be whole, so that it may share rows with the one before it.
    """

    rows: int
    lanes: int
    count: int
    size: int

    @classmethod
    def of(cls, table: Matrix, most: int = BLOCK_ROWS) -> "Blocks":
        """Blocks of at most so many rows of each part, all of one size; the parts are those of the mesh."""
        first = jax.tree.leaves(table)[0]
        lanes = shares(first, "vocab")
        rows = first.shape[0]
        count = -(-rows // lanes // most)
        return cls(rows, lanes, count, -(-rows // lanes // count))

    def take(self, table: Matrix, block: Int[Array, ""]) -> Float[Array, "places columns"]:
        """The rows of a block, as numbers in the dtype that they are multiplied in."""
        # Without the barrier a compiler makes numbers of the whole table in front of the loop that this is called in:
        # of a quantised one, and on a CPU, which slices no bfloat16, of such a one too, in float32.
        table, first = lax.optimization_barrier((table, self._first(block)))

        def part(array: Array) -> Array:
            lanes = array.reshape(self.lanes, -1, *array.shape[1:])
            return lax.dynamic_slice_in_dim(lanes, first, self.size, axis=1).reshape(-1, *array.shape[1:])

        return constrain(dense(jax.tree.map(part, table)), "vocab", None)

    def places(self, block: Int[Array, ""]) -> Int[Array, " places"]:
        """Which rows `take` gives."""
        inside = self._first(block) + jnp.arange(self.size)
        return (inside + self.rows // self.lanes * jnp.arange(self.lanes)[:, None]).reshape(-1)

    def once(
        self, values: Float[Array, "rows places"], block: Int[Array, ""], otherwise: float
    ) -> Float[Array, "rows places"]:
        """`values`, a column for every row of a block, and `otherwise` where the block before it has had that row."""
        if self.count * self.size * self.lanes == self.rows:
            return values
        seen = self._first(block) + jnp.arange(self.size) < block * self.size
        return jnp.where(jnp.tile(seen, self.lanes), otherwise, values)

    def put(
        self, products: Float[Array, "rows vocab"], part: Float[Array, "rows places"], block: Int[Array, ""]
    ) -> Float[Array, "rows vocab"]:
        """`products`, a column for every row of the table, with those of a block put in."""
        lanes = products.reshape(len(products), self.lanes, -1)
        part = part.reshape(len(products), self.lanes, -1)
        lanes = lax.dynamic_update_slice_in_dim(lanes, part, self._first(block), axis=2)
        return lanes.reshape(products.shape)

    def add(
        self, table: Float[Array, "vocab columns"], part: Float[Array, "places columns"], block: Int[Array, ""]
    ) -> Float[Array, "vocab columns"]:
        """`table` with `part` added to the rows of a block."""
        first, lanes = self._first(block), table.reshape(self.lanes, -1, table.shape[1])
        rows = lax.dynamic_slice_in_dim(lanes, first, self.size, axis=1)
        rows = rows + part.reshape(rows.shape)
        return lax.dynamic_update_slice_in_dim(lanes, rows, first, axis=1).reshape(table.shape)

    def over(self, step: Callable[[T, Int[Array, ""]], T], start: T) -> T:
        """`step(step(start, 0), 1)` and so on, for every block."""
        return lax.scan(lambda state, block: (step(state, block), None), start, jnp.arange(self.count))[0]

    def _first(self, block: Int[Array, ""]) -> Int[Array, ""]:
        return jnp.minimum(block * self.size, self.rows // self.lanes - self.size)
