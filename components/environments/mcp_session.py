"""One session with a server of the Model Context Protocol, for any number of episodes at the same time.

A session lives in a task of its own, as the transport's own tasks end with the one that opened it. It ends with the
event loop. When the connection is lost, all calls on the way fail as an infrastructure failure, and the next one
connects again.
"""

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, Any, TextIO, cast
from weakref import WeakKeyDictionary

import httpx2
import mcp_types
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

from components.config import dump
from components.environments import json_schema
from components.environments.gate import Gate, ToolLimits
from components.environments.mcp_servers import McpServer
from components.environments.sizes import cut
from components.environments.tools import Tool, ToolError, words_of
from components.errors import ConfigError, Problem, ToolFailedError

_ANSWERS = {mcp_types.INVALID_PARAMS, mcp_types.METHOD_NOT_FOUND, mcp_types.INTERNAL_ERROR}
"""Errors that a server answers a call with, and goes on."""
_MAX_PAGES = 100
_FIRST_PAUSE = 0.1
_MAX_SAID = 500

Opened = tuple[Client, tuple[mcp_types.Tool, ...]]


class Session:
    """The connection to one server, opened when it is needed. Used within one event loop."""

    def __init__(self, server: McpServer) -> None:
        self._server = server
        self._holder: asyncio.Task[None] | None = None
        self._opened: Opened | None = None
        self._opening = asyncio.Lock()
        self._lost = asyncio.Event()

    async def tools(self) -> tuple[mcp_types.Tool, ...]:
        """What the server offers. Raises ToolFailedError where it cannot be reached."""
        return (await self._connected())[1]

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Call a tool. Raises ToolError with the server's words, ToolFailedError where the connection is lost."""
        client, _ = await self._connected()
        try:
            result = await client.call_tool(name, dict(arguments))
        except MCPError as error:
            if error.code in _ANSWERS:
                raise ToolError(error.message) from error
            if self._opened is not None and self._opened[0] is client:
                self._lost.set()
                self._opened = None
            message = f"the MCP server {self._server.label} went away during a call of {name}: {error.message}"
            raise ToolFailedError(message) from error
        text = _text_of(result)
        if result.is_error:
            raise ToolError(text)
        return text

    async def _connected(self) -> Opened:
        async with self._opening:
            if self._opened is not None and self._holder is not None and not self._holder.done():
                return self._opened
            problem = ""
            for tries in range(self._server.connect_tries):
                if tries:
                    await asyncio.sleep(_FIRST_PAUSE * 2 ** (tries - 1))
                problem = await self._open()
                if self._opened is not None:
                    return self._opened
        raise ToolFailedError(f"the MCP server {self._server.label} cannot be reached: {problem}")

    async def _open(self) -> str:
        """Try once; what went wrong, where there is no session afterwards."""
        if self._holder is not None:
            await _ended(self._holder)
        self._opened, self._lost = None, asyncio.Event()
        ready: asyncio.Future[Opened] = asyncio.get_running_loop().create_future()
        with tempfile.TemporaryFile("w+") as said:
            holder = self._holder = asyncio.create_task(self._hold(ready, said, self._lost), name="MCP session")
            holder.add_done_callback(_looked_at)
            await asyncio.wait((ready, holder), timeout=self._server.connect_seconds, return_when="FIRST_COMPLETED")
            if ready.done():
                self._opened = ready.result()
                return ""
            late = not holder.done()
            await _ended(holder)
            problem = f"no answer within {self._server.connect_seconds:g} seconds" if late else _cause_of(holder)
            said.seek(0)
            words = said.read()[-_MAX_SAID:].strip()
        return f"{problem}; it said: {words}" if words else problem

    async def _hold(self, ready: asyncio.Future[Opened], said: IO[str], lost: asyncio.Event) -> None:
        """Open the session, and keep it until it is lost or the loop ends."""
        async with Client(_transport(self._server, said), cache=None) as client:
            tools = await _listed(client)
            if not ready.done():
                ready.set_result((client, tools))
            await lost.wait()


async def tools_of(server: McpServer) -> tuple[Tool, ...]:
    """The tools of a server, by their own names; calls go through the session that this event loop has with it.

    Raises ToolFailedError where the server cannot be reached, DataError that names the field where a schema is none,
    ConfigError where a tool that the recipe names is not there.
    """
    session = _session_with(server)
    offered = {each.name: each for each in await session.tools()}
    missing = [name for name in server.tools or () if name not in offered]
    if missing:
        message = f"the MCP server {server.label} has no such tool; it has: {', '.join(offered)}"
        raise ConfigError(Problem("environment.mcp.tools", ", ".join(missing), message))
    return tuple(_tool(session, server, offered[name]) for name in (server.tools or offered))


def _tool(session: Session, server: McpServer, offered: mcp_types.Tool) -> Tool:
    async def call(**arguments: Any) -> str:
        return await session.call(offered.name, arguments)

    where = f"tool {offered.name} of the MCP server {server.label}"
    parameters = json_schema.normalised(offered.input_schema, f"{where}, input schema")
    return Tool(
        name=offered.name,
        description=" ".join((offered.description or "").split()),
        parameters={"type": "object", **parameters},
        function=call,
        timeout=server.timeout_seconds,
        max_characters=server.max_characters,
        gate=_gate_of(server, offered.name),
    )


_sessions: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Session]] = WeakKeyDictionary()
_gates: dict[tuple[str, str], Gate] = {}


def _session_with(server: McpServer) -> Session:
    """The one session of this event loop with a server, whatever two entries for it say of calls and names.

    Those of loops that have ended are forgotten.
    """
    for loop in [each for each in _sessions if each.is_closed()]:
        del _sessions[loop]
    known = _sessions.setdefault(asyncio.get_running_loop(), {})
    of_calls = ("name", "tools", "timeout_seconds", "max_characters", "limits")
    key = json.dumps({name: value for name, value in dump(server).items() if name not in of_calls}, sort_keys=True)
    return known.setdefault(key, Session(server))


def _gate_of(server: McpServer, name: str) -> Gate | None:
    if server.limits == ToolLimits():
        return None
    return _gates.setdefault((json.dumps(dump(server), sort_keys=True), name), Gate(name, server.limits))


@asynccontextmanager
async def _transport(server: McpServer, said: IO[str]) -> AsyncIterator[Any]:
    """The streams to a server. What a process writes to its stderr goes into `said`."""
    if server.command:
        command, *arguments = server.command
        process = StdioServerParameters(
            command=command, args=arguments, env=dict(server.environment), cwd=server.folder
        )
        async with stdio_client(process, errlog=cast(TextIO, said)) as streams:
            yield streams
        return
    token = Path(server.token_file).read_text(encoding="utf-8").strip() if server.token_file else None
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    # How long an answer may take is bounded by each call.
    seconds = httpx2.Timeout(server.connect_seconds, read=None)
    async with (
        httpx2.AsyncClient(headers=headers, timeout=seconds) as http,
        streamable_http_client(str(server.url), http_client=http) as streams,
    ):
        yield streams


async def _listed(client: Client) -> tuple[mcp_types.Tool, ...]:
    tools: list[mcp_types.Tool] = []
    cursor: str | None = None
    for _ in range(_MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        cursor = page.next_cursor
        if cursor is None:
            break
    return tuple(tools)


def _text_of(result: mcp_types.CallToolResult) -> str:
    """What of a result a language model can read: texts as they are, of everything else what it is."""
    parts = []
    for block in result.content:
        if isinstance(block, mcp_types.TextContent):
            parts.append(block.text)
        elif isinstance(block, mcp_types.ImageContent | mcp_types.AudioContent):
            parts.append(f"({block.type}, {block.mime_type})")
        elif isinstance(block, mcp_types.ResourceLink):
            parts.append(f"(resource {block.uri})")
        elif isinstance(block.resource, mcp_types.TextResourceContents):
            parts.append(block.resource.text)
        else:
            parts.append(f"(resource {block.resource.uri})")
    if not parts and result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False)
    return "\n".join(parts)


async def _ended(holder: asyncio.Task[None]) -> None:
    """Wait until a session is closed; a process that does not want to end is killed by the transport in that time."""
    holder.cancel()
    await asyncio.wait((holder,), timeout=10.0)


def _cause_of(holder: asyncio.Task[None]) -> str:
    error = holder.exception() if holder.done() and not holder.cancelled() else None
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return cut(f"{type(error).__name__}: {words_of(error)}", _MAX_SAID) if error else "it ended at once"


def _looked_at(holder: asyncio.Task[None]) -> None:
    """An error that is looked at is not reported as forgotten; whoever calls is told of it."""
    if not holder.cancelled():
        holder.exception()
