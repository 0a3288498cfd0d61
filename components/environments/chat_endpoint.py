"""Messages -> the next message of another model, behind an OpenAI-compatible endpoint (/chat/completions)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import httpx2
from pydantic import Field

from components.config import config
from components.environments.gate import Gate, ToolLimits, TransientToolError
from components.environments.sizes import short_repr
from components.errors import ConfigError, Problem, ToolFailedError
from components.types import Message

_FOR_A_MOMENT = {408, 425, 429, 500, 502, 503, 504}


@config
class EndpointConfig:
    """Where another model answers: `url` up to and including /v1, and the `model` as the server names it.

    `token_file` holds a bearer token. `limits` hold over all episodes of a process; an answer that has not come after
    `timeout_seconds` is asked for again, as is one of a server that is busy.
    """

    url: str
    model: str
    token_file: str | None = None
    temperature: Annotated[float, Field(ge=0)] = 0.0
    max_tokens: Annotated[int, Field(ge=1)] = 512
    timeout_seconds: Annotated[float, Field(gt=0)] = 120.0
    limits: ToolLimits = ToolLimits(concurrency=16, retries=3)

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ConfigError(Problem("url", self.url, "must begin with http:// or https://"))


class ChatEndpoint:
    """Another model. One object serves all episodes, from any event loop; `name` stands in messages and counters."""

    def __init__(self, settings: EndpointConfig, *, name: str) -> None:
        self._settings = settings
        self._gate = Gate(name, settings.limits)
        self._name = name

    async def answer(self, messages: Sequence[Message], *, seed: int = 0) -> str:
        """The text of its next message, after system, user and assistant messages of texts.

        `seed` makes servers that honour one answer the same twice. Raises ToolFailedError where there is no answer.
        """
        settings = self._settings
        body = {
            "model": settings.model,
            "messages": [{"role": message.role.value, "content": message.content} for message in messages],
            "temperature": settings.temperature,
            "max_tokens": settings.max_tokens,
            "seed": seed,
        }
        return await self._gate.call(lambda: self._asked(body))

    async def _asked(self, body: dict[str, Any]) -> str:
        settings = self._settings
        token = Path(settings.token_file).read_text(encoding="utf-8").strip() if settings.token_file else None
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            async with httpx2.AsyncClient(headers=headers, timeout=settings.timeout_seconds, trust_env=False) as client:
                response = await client.post(f"{settings.url.rstrip('/')}/chat/completions", json=body)
        except httpx2.TransportError as error:
            raise TransientToolError(f"{settings.url}: {type(error).__name__}: {error}") from error
        if response.status_code in _FOR_A_MOMENT:
            raise TransientToolError(f"{settings.url} answered {response.status_code}")
        if response.status_code != 200:
            told = short_repr(response.text)
            raise ToolFailedError(f"{self._name}: {settings.url} answered {response.status_code}: {told}")
        try:
            content = response.json()["choices"][0]["message"]["content"]
        except (ValueError, KeyError, IndexError, TypeError) as error:
            told = short_repr(response.text)
            raise ToolFailedError(f"{self._name}: {settings.url} answered what is no completion: {told}") from error
        return content if isinstance(content, str) else ""
