"""The samples of an optimizer step -> the parts that one pass over them is made of."""

from collections.abc import Sequence

import numpy as np

from components.types import Sample


def minibatches(samples: Sequence[Sample], count: int, *, seed: int, step: int, epoch: int) -> list[list[Sample]]:
    """At most `count` shuffled parts, of sizes that differ by one at most; fewer where there are fewer samples.

    The order is a function of the run's seed, the optimizer step and the pass, so a step that is computed again is the
    same. One part is the samples as they came: their order changes a sum in its last bits only.
    """
    if count == 1 or len(samples) < 2:
        return [list(samples)]
    order = np.random.default_rng((seed, step, epoch)).permutation(len(samples))
    return [[samples[number] for number in part] for part in np.array_split(order, min(count, len(samples)))]
