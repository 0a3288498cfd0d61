"""A page in a real Chromium, driven through its debugging pipe: keys, scripts, pictures, and what it complains of."""

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
PATIENCE_SECONDS = 60.0
KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, "End": 35, "Home": 36}
KEYS |= {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}


def executable() -> str | None:
    """The browser of this machine, or None."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """One Chromium. Messages go through two pipes, each ended by a zero byte."""

    def __init__(self, process: subprocess.Popen[bytes], to: int, back: int) -> None:
        self.complaints: list[str] = []
        self._process = process
        self._to = to
        self._back = back
        self._number = 0
        self._rest = b""
        self._events: list[dict[str, Any]] = []

    def call(self, method: str, session: str | None = None, **values: Any) -> dict[str, Any]:
        """Ask for something and wait for the answer."""
        self._number += 1
        number = self._number
        asked = {"id": number, "method": method, "params": values} | ({"sessionId": session} if session else {})
        os.write(self._to, json.dumps(asked).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return dict(answer["result"])
            self._take(answer)

    def event(self, method: str) -> dict[str, Any]:
        """The next event of a name, also one that came while something else was waited for."""
        while True:
            for event in self._events:
                if event["method"] == method:
                    self._events.remove(event)
                    return event
            self._take(self._next())

    def page(self, uri: str = "about:blank") -> "Page":
        """A new page, loaded."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        page = Page(self, self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"])
        page.listen()
        if uri != "about:blank":
            page.go(uri)
        return page

    def _take(self, event: dict[str, Any]) -> None:
        values, method = event.get("params", {}), event.get("method", "")
        if method == "Log.entryAdded" and values["entry"]["level"] in ("error", "warning"):
            self.complaints.append(values["entry"]["text"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(str(values["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and values["type"] in ("error", "warning", "assert"):
            self.complaints.append(str(values["args"]))
        elif method == "Page.javascriptDialogOpening":
            self.complaints.append(f"a dialog opened: {values['message']}")
        self._events.append(event)

    def _next(self) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._back], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"Chromium said nothing for {PATIENCE_SECONDS:g} s"
            read = os.read(self._back, 1 << 20)
            assert read, "Chromium has ended"
            self._rest += read
        message, self._rest = self._rest.split(b"\0", 1)
        return dict(json.loads(message))


class Page:
    """A page, or a frame that has a process of its own."""

    def __init__(self, browser: Browser, session: str) -> None:
        self.browser = browser
        self.session = session

    def call(self, method: str, **values: Any) -> dict[str, Any]:
        """Ask this page for something."""
        return self.browser.call(method, self.session, **values)

    def listen(self) -> None:
        """Hear of errors, dialogs and frames."""
        for room in ("Page", "Runtime", "Log"):
            self.call(f"{room}.enable")
        self.call("Target.setAutoAttach", autoAttach=True, waitForDebuggerOnStart=False, flatten=True)

    def go(self, uri: str) -> None:
        """Load something and wait until it is there."""
        self.call("Page.navigate", url=uri)
        self.browser.event("Page.loadEventFired")

    def run(self, script: str) -> Any:
        """The value of an expression."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def press(self, *keys: str) -> None:
        """Press keys by name, or type a character."""
        for key in keys:
            code = KEYS.get(key, ord(key[0].upper()))
            values = {"key": key, "code": key, "windowsVirtualKeyCode": code}
            text = {"text": "\r"} if key == "Enter" else {"text": key} if len(key) == 1 else {}
            self.call("Input.dispatchKeyEvent", type="keyDown", **values, **text)
            self.call("Input.dispatchKeyEvent", type="keyUp", **values)

    def resize(self, width: int, height: int, *, dark: bool = False) -> None:
        """The size of the window in pixels, and whether a person likes it dark."""
        phone = width < 500
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def picture(self, file: Path) -> None:
        """A picture of what is in the window."""
        file.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))


@contextmanager
def chromium(folder: Path) -> Iterator[Browser]:
    """A browser that keeps its files in `folder`; it ends with the block."""
    name = executable()
    assert name is not None
    theirs, to = os.pipe()
    back, ours = os.pipe()
    # The browser reads from descriptor 3 and writes to 4.
    flags = "--headless --no-sandbox --disable-gpu --no-first-run --disable-dev-shm-usage --remote-debugging-pipe"
    command = f'exec "$0" {flags} --user-data-dir="$1" 3<&{theirs} 4>&{ours}'
    process = subprocess.Popen(
        ["bash", "-c", command, name, str(folder)],
        pass_fds=(theirs, ours),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(theirs)
    os.close(ours)
    browser = Browser(process, to, back)
    try:
        yield browser
        browser.call("Browser.close")
    finally:
        process.kill() if process.poll() is None else None
        process.wait()
        os.close(to)
        os.close(back)
