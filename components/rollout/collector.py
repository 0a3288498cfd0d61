"""Python's garbage collector -> one that seldom holds up the episodes.

A full collection looks at every object that lives, and all episodes wait while it does. By default one comes whenever a
quarter more has been made: with thousands of waiting episodes that is half of all processor time, in pauses of a good
part of a second, and it finds next to nothing, since an episode leaves no cycles behind.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

THRESHOLDS = (20_000, 50, 50)
"""New objects until the youngest are looked at, and of such looks until the older ones are."""


@contextmanager
def rare_collections() -> Iterator[None]:
    """Look seldom, and never at what lives on entering: modules, compiled programs, the model."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
