"""Requests -> which slot holds which tokens, and what to prefill, copy or decode next. Pure Python, no device.

A slot holds the context of one sequence: `tokens`, of which the first `filled` have keys and values in the cache. The
last token of a context is never prefilled: the decode step feeds it and samples its successor. So a slot is ready to
decode when `filled == len(tokens) - 1`, and a prompt that is already in another slot needs a copy and nothing else.

A slot whose turn has ended is free and keeps its content until it is lent to another request: those of episodes that
are over first, then the least recently used. There may be more slots than sequences that decode at once, so that
episodes find their slots again when their tools have answered. Two rules say what a request may take over:

- A later turn of an episode finds its own slot and goes on from there, whatever weights filled it.
- Anything else may share only what a fresh prefill with the current weights would give, bit for bit: `exact` tokens,
  up to a boundary between prefill chunks, or up to the end of an equal prompt. So neither an old policy nor the order
  of arrival shows in a new episode.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from components.types import SequenceId

Episode = tuple[str, int, int, int]


def episode_of(sequence: SequenceId) -> Episode:
    """The episode that a turn belongs to."""
    return (sequence.task_id, sequence.epoch, sequence.member, sequence.attempt)


@dataclass(frozen=True, slots=True)
class Request:
    """One turn to sample: at most `max_tokens` tokens after `prompt_ids`. `id` is unique within an engine."""

    id: int
    prompt_ids: tuple[int, ...]
    sequence: SequenceId
    max_tokens: int

    @property
    def episode(self) -> Episode:
        """The episode that the turn belongs to."""
        return episode_of(self.sequence)


@dataclass(slots=True, eq=False)
class Slot:
    """One row of the cache. It is live while it has a request."""

    index: int
    tokens: list[int] = field(default_factory=list)
    filled: int = 0
    exact: int = 0
    weights: int = 0
    episode: Episode | None = None
    request: Request | None = None
    last_used: int = 0
    chunks_served: int = 0
    recomputes: bool = False

    @property
    def prefilling(self) -> bool:
        """Live, and not all of its prompt is in the cache."""
        return self.request is not None and self.filled < len(self.tokens) - 1

    @property
    def ready(self) -> bool:
        """Live, and waiting for its next token."""
        return self.request is not None and self.filled == len(self.tokens) - 1

    @property
    def sampled(self) -> int:
        """Tokens that the current request has sampled so far."""
        return 0 if self.request is None else len(self.tokens) - len(self.request.prompt_ids)


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy the cache of slot `source` to slot `target`."""

    source: int
    target: int


@dataclass(frozen=True, slots=True)
class Prefill:
    """Write keys and values of `tokens` into slot `slot`, from position `start` on."""

    slot: int
    start: int
    tokens: tuple[int, ...]


class Scheduler:
    """Assigns requests to slots, `rows` at a time, first come first served, and says what the device does next.

    `next_work` hands out copies and prefills in an order that must be kept, each as a promise: the scheduler counts it
    as done. `prefill_chunk` tokens at most are prefilled in one piece, and pieces end at its multiples.
    """

    def __init__(self, slots: int, capacity: int, prefill_chunk: int, rows: int | None = None) -> None:
        self.slots = [Slot(index) for index in range(slots)]
        self.rows = slots if rows is None else rows
        self.capacity = capacity
        self.prefill_chunk = prefill_chunk
        self.waiting: dict[int, Request] = {}
        self.prefilled_tokens = 0
        self.reused_tokens = 0
        self.recomputed_tokens = 0
        self._weights = 0
        self._tick = 0

    def submit(self, request: Request) -> None:
        """Queue a request. Its prompt must leave room for at least one token in the capacity."""
        if len(request.prompt_ids) >= self.capacity:
            raise ValueError(f"a prompt of {len(request.prompt_ids)} tokens in a slot of {self.capacity}")
        self.waiting[request.id] = request

    def cancel(self, request_id: int) -> None:
        """Forget a request, waiting or live. Its slot is free at once. An unknown id is one that has finished."""
        self.waiting.pop(request_id, None)
        for slot in self.live():
            if slot.request is not None and slot.request.id == request_id:
                self.finish(slot)

    def live(self) -> list[Slot]:
        """Slots with a request."""
        return [slot for slot in self.slots if slot.request is not None]

    def ready(self) -> list[Slot]:
        """Slots that take part in the next decode step."""
        return [slot for slot in self.slots if slot.ready]

    @property
    def room(self) -> int:
        """How many requests may start now."""
        return self.rows - len(self.live())

    def limit(self, request: Request) -> int:
        """How many tokens the request may sample: its own limit, or what room the capacity leaves."""
        return min(request.max_tokens, self.capacity - len(request.prompt_ids))

    def admit(self) -> None:
        """Give free slots to waiting requests. A turn whose episode still has its slot takes it before others come."""
        if not self.waiting or self.room == 0:
            return
        owned = {slot.episode: slot for slot in self.slots if slot.request is None}
        for request in [request for request in self.waiting.values() if request.sequence.turn > 0]:
            if request.episode in owned and self.room > 0:
                own, prompt = owned.pop(request.episode), list(request.prompt_ids)
                self._assign(request, own, _common_prefix(prompt, own.tokens, own.filled))
        free = self._slots_to_lend()[: self.room]
        for request, slot in zip(list(self.waiting.values()), free, strict=False):
            self._assign(request, slot, self._shareable(list(request.prompt_ids), slot, slot.exact))
            slot.recomputes = request.sequence.turn > 0

    def prefill_budget(self) -> int:
        """How many tokens may be prefilled before the next decode step: one chunk, so that a long prompt does not hold
        up those who decode, but one for each of these when more wait for their prompts than decode: a step costs the
        same for few rows as for many.
        """
        waiting = sum(slot.prefilling for slot in self.slots)
        return self.prefill_chunk * max(1, waiting // max(1, len(self.ready())))

    def next_work(self, budget: int) -> Copy | Prefill | None:
        """The next copy or piece of prefill, of at most `budget` tokens, or None. Slots with prompts take turns."""
        prefilling = [slot for slot in self.slots if slot.prefilling]
        for slot in sorted(prefilling, key=lambda slot: (slot.chunks_served, slot.last_used)):
            source, shared = self._best_source(slot)
            if self._promised(slot, prefilling) > max(shared, slot.filled):
                continue
            if source is not None and shared > slot.filled:
                return self._copy(source, slot, shared)
            length = min(len(slot.tokens) - 1, slot.filled + self._to_boundary(slot.filled)) - slot.filled
            if length <= budget:
                return self._prefill(slot, length)
        return None

    def advance(self, slot: Slot, tokens: Iterable[int]) -> None:
        """Add sampled tokens. All but the last have been fed, so their keys and values are in the cache."""
        slot.tokens.extend(tokens)
        slot.filled = len(slot.tokens) - 1

    def finish(self, slot: Slot) -> None:
        """The slot's turn is over. The slot is free and keeps its content."""
        slot.request = None
        slot.last_used = self._next_tick()

    def forget(self, episode: Episode) -> None:
        """The episode is over: its slot is the first to be lent."""
        for slot in self.slots:
            if slot.episode == episode:
                slot.episode = None

    def swap(self, *, recompute: bool) -> None:
        """New weights from here on. With `recompute` the cache is forgotten, and live slots prefill again."""
        self._weights += 1
        for slot in self.slots if recompute else ():
            slot.filled = slot.exact = slot.chunks_served = 0

    def _slots_to_lend(self) -> list[Slot]:
        """Free slots: of no episode, then the least recently used; those that a waiting turn could go on from last."""
        awaited = {request.episode for request in self.waiting.values() if request.sequence.turn > 0}
        free = [slot for slot in self.slots if slot.request is None]
        return sorted(free, key=lambda slot: (slot.episode in awaited, slot.episode is not None, slot.last_used))

    def _assign(self, request: Request, slot: Slot, kept: int) -> None:
        del self.waiting[request.id]
        self.forget(request.episode)
        slot.request = request
        slot.episode = request.episode
        slot.tokens = list(request.prompt_ids)
        slot.filled = min(kept, len(slot.tokens) - 1)
        slot.exact = min(slot.exact, slot.filled)
        slot.last_used = self._next_tick()
        slot.chunks_served = 0
        slot.recomputes = False
        self.reused_tokens += slot.filled

    def _best_source(self, slot: Slot) -> tuple[Slot | None, int]:
        others = [other for other in self.slots if other is not slot and other.exact > slot.filled]
        shares = [(self._shareable(slot.tokens, other, other.exact), other) for other in others]
        shared, source = max(shares, key=lambda share: share[0], default=(0, None))
        return source, shared

    def _promised(self, slot: Slot, prefilling: Sequence[Slot]) -> int:
        """How much of this prompt a slot that was admitted earlier is about to fill."""
        earlier = (other for other in prefilling if other.last_used < slot.last_used and self._is_exact(other))
        shares = (self._shareable(slot.tokens, other, len(other.tokens) - 1) for other in earlier)
        return max(shares, default=0)

    def _shareable(self, tokens: list[int], source: Slot, end: int) -> int:
        """How many of `tokens` may come from the first `end` tokens of `source`."""
        if source.weights != self._weights and source.filled > 0:
            return 0
        common = _common_prefix(tokens, source.tokens, min(end, len(tokens) - 1))
        whole = common == end == len(tokens) - 1
        return common if whole else common - common % self.prefill_chunk

    def _is_exact(self, slot: Slot) -> bool:
        """Whether all that the slot holds is what a fresh prefill gives, so that its next piece is so too."""
        return slot.filled == 0 or (slot.filled == slot.exact and slot.weights == self._weights)

    def _copy(self, source: Slot, target: Slot, shared: int) -> Copy:
        self.reused_tokens += shared - target.filled
        target.filled = target.exact = shared
        target.weights = self._weights
        return Copy(source.index, target.index)

    def _prefill(self, slot: Slot, length: int) -> Prefill:
        start = slot.filled
        if start == 0:
            slot.weights = self._weights
        if self._is_exact(slot) and start % self.prefill_chunk == 0:
            slot.exact = start + length
        slot.filled += length
        slot.chunks_served += 1
        self.prefilled_tokens += length
        self.recomputed_tokens += length if slot.recomputes else 0
        return Prefill(slot.index, start, tuple(slot.tokens[start : start + length]))

    def _to_boundary(self, position: int) -> int:
        return self.prefill_chunk - position % self.prefill_chunk

    def _next_tick(self) -> int:
        self._tick += 1
        return self._tick


def _common_prefix(left: list[int], right: list[int], limit: int) -> int:
    """Length of the longest common prefix, at most `limit`. Bisection, as comparing slices is fast."""
    low, high = 0, min(limit, len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
