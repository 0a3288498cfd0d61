"""Python for a policy: code in, what it printed and the value of its last expression out.

    python = PythonTool(isolation)      # in an environment's constructor; ConfigError where it cannot be had
    self.tools = (python.tool,)
    await python.close()                # in the environment's close

Every call starts afresh: no variable of an earlier one is left. Files are: the calls of one episode share a folder, in
which they start, and which is gone when the tool is closed.
"""

import asyncio

from components.environments.sandbox.limits import DEFAULT_LIMITS, Execution, Isolation, Limits, Outcome
from components.environments.sandbox.pool import Folder, open_sandbox
from components.environments.tools import Tool, ToolError, tool

_QUEUE_SECONDS = 120.0
_SHOWN_BEFORE_ERROR = 150


class PythonTool:
    """The tool `python` of one episode."""

    def __init__(self, isolation: Isolation, limits: Limits = DEFAULT_LIMITS, *, max_characters: int = 4000) -> None:
        """Raises ConfigError where this machine lacks the isolation. Nothing is started before the first call."""
        self._sandbox = open_sandbox(isolation)
        self._limits = limits
        self._folder: Folder | None = None
        self._opening = asyncio.Lock()
        # The wait for a free worker counts, too, and is not the code's fault.
        self.tool: Tool = tool(self.python, timeout=limits.seconds + _QUEUE_SECONDS, max_characters=max_characters)

    async def python(self, code: str) -> str:
        """Run Python code. Gives what it prints, and the value of the last line if that is an expression.

        Args:
            code: a whole program; variables of earlier calls are gone, files in the working directory are kept
        """
        execution = await self.run(code)
        if execution.ok:
            parts = [execution.stdout.rstrip("\n"), execution.value or ""]
            return "\n".join(part for part in parts if part)
        raise ToolError(_told(execution))

    async def run(self, code: str) -> Execution:
        """As the tool, with everything that is known of the execution."""
        async with self._opening:
            if self._folder is None:
                self._folder = await self._sandbox.open_folder(self._limits)
        return await self._sandbox.run(code, limits=self._limits, folder=self._folder)

    async def close(self) -> None:
        """Remove the episode's folder."""
        folder, self._folder = self._folder, None
        if folder is not None:
            await self._sandbox.close_folder(folder)


def _told(execution: Execution) -> str:
    """What went wrong, and the end of what was printed before that."""
    words = execution.error or f"ended with exit code {execution.exit_code}"
    if execution.outcome in (Outcome.TIME, Outcome.OUTPUT, Outcome.KILLED):
        words = f"the code {words}"
    printed = execution.stdout.rstrip("\n")[-_SHOWN_BEFORE_ERROR:]
    return f"{words}\nprinted before that: {printed}" if printed else words
