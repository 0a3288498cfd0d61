"""An MCP server for tests: it keeps a code that no prompt holds, and can be made to hang, to crash and to refuse.

Run with a port to serve streamable HTTP, without one to serve over stdin and stdout.
"""

import asyncio
import os
import sys

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("desk", log_level="ERROR")


@server.tool()
def open_drawer(key: str, times: int = 1) -> str:
    """Open a drawer and
    read the code inside.
    """
    return f"{key}-4711 " * times


@server.tool()
def refuse(key: str) -> str:
    """Refuse."""
    raise ToolError(f"the key {key} is worn out")


@server.tool()
async def wait(seconds: float) -> str:
    """Wait."""
    await asyncio.sleep(seconds)
    return "waited"


@server.tool()
def size() -> dict[str, int]:
    """How large it is."""
    return {"width": 3}


@server.tool()
def process() -> str:
    """Who serves, and which variables it has."""
    return f"{os.getpid()} {sorted(os.environ)}"


@server.tool()
def crash() -> str:
    """End the process."""
    os._exit(3)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        server.run()
