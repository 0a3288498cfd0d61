"""A finished conversation -> the token ids and the mask that a rollout of it would have given.

For supervised tuning: each message to learn stands where a policy would have sampled it. Its ids come after the same
prompt, are tokenised apart from it, and end with the token that ends a turn. The rest is what the renderer puts around.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from components.environments.tools import Tool
from components.errors import DataError, Problem
from components.rollout.renderer import Renderer
from components.types import Completion, FinishReason, Message, Role


@dataclass(frozen=True, slots=True)
class Transcript:
    """Two lists of one length. `completion_mask` is true where a policy would have sampled the token."""

    token_ids: tuple[int, ...]
    completion_mask: tuple[bool, ...]


def transcript(
    renderer: Renderer,
    messages: Sequence[Message],
    tools: Sequence[Tool] = (),
    *,
    learned: Collection[int] | None = None,
) -> Transcript:
    """Lay out a conversation as `run_episode` would, had the policy said the messages at the places `learned`.

    They are the assistant's messages by default, all of them. The other ones of the assistant are context, as worked
    examples are. What follows the last learned message is left out: a policy would never see it. Example, in the form
    `compact`, with T where the mask is true:

        [user("1+2"), assistant("3"), user("2+2"), assistant("4")]      1 + 2 = 3 \\n 2 + 2 = 4 \\n
                                                                        F F F F T T  F F F F T T

    Raises DataError where a place is none of an assistant, where there is none at all, or where the form has no way of
    writing a message.
    """
    places = _places(messages, learned)
    ids = list(renderer.start(messages[: places[0]], tools))
    mask = [False] * len(ids)
    for place, following in zip(places, [*places[1:], None], strict=True):
        said = renderer.write(messages[place])
        ids += said
        mask += [True] * len(said)
        if following is not None:
            completion = Completion(tuple(said), (0.0,) * len(said), (0,) * len(said), FinishReason.STOP)
            added = renderer.extend(completion, messages[place + 1 : following])
            ids += added
            mask += [False] * len(added)
    return Transcript(tuple(ids), tuple(mask))


def _places(messages: Sequence[Message], learned: Collection[int] | None) -> list[int]:
    own = [place for place, message in enumerate(messages) if message.role is Role.ASSISTANT]
    places = own if learned is None else sorted(set(learned))
    if not places:
        roles = [str(message.role) for message in messages]
        raise DataError(Problem("messages", roles, "hold no message of the assistant that could be learned"))
    if strangers := sorted(set(places) - set(own)):
        raise DataError(Problem("learned", strangers, f"are no places of messages of the assistant; those are {own}"))
    return places
