"""The terms of an objective -> its formula with every constant, for people."""

from components.algorithms.advantages import STD_EPSILON
from components.algorithms.losses import KlEstimator
from components.algorithms.terms import (
    AdvantageKind,
    Aggregation,
    Credit,
    ImportanceLevel,
    ImportanceRule,
    Proximal,
    Reference,
    Surrogate,
    Terms,
)

_ADVANTAGES = {
    AdvantageKind.GRPO: f"(R - mean of its group) / (std of its group, n - 1, + {STD_EPSILON:g})",
    AdvantageKind.DR_GRPO: "R - mean of its group",
    AdvantageKind.RLOO: "R - mean of the others in its group",
    AdvantageKind.REINFORCE_PP: f"(R - mean of the batch's tokens) / (their std, n - 1, + {STD_EPSILON:g})",
}
_PENALTIES = {
    KlEstimator.K1: "d",
    KlEstimator.K2: "d^2 / 2",
    KlEstimator.K3: "(exp(-d) + d - 1)",
}
_REFERENCES = {
    Reference.BASE: "the base without adapter",
    Reference.START: "the adapter that the run started from",
}


def formula(terms: Terms) -> list[str]:
    """Lines of text: the loss, then what each of its letters is."""
    gain, definitions = _surrogate(terms)
    penalty = ""
    if terms.needs_reference:
        weight = "pi/behavior * " if terms.kl_estimator is KlEstimator.K3 else ""
        penalty = f" + {terms.kl_coefficient:g} * {weight}{_PENALTIES[terms.kl_estimator]}"
    if terms.entropy_coefficient:
        penalty += f" - {terms.entropy_coefficient:g} * entropy"
    if terms.kl_coefficient:
        definitions.append(f"d = logprob - logprob of the reference ({_REFERENCES[terms.reference]}), held within +-20")
    weight, counted = {
        Aggregation.TOKEN_MEAN: ("1", "sampled tokens"),
        Aggregation.SEQUENCE_MEAN: ("1 / sampled tokens of its sequence", "sequences"),
        Aggregation.CONSTANT: (f"1 / {terms.constant}", "sequences"),
    }[terms.aggregation]
    part = "minibatch" if terms.minibatches > 1 else "optimizer step"
    return [
        f"loss = sum over sampled tokens of w * ({gain}{penalty}) / N",
        *definitions,
        *_masks(terms),
        *(_critic(terms) if terms.needs_critic else _comparison(terms)),
        f"w = {weight}; N = {counted} of the {part}",
        *_sampling(terms),
        *_updates(terms),
    ]


def _surrogate(terms: Terms) -> tuple[str, list[str]]:
    ratio = "ratio = exp(logprob - behavior logprob), the log held within +-20"
    if terms.proximal is not Proximal.BEHAVIOR:
        return _decoupled(terms, ratio)
    low, high = f"{1 - terms.clip_low:g}", f"1 + {terms.clip_high:g}"
    if terms.surrogate is Surrogate.CISPO:
        return f"-clip(ratio, {low}, {high}) * A * logprob", [f"{ratio}; no gradient flows through its clip"]
    low = f"1 - {terms.clip_low:g}"
    if terms.surrogate is Surrogate.GSPO:
        sequence = "s = exp(mean of logprob - behavior logprob over its sequence), with each token's own gradient"
        return f"-min(s * A, clip(s, {low}, {high}) * A)", [sequence]
    return f"-{_bound(terms, 'ratio')}", [ratio]


def _decoupled(terms: Terms, ratio: str) -> tuple[str, list[str]]:
    cap, floor = terms.importance_cap, terms.importance_floor
    current = terms.proximal is Proximal.CURRENT
    name = "ratio" if current else "weight"
    held = f"min({name}, {cap:g})"
    if terms.importance_rule is ImportanceRule.MASK:
        held = f"{name} where {floor:g} <= {name} <= {cap:g}, else 0"
    level = ""
    if terms.importance_level is ImportanceLevel.SEQUENCE:
        level = f", of the product of {name} over its sequence"
    importance = f"importance = {held}{level}; no gradient flows through it"
    if current:
        if terms.several_updates:
            held = "ratio = exp(proximal logprob - behavior logprob), the log held within +-20"
            proximal = "u = exp(logprob - proximal logprob), of the policy at the start of the optimizer step"
            return f"-importance * {_bound(terms, 'u')}", [importance, held, proximal]
        proximal = "u = exp(logprob - proximal logprob), of the present policy: 1 with the gradient of logprob, no clip"
        return "-importance * u * A", [importance, ratio, proximal]
    line = "log proximal = log behavior + a * (logprob - log behavior), a = 1 - 1 / (versions since, at least 1)"
    definitions = [importance, "weight = proximal / behavior; u = exp(logprob - log proximal)", line]
    return f"-importance * {_bound(terms, 'u')}", definitions


def _bound(terms: Terms, name: str) -> str:
    gain = f"min({name} * A, clip({name}, 1 - {terms.clip_low:g}, 1 + {terms.clip_high:g}) * A)"
    if terms.dual_clip is not None:
        gain = f"({gain}, where A < 0 at least {terms.dual_clip:g} * A)"
    return gain


def _masks(terms: Terms) -> list[str]:
    lines = []
    low, high = terms.geometric_low, terms.geometric_high
    if low is not None or high is not None:
        bounds = " <= ".join(
            part for part in (_number(low), "exp(mean of logprob - behavior logprob)", _number(high)) if part
        )
        lines.append(f"sequences are left out (loss 0, still in N) unless {bounds}")
    if terms.off_policy_delta is not None:
        drift = "mean of behavior logprob - logprob"
        lines.append(f"tokens with A < 0 are left out where the {drift} of the sequence > {terms.off_policy_delta:g}")
    return lines


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:g}"


def _comparison(terms: Terms) -> list[str]:
    compared = "the batch" if terms.compares_batches else "its group"
    return [f"A = {_ADVANTAGES[terms.advantage]}; 0 where all of {compared} are equal", *_reward(terms)]


def _critic(terms: Terms) -> list[str]:
    """The advantage over a critic, and the loss that the critic itself is trained with."""
    step = f"{terms.discount * terms.decay:g}"
    at = "turn" if terms.credit is Credit.TURN else "episode"
    reward = f"r = reward at the last sampled token of the {at}, 0 before it"
    if terms.charges_kl:
        reward += f", - {terms.kl_coefficient:g} * {_PENALTIES[terms.kl_estimator]} at each token"
    bound = f"clip(V, V0 - {terms.value_clip:g}, V0 + {terms.value_clip:g})"
    loss = f"max((V - G)^2, ({bound} - G)^2)" if terms.value_clip else "(V - G)^2"
    whitened = f", then (A - mean of the batch's tokens) / (their std, n - 1, + {STD_EPSILON:g})"
    cut = "what the critic expects of the state it was cut in" if terms.bootstrap else "0, too"
    return [
        f"A = r + {terms.discount:g} * V0 of the next sampled token - V0 + {step} * A of the next sampled token"
        + (whitened if terms.whiten else ""),
        f"V0 = the critic's value at the step's start; behind the last token 0, where the episode was truncated {cut}",
        reward + _penalty(terms),
        f"value loss = mean over sampled tokens of 1/2 * {loss}, of the critic alone; G = A before whitening + V0"
        if terms.whiten
        else f"value loss = mean over sampled tokens of 1/2 * {loss}, of the critic alone; G = A + V0",
    ]


def _reward(terms: Terms) -> list[str]:
    discounted = f", each discounted by {terms.discount:g} per sampled token" if terms.discount != 1 else ""
    turn = terms.credit is Credit.TURN
    reward = "what was earned in the token's turn and after it" if turn else "reward of the episode"
    if terms.charges_kl:
        after = " of the token and those after it" if turn or terms.compares_batches else " over all its tokens"
        reward += f" - {terms.kl_coefficient:g} * sum of {_PENALTIES[terms.kl_estimator]}{after}"
    return [f"R = {reward}{_penalty(terms)}{discounted}"]


def _penalty(terms: Terms) -> str:
    if not terms.overlong_penalty:
        return ""
    start = terms.overlong_limit - terms.overlong_buffer
    ramp = f"1 at {terms.overlong_limit} sampled tokens and beyond, linear from 0 at {start}"
    return f" - {terms.overlong_penalty:g} * ({ramp})"


def _sampling(terms: Terms) -> list[str]:
    if not terms.dynamic_sampling:
        return []
    return [
        "groups whose rewards are all equal are refused and others played in their place, "
        f"up to {terms.refill_limit} in one optimizer step"
    ]


def _updates(terms: Terms) -> list[str]:
    if not terms.several_updates:
        return []
    bound = "" if terms.max_kl is None else f"; none after one with KL(behavior || policy) > {terms.max_kl:g} per token"
    passes = f"an optimizer step passes over its tokens {terms.epochs} times"
    return [f"{passes}, each time in {terms.minibatches} shuffled minibatches with an update after each{bound}"]
