"""A conversation with a user who is played by a script or by another model; the end of it is graded.

What the user says are observations, as results of tools are: they are read by the policy, and never trained on.
"""

import hashlib
from abc import abstractmethod
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from components.environments.chat_endpoint import ChatEndpoint
from components.environments.environment import Observation, ToolEnvironment
from components.types import Message, Role, Task

GOODBYE = "[done]"
"""What a model that plays the user writes when it has what it wanted."""


@runtime_checkable
class User(Protocol):
    """Who talks to the policy in one episode."""

    async def __call__(self, conversation: Sequence[Message]) -> str | None:
        """The next thing to say, or None to end it. `conversation` holds what both have said: USER and ASSISTANT."""
        ...


class ScriptedUser:
    """Says its lines one after the other, whatever it hears, and goes."""

    def __init__(self, *lines: str) -> None:
        self._lines = iter(lines)

    async def __call__(self, conversation: Sequence[Message]) -> str | None:
        """The next line."""
        return next(self._lines, None)


class ModelUser:
    """Another model that plays the user.

    `instruction` says who it is, what it wants, and what it knows; that it ends the conversation with GOODBYE is added.
    It sees neither system prompt nor tools of the policy. `key` makes its randomness a function of it and of the turn.
    """

    def __init__(self, endpoint: ChatEndpoint, instruction: str, *, key: str = "") -> None:
        self._endpoint = endpoint
        self._system = Message(Role.SYSTEM, f"{instruction}\n\nWhen you have what you wanted, write {GOODBYE} alone.")
        self._key = key

    async def __call__(self, conversation: Sequence[Message]) -> str | None:
        """What it says; None where that holds GOODBYE. Raises ToolFailedError where the endpoint gives no answer."""
        others = {Role.USER: Role.ASSISTANT, Role.ASSISTANT: Role.USER}
        seen = [Message(others[message.role], message.content) for message in conversation]
        digest = hashlib.sha256(f"{self._key}\0{len(conversation)}".encode()).digest()
        said = await self._endpoint.answer([self._system, *seen], seed=int.from_bytes(digest[:4], "big") >> 1)
        return None if GOODBYE in said else said


class UserEnvironment(ToolEnvironment):
    """A ToolEnvironment in which a text without a call is said to a user, who answers or goes.

    A subclass gives `tasks`, `grade` and `user`. The first thing that the user says is the task's prompt. `answer`,
    which is graded when the user has gone or has said `max_user_turns` things, is the last text of the policy; what
    both have said is in `conversation`.
    """

    max_user_turns = 10
    conversation: list[Message]
    _user: User

    @abstractmethod
    def user(self, task: Task) -> User:
        """Who talks to the policy in the episode of this task."""

    async def reset(self, task: Task) -> Observation:
        """Open the episode with what the user says first."""
        self._user = self.user(task)
        self.conversation = [Message(Role.USER, task.prompt)]
        return await super().reset(task)

    async def step(self, message: Message) -> Observation:
        """Run the calls, or say the text to the user."""
        if message.tool_calls or message.malformed_calls:
            return await super().step(message)
        self.answer = message.content
        self.conversation.append(Message(Role.ASSISTANT, message.content))
        if sum(said.role is Role.USER for said in self.conversation) >= self.max_user_turns:
            return Observation((), done=True)
        reply = await self._user(tuple(self.conversation))
        if reply is None:
            return Observation((), done=True)
        self.conversation.append(Message(Role.USER, reply))
        return Observation((self.conversation[-1],))
