"""A server of the Model Context Protocol -> tools of an environment: what a recipe says about it.

    environment:
      mcp:
        - command: [python, my_server.py]         # started here, spoken to over its stdin and stdout
        - url: http://localhost:8000/mcp          # streamable HTTP
          token_file: /var/run/secrets/token

All episodes of a process share one session with each server, and with it whatever state the server keeps.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated

from pydantic import Field

from components.config import config
from components.environments.gate import ToolLimits
from components.environments.tools import Tool
from components.errors import ConfigError, Problem


@config
class McpServer:
    """One server: a `command` to start, or a `url`.

    `name` is put before a tool's name where two tools have the same one. `tools` are those that the policy may call;
    all, where it is left out. `environment` are variables of the process beside PATH and HOME, which are all that it
    gets. `token_file` holds a bearer token. `timeout_seconds` and `max_characters` are those of each call, `limits` of
    each tool. A server that went away is started, or connected to, up to `connect_tries` times in a row, each within
    `connect_seconds`; a call that was lost with it fails its episode and is not repeated, as it may have had effects.
    """

    command: tuple[str, ...] = ()
    url: str | None = None
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]*$")] = ""
    tools: tuple[str, ...] | None = None
    environment: Mapping[str, str] = Field(default_factory=dict)
    folder: str | None = None
    token_file: str | None = None
    timeout_seconds: Annotated[float, Field(gt=0)] = 30.0
    connect_seconds: Annotated[float, Field(gt=0)] = 20.0
    connect_tries: Annotated[int, Field(ge=1)] = 3
    max_characters: Annotated[int, Field(ge=1)] = 8000
    limits: ToolLimits = ToolLimits()

    def __post_init__(self) -> None:
        problems = []
        if bool(self.command) == bool(self.url):
            problems.append(Problem("command, url", (self.command, self.url), "give exactly one of the two"))
        if self.url and not self.url.startswith(("http://", "https://")):
            problems.append(Problem("url", self.url, "must begin with http:// or https://"))
        for key, value in (("environment", self.environment), ("folder", self.folder)):
            if value and self.url:
                problems.append(Problem(key, value, "has no effect with a url"))
        if self.token_file and self.command:
            problems.append(Problem("token_file", self.token_file, "has no effect with a command"))
        if problems:
            raise ConfigError(problems)

    @property
    def label(self) -> str:
        """How messages name it."""
        return self.name or self.url or " ".join(self.command)


async def with_server_tools(own: Sequence[Tool], servers: Sequence[McpServer]) -> tuple[Tool, ...]:
    """The environment's own tools, and those of the servers, which are connected to where they are not yet.

    A server's tool whose name another tool has too is called `server_tool`. Raises ToolFailedError where a server
    cannot be reached, ConfigError where names stay equal or a tool that is asked for is not there.
    """
    # Loading the package takes half a second, which only those who have a server should wait for.
    from components.environments.mcp_session import tools_of

    offered = [(server, await tools_of(server)) for server in servers]
    times = Counter([each.name for each in own] + [each.name for _, tools in offered for each in tools])
    together = list(own)
    for number, (server, tools) in enumerate(offered, start=1):
        prefix = server.name or f"server{number}"
        together += [replace(each, name=f"{prefix}_{each.name}") if times[each.name] > 1 else each for each in tools]
    twice = [name for name, count in Counter(each.name for each in together).items() if count > 1]
    if twice:
        message = "is the name of two tools; give the servers different names"
        raise ConfigError(Problem("environment.mcp", ", ".join(twice), message))
    return tuple(together)
