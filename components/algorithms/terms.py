"""The vocabulary of an objective: what each of its parts may be, and one record of all of them.

A record is filled in from a preset and a recipe (`presets`), computed with (`surrogates`, `shaping`, `objective`) and
told to people (`formula`).
"""

from dataclasses import dataclass
from enum import StrEnum

from components.algorithms.losses import KlEstimator


class AdvantageKind(StrEnum):
    """How rewards become advantages.

    `reinforce_pp` compares with the whole batch, `gae` with what a critic expected; all others compare the members of a
    group with one another.
    """

    GRPO = "grpo"
    DR_GRPO = "dr_grpo"
    RLOO = "rloo"
    REINFORCE_PP = "reinforce_pp"
    GAE = "gae"


class Credit(StrEnum):
    """What a token is credited with: the whole episode's reward, or what was earned in its turn and after it."""

    EPISODE = "episode"
    TURN = "turn"


class Surrogate(StrEnum):
    """The loss whose gradient is that of the policy: PPO's bound per token or per sequence, or clipped weights."""

    CLIPPED = "clipped"
    GSPO = "gspo"
    CISPO = "cispo"


class Aggregation(StrEnum):
    """How the losses of tokens become one loss; see `objective`."""

    TOKEN_MEAN = "token_mean"
    SEQUENCE_MEAN = "sequence_mean"
    CONSTANT = "constant"


class Proximal(StrEnum):
    """The policy around which a step is clipped.

    The one that sampled; the one at the step's start, which is the present one while a step makes one update; or the
    one of the version before, taken to lie on the line between those two.
    """

    BEHAVIOR = "behavior"
    CURRENT = "current"
    INTERPOLATED = "interpolated"


class ImportanceRule(StrEnum):
    """How importance weights are held: cut at the cap, or zero outside of [floor, cap] (IcePop)."""

    TRUNCATE = "truncate"
    MASK = "mask"


class ImportanceLevel(StrEnum):
    """Whether a weight is a token's own, or the product over its sequence."""

    TOKEN = "token"
    SEQUENCE = "sequence"


class KlPlace(StrEnum):
    """Where the KL to the reference is charged: in the loss, with a gradient, or in the reward of each token."""

    LOSS = "loss"
    REWARD = "reward"


class Reference(StrEnum):
    """The policy that a KL term holds to: the base without adapter, or the adapter that the run started from."""

    BASE = "base"
    START = "start"


@dataclass(frozen=True, kw_only=True)
class Terms:
    """All that an objective is made of; `presets` says what each value means and where it comes from."""

    advantage: AdvantageKind
    credit: Credit
    discount: float
    decay: float
    whiten: bool
    bootstrap: bool
    value_clip: float
    surrogate: Surrogate
    clip_low: float
    clip_high: float
    dual_clip: float | None
    aggregation: Aggregation
    constant: int | None
    proximal: Proximal
    importance_rule: ImportanceRule | None
    importance_level: ImportanceLevel | None
    importance_floor: float | None
    importance_cap: float | None
    geometric_low: float | None
    geometric_high: float | None
    off_policy_delta: float | None
    kl_coefficient: float
    kl_estimator: KlEstimator
    kl_place: KlPlace
    reference: Reference
    entropy_coefficient: float
    overlong_penalty: float
    overlong_limit: int
    overlong_buffer: int
    dynamic_sampling: bool
    refill_limit: int
    epochs: int
    minibatches: int
    max_kl: float | None

    @property
    def needs_reference(self) -> bool:
        """True when the log-probs of the reference policy enter the loss."""
        return self.kl_coefficient > 0 and self.kl_place is KlPlace.LOSS

    @property
    def charges_kl(self) -> bool:
        """True when they enter the rewards."""
        return self.kl_coefficient > 0 and self.kl_place is KlPlace.REWARD

    @property
    def compares_batches(self) -> bool:
        """True when an advantage is known only when all groups of an optimizer step are there."""
        return self.advantage in (AdvantageKind.REINFORCE_PP, AdvantageKind.GAE)

    @property
    def needs_critic(self) -> bool:
        """True when advantages are taken over what a critic expects, which is trained beside the policy."""
        return self.advantage is AdvantageKind.GAE

    @property
    def several_updates(self) -> bool:
        """True when the tokens of an optimizer step are trained on in several updates of the policy."""
        return self.epochs * self.minibatches > 1

    @property
    def needs_proximal(self) -> bool:
        """True when the log-probs of the policy at the step's start are not those of the present one."""
        return self.several_updates and self.proximal is Proximal.CURRENT
