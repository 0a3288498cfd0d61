"""A few real prompts, scored by trainer and engine each by its own path: what every version is proven with."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from components.model.lora import Adapter, module_names
from components.model.placement import placement_of
from components.rollout.session import Session
from components.training.packing import Packer, PackingConfig
from components.training.update import Score, make_score
from components.training.weight_sync import Canaries, TrainerScore, WeightSync
from components.types import Sample, Task

CANARIES = 3
CANARY_TOKENS = 32


def make_weight_sync(session: Session, problems: Sequence[Task], *, tolerance: float) -> WeightSync:
    """The weight sync of a session; `tolerance` is in nats, see `WeightSync`."""
    score = make_score(session.model.architecture, temperature=1.0)
    return WeightSync(
        session.engine,
        _trainer_score(session, score),
        _canaries(session, problems),
        expected_modules=module_names(session.adapter),
        tolerance=tolerance,
    )


def _canaries(session: Session, problems: Sequence[Task]) -> Canaries:
    """The first tokens of a few real prompts."""
    encoded = (session.tokenizer.encode(task.prompt)[:CANARY_TOKENS] for task in problems)
    return [ids for ids in encoded if len(ids) > 1][:CANARIES]


def _trainer_score(session: Session, score: Score) -> TrainerScore:
    packing = PackingConfig(rows=1, row_length=CANARIES * CANARY_TOKENS)

    def scored(adapter: Adapter, canaries: Canaries) -> list[Float[np.ndarray, " tokens"]]:
        packer = Packer(packing, lambda length: 1.0)
        for canary in canaries:
            mask = (False, *(True,) * (len(canary) - 1))
            unknown = (0.0,) * len(canary)
            packer.add(Sample(tuple(canary), mask, unknown, (0,) * len(canary), advantage=0.0))
        microbatch = packer.flush()
        assert microbatch is not None, "there is at least one canary of two tokens"
        base = session.model.base
        flat = np.asarray(score(base, adapter, placement_of(base).split(microbatch)))
        ends = np.cumsum([len(canary) - 1 for canary in canaries])
        return list(np.split(flat[: ends[-1]], ends[:-1]))

    return scored
