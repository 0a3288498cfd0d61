"""Two ways of computing one and the same adapter, trainer's and engine's, that disagree -> how, and in which module.

Called when a proof has failed, so it may take its time. It asks both sides for the log-probs of the canaries under
parts of the adapter (a part keeps all shapes, with B zero elsewhere, so that nothing is compiled again), finds the
module where they differ most, and looks for an adapter that makes the trainer compute what the engine did.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from components.model.base import LINEAR_MODULES, module_name
from components.model.lora import Adapter, LoraPair

Respond = Callable[[Adapter], Float[np.ndarray, " tokens"]]
"""Log-probs of all canaries, end to end, under an adapter."""

EXPLAINED = 0.1
"""An explanation holds when it leaves at most this share of the difference."""

Place = tuple[int, str]
"""A layer and the short name of a module in it."""

Change = Callable[[LoraPair], LoraPair]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Finds out how `served` differs from `trained`; `tolerance` is that of the proof, in nats."""

    trained: Respond
    served: Respond
    tolerance: float

    def describe(self, adapter: Adapter, earlier: tuple[int, Adapter] | None) -> str:
        """One sentence. `earlier` is the version before and its adapter, to tell a stale one by."""
        found, nothing = self.served(adapter), _part(adapter, ())
        if distance(found, self.trained(nothing)) <= self.tolerance:
            return "missing modules: the engine computes without any of them"
        if earlier is not None and distance(found, self.trained(earlier[1])) <= self.tolerance:
            return f"stale adapter: the engine computes with version {earlier[0]}"
        if (bare := self._difference(nothing)) > self.tolerance:
            return f"they differ by {bare:.3g} without any adapter already: base or forward pass are not the same"
        return self._localised(adapter, earlier)

    def _localised(self, adapter: Adapter, earlier: tuple[int, Adapter] | None) -> str:
        """About the module where they differ most: of the worst kind, in the worst layer."""
        places = [(layer, kind) for layer, pairs in enumerate(adapter.layers) for kind in pairs]
        kinds = [kind for kind in LINEAR_MODULES if any(kind == other for _, other in places)]
        by_kind = {
            kind: self._difference(_part(adapter, [place for place in places if place[1] == kind])) for kind in kinds
        }
        kind = max(kinds, key=lambda each: by_kind[each])
        place = max(
            (place for place in places if place[1] == kind),
            key=lambda place: self._difference(_part(adapter, [place])),
        )
        listed = ", ".join(f"{each} {by_kind[each]:.2g}" for each in kinds)
        how = self._explained(adapter, place, earlier).format(name=module_name(*place))
        return f"{how} (with the modules of one kind alone they differ by: {listed})"

    def _difference(self, adapter: Adapter) -> float:
        return distance(self.served(adapter), self.trained(adapter))

    def _explained(self, adapter: Adapter, place: Place, earlier: tuple[int, Adapter] | None) -> str:
        """What the engine makes of one module, with a place for its name."""
        alone = _part(adapter, [place])
        found, pair = self.served(alone), _pair(adapter, place)
        bound = EXPLAINED * distance(found, self.trained(alone))
        for sentence, change in _explanations(place, pair, earlier):
            if distance(found, self.trained(_part(adapter, [place], change))) <= bound:
                return sentence
        factor, left = self._fitted_scale(adapter, place, found)
        if left <= bound:
            scale = factor * pair.scale
            return f"wrong scale: the engine computes {{name}} with {scale:.3g}, the trainer with {pair.scale:.3g}"
        return "other numbers: of all modules, trainer and engine disagree most about {name}"

    def _fitted_scale(
        self, adapter: Adapter, place: Place, wanted: Float[np.ndarray, " tokens"]
    ) -> tuple[float, float]:
        """The factor on the trainer's side that comes closest to `wanted`, by Gauss-Newton, and what it leaves."""

        def respond(factor: float) -> Float[np.ndarray, " tokens"]:
            return self.trained(_part(adapter, [place], lambda pair: dataclasses.replace(pair, b=pair.b * factor)))

        factor, step = 1.0, 0.05
        for _ in range(10):
            here = respond(factor)
            slope = (respond(factor + step) - here) / step
            factor += float(slope @ (wanted - here) / max(slope @ slope, 1e-30))
        return factor, distance(wanted, respond(factor))


def _explanations(place: Place, pair: LoraPair, earlier: tuple[int, Adapter] | None) -> Iterator[tuple[str, Change]]:
    """What may have happened to one module on the engine's side, and the same done on the trainer's."""
    yield "missing module: the engine computes without {name}", _switched_off
    if earlier is not None:
        version, older = earlier
        yield f"stale adapter: the engine computes {{name}} with version {version}", lambda _: _pair(older, place)
    yield (
        "transposed matrix: the engine takes A of {name} for its transpose",
        lambda pair: dataclasses.replace(pair, a=pair.a.T.reshape(pair.a.shape)),
    )
    yield (
        "transposed matrix: the engine takes B of {name} for its transpose",
        lambda pair: dataclasses.replace(pair, b=pair.b.T.reshape(pair.b.shape)),
    )
    if pair.a.shape[0] == pair.b.shape[1]:
        yield (
            "transposed matrix: the engine computes with the transpose of A @ B in {name}",
            lambda pair: dataclasses.replace(pair, a=pair.b.T, b=pair.a.T),
        )


def _part(adapter: Adapter, places: Iterable[Place], change: Change = lambda pair: pair) -> Adapter:
    """The adapter with `change` made to the pairs at `places`, and every other pair switched off."""
    kept = set(places)
    return Adapter(
        layers=tuple(
            {kind: change(pair) if (layer, kind) in kept else _switched_off(pair) for kind, pair in pairs.items()}
            for layer, pairs in enumerate(adapter.layers)
        )
    )


def _switched_off(pair: LoraPair) -> LoraPair:
    return dataclasses.replace(pair, b=pair.b * 0.0)


def _pair(adapter: Adapter, place: Place) -> LoraPair:
    layer, kind = place
    return adapter.layers[layer][kind]


def distance(one: Float[np.ndarray, " tokens"], other: Float[np.ndarray, " tokens"]) -> float:
    """The largest difference; infinite where a number is none."""
    worst = float(np.max(np.abs(one - other)))
    return worst if np.isfinite(worst) else float("inf")
