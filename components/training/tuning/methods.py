"""A method's settings -> its loss over a micro-batch, as a sum, and the sums that its numbers are made of.

A loss is divided once per optimizer step by the tokens, or by the pairs, of the whole step. So it is the same packed or
not, and for any split into micro-batches; with nothing to learn from it is 0, and its gradient too.

    sft      sum of -log p(token)                                                      / tokens
    dpo      sum of -log sigmoid(beta * (log-ratio of chosen - log-ratio of rejected)) / pairs
    orpo     sum of mean -log p(token) of chosen - weight * log sigmoid(log odds ratio) / pairs
    distill  sum of temperature^2 * ((1 - reverse) * KL(teacher || policy) + reverse * KL(policy || teacher)) / tokens
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import jax.numpy as jnp
from jaxtyping import Array, Float

from components.algorithms.preference import (
    PreferenceLoss,
    dpo_losses,
    log_odds,
    odds_ratio_losses,
    pair_means,
    pair_sums,
    right_share,
)
from components.algorithms.sampled import SampledTokens
from components.algorithms.terms import Reference
from components.model.divergence import Side, token_divergences
from components.model.head import CHUNK, TokenScores
from components.training.tuning.settings import DpoConfig, OrpoConfig, TuneConfig
from components.training.tuning.settings import Method as Name
from components.types import Sample

Sums = dict[str, Array]
"""Sums over a micro-batch; each is divided by the tokens or pairs of the optimizer step."""
Row = tuple[Sample, ...]
"""What one row of the data became: one sample, or the chosen and the rejected one."""


class Measured(NamedTuple):
    """What a loss may look at: the policy's scores, and the reference's log-probs or the teacher where they are asked.

    `scores` is None for a method with a teacher, and the two sides are None for the others.
    """

    tokens: SampledTokens
    scores: TokenScores | None = None
    reference: Float[Array, " tokens"] | None = None
    policy: Side | None = None
    teacher: Side | None = None


@runtime_checkable
class Loss(Protocol):
    """A method of tuning. Hashable, so that a jitted function may close over it."""

    @property
    def reference(self) -> Reference | None:
        """Whose log-probs it needs beside the policy's."""
        ...

    @property
    def has_teacher(self) -> bool:
        """Whether it looks at a teacher."""
        ...

    def loss(self, found: Measured) -> tuple[Float[Array, ""], Sums]:
        """The sum of the loss, and the sums of all numbers; `loss` is one of them."""
        ...

    def share(self, row: Row) -> int:
        """What a row adds to the denominator of its optimizer step."""
        ...


@dataclass(frozen=True)
class SupervisedLoss:
    """SFT: the negative log-likelihood of what the assistant said."""

    reference: Reference | None = None
    has_teacher: bool = False

    def loss(self, found: Measured) -> tuple[Float[Array, ""], Sums]:
        """Per token, over tokens that an assistant said."""
        assert found.scores is not None, "asked for by having no teacher"
        mask, scores = found.tokens.mask, found.scores
        total = -jnp.sum(jnp.where(mask, scores.logprobs, 0.0))
        right = jnp.sum(mask & (scores.logprobs >= scores.highest), dtype=jnp.float32)
        return total, {"loss": total, "token_accuracy": right}

    def share(self, row: Row) -> int:
        """Its tokens."""
        return _tokens(row)


@dataclass(frozen=True)
class DpoLoss:
    """Direct preference optimisation; see `dpo_losses`."""

    beta: float
    label_smoothing: float
    kind: PreferenceLoss
    reference: Reference | None = Reference.START
    has_teacher: bool = False

    @classmethod
    def of(cls, settings: DpoConfig) -> "DpoLoss":
        """The loss that the settings describe."""
        return cls(settings.beta, settings.label_smoothing, settings.loss, settings.reference)

    def loss(self, found: Measured) -> tuple[Float[Array, ""], Sums]:
        """Per pair; rewards are beta times the log-ratios, as in the paper's section 5.1."""
        assert found.scores is not None, "asked for by having no teacher"
        assert found.reference is not None, "asked for by naming a reference"
        ratios = pair_sums(found.scores.logprobs - found.reference, found.tokens.sequence)
        losses = dpo_losses(ratios.margin, beta=self.beta, label_smoothing=self.label_smoothing, loss=self.kind)
        return _over_pairs(
            ratios.there,
            loss=losses,
            preference_accuracy=right_share(ratios.margin),
            margin=self.beta * ratios.margin,
            chosen_reward=self.beta * ratios.chosen,
            rejected_reward=self.beta * ratios.rejected,
        )

    def share(self, row: Row) -> int:
        """One pair."""
        return 1


@dataclass(frozen=True)
class OrpoLoss:
    """Odds ratio preference optimisation (arXiv:2403.07691, eq. 6): supervised loss and odds ratio, no reference."""

    weight: float
    reference: Reference | None = None
    has_teacher: bool = False

    @classmethod
    def of(cls, settings: OrpoConfig) -> "OrpoLoss":
        """The loss that the settings describe."""
        return cls(settings.weight)

    def loss(self, found: Measured) -> tuple[Float[Array, ""], Sums]:
        """Per pair."""
        assert found.scores is not None, "asked for by having no teacher"
        means = pair_means(found.scores.logprobs, found.tokens.sequence)
        ratio_losses = odds_ratio_losses(means)
        return _over_pairs(
            means.there,
            loss=-means.chosen + self.weight * ratio_losses,
            preference_accuracy=right_share(means.margin),
            margin=log_odds(means.chosen) - log_odds(means.rejected),
            chosen_loss=-means.chosen,
            ratio_loss=ratio_losses,
        )

    def share(self, row: Row) -> int:
        """One pair."""
        return 1


@dataclass(frozen=True)
class DistillLoss:
    """The teacher's distribution over the whole vocabulary at each token that an assistant said."""

    reverse: float
    temperature: float
    chunk: int = CHUNK
    reference: Reference | None = None
    has_teacher: bool = True

    def loss(self, found: Measured) -> tuple[Float[Array, ""], Sums]:
        """Per token."""
        assert found.policy is not None, "a method with a teacher has both sides"
        assert found.teacher is not None, "a method with a teacher has both sides"
        forward, reverse = token_divergences(
            found.policy, found.teacher, temperature=self.temperature, chunk=self.chunk
        )
        kept = found.tokens.mask
        forward, reverse = jnp.sum(jnp.where(kept, forward, 0.0)), jnp.sum(jnp.where(kept, reverse, 0.0))
        total = self.temperature**2 * ((1 - self.reverse) * forward + self.reverse * reverse)
        return total, {"loss": total, "forward_kl": forward, "reverse_kl": reverse}

    def share(self, row: Row) -> int:
        """Its tokens."""
        return _tokens(row)


SUPERVISED = SupervisedLoss()


def make_loss(settings: TuneConfig) -> Loss:
    """The loss of a recipe's method."""
    match settings.method:
        case Name.SFT:
            return SUPERVISED
        case Name.DPO:
            return DpoLoss.of(settings.dpo or DpoConfig())
        case Name.ORPO:
            return OrpoLoss.of(settings.orpo or OrpoConfig())
        case Name.DISTILL:
            assert settings.distill is not None, "TuneConfig checks it"
            return DistillLoss(settings.distill.reverse, settings.distill.temperature)


def describe(settings: TuneConfig) -> str:
    """The loss as a formula with every constant, for people."""
    match make_loss(settings):
        case DpoLoss() as dpo:
            margin = f"(log pi/{dpo.reference} of chosen - of rejected)"
            if dpo.kind is PreferenceLoss.IPO:
                return f"mean over pairs of ({margin} - 1 / (2 * {dpo.beta:g}))^2"
            smoothed = f", {dpo.label_smoothing:g} of it for the other order" if dpo.label_smoothing else ""
            return f"mean over pairs of -log sigmoid({dpo.beta:g} * {margin}){smoothed}"
        case OrpoLoss() as orpo:
            return f"mean over pairs of -mean log pi(chosen) - {orpo.weight:g} * log sigmoid(log odds ratio)"
        case DistillLoss() as distill:
            parts = f"{1 - distill.reverse:g} * KL(teacher || pi) + {distill.reverse:g} * KL(pi || teacher)"
            return f"mean over tokens of {distill.temperature:g}^2 * ({parts}) at temperature {distill.temperature:g}"
        case _:
            return "mean over tokens of -log pi(token)"


def means(sums: Mapping[str, float], denominator: int | float) -> dict[str, float]:
    """The numbers of an optimizer step, or of a measurement; 0 where there was nothing."""
    return {name: float(value) / denominator if denominator else 0.0 for name, value in sums.items()}


def denominator_of(loss: Loss, rows: Sequence[Row]) -> int:
    """The tokens, or the pairs, of these rows."""
    return sum(loss.share(row) for row in rows)


def _tokens(row: Row) -> int:
    return sum(sum(sample.completion_mask) for sample in row)


def _over_pairs(there: Array, *, loss: Array, **numbers: Array) -> tuple[Float[Array, ""], Sums]:
    sums = {name: jnp.sum(jnp.where(there, values, 0.0)) for name, values in {"loss": loss, **numbers}.items()}
    return sums["loss"], sums
