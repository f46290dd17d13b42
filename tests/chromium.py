"""Real Chromium for tests: headless, driven through a pipe by the DevTools protocol, without a library.

Needs only Debian's package `chromium`: the protocol is JSON on two file descriptors, and no port is opened.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

NO_CHROMIUM = "no Chromium installed"

_TIMEOUT_S = 240.0
"""For whatever is waited for: a browser's first start, or a page's drawing, on a machine that does much else."""
_OPTIONS = (
    "--headless",
    "--remote-debugging-pipe",
    "--no-first-run",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--no-sandbox",  # which root's Chromium cannot have; it only ever opens pages of these tests
)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Chromium]:
    """The session's browser."""
    with started_chromium() as found:
        yield found


@pytest.fixture
def tab(chromium: Chromium) -> Iterator[Tab]:
    """A tab of its own in a profile of its own: no cookie of another test."""
    with chromium.tab() as found:
        yield found


@contextmanager
def started_chromium() -> Iterator[Chromium]:
    """A browser, ended with all its processes; skips the test where there is none."""
    program = chromium_program()
    if program is None:
        pytest.skip(NO_CHROMIUM)
    place = tempfile.TemporaryDirectory(prefix="parlay-chromium-", dir="/tmp", ignore_cleanup_errors=True)
    with place as folder, closing(Chromium(program, Path(folder))) as found:
        yield found


def chromium_program() -> str | None:
    return shutil.which("chromium")


class Chromium:
    """The browser's process and the line to it; for one thread. What goes wrong on the line is an AssertionError."""

    def __init__(self, program: str, folder: Path):
        theirs, self._ours = os.pipe()
        self._heard, said = os.pipe()
        self._log = folder / "chromium.log"
        on_its_ends = ("bash", "-c", f'exec "$@" 3<&{theirs} 4>&{said}', "bash")
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*on_its_ends, program, *_OPTIONS, f"--user-data-dir={folder}/profile", "about:blank"],
                env=os.environ | {"HOME": str(folder)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(theirs, said),
                start_new_session=True,
            )
        os.close(theirs)
        os.close(said)
        self._rest = b""
        self._number = 0
        self._tabs: dict[str, Tab] = {}

    @contextmanager
    def tab(self) -> Iterator[Tab]:
        """An empty tab with a profile of its own, closed afterwards."""
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self._tabs[session] = tab = Tab(self, session)
        try:
            for domain in ("Page", "Runtime", "Log", "Network"):
                tab.call(f"{domain}.enable")
            yield tab
        finally:
            del self._tabs[session]
            self.call("Target.disposeBrowserContext", browserContextId=context)

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """The result of a command of the DevTools protocol."""
        self._number += 1
        number = self._number
        message = {"id": number, "method": method, "params": parameters}
        text = json.dumps(message | ({} if session is None else {"sessionId": session}))
        os.write(self._ours, text.encode() + b"\0")
        deadline = time.monotonic() + _TIMEOUT_S
        while (answer := self._next(deadline)).get("id") != number:
            if "method" in answer and (tab := self._tabs.get(answer.get("sessionId", ""))) is not None:
                tab.events.append(answer)
        assert "error" not in answer, f"{method}: {answer['error']}"
        return answer["result"]

    def close(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._ours)
        os.close(self._heard)

    def _next(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._heard], [], [], max(0.0, deadline - time.monotonic()))
            piece = os.read(self._heard, 2**16) if ready else b""
            assert piece, f"Chromium does not answer: {self._log.read_text(errors='replace')[-2000:]}"
            self._rest += piece
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)


class Tab:
    """One page. `events` are what the browser told of it and nobody has taken yet, oldest first."""

    def __init__(self, browser: Chromium, session: str):
        self._browser = browser
        self._session = session
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **parameters)

    def look(self, width: int = 1280, height: int = 900, scheme: str = "light", media: str = "") -> None:
        """Have a window of this size, in CSS pixels, and this taste."""
        is_phone = width < 600
        size = {"width": width, "height": height, "deviceScaleFactor": 2 if is_phone else 1, "mobile": is_phone}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", media=media, features=features)

    def open(self, address: str) -> None:
        """Go there, and return once the page has been loaded with its scripts."""
        self.call("Page.navigate", url=address)
        self.until(f"location.href.split('#')[0] === {json.dumps(address)} && document.readyState === 'complete'")

    def ask(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page; that of its promise where it is one."""
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, f"{expression}: {answer['exceptionDetails']}"
        return answer["result"].get("value")

    def until(self, expression: str) -> None:
        """Wait until the expression is true; while it cannot be evaluated it is not."""
        deadline = time.monotonic() + _TIMEOUT_S
        while not self.ask(f"(() => {{ try {{ return {expression}; }} catch {{ return false; }} }})()"):
            assert time.monotonic() < deadline, f"never came: {expression}; {self.complaints()}"
            time.sleep(0.05)

    def press(self, key: str, code: int, text: str = "") -> None:
        """A key, down and up: its name and its number."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, text=text)

    def click(self, selector: str) -> None:
        """Click the middle of the first element that matches, with a mouse."""
        self.ask(
            f"document.querySelector({json.dumps(selector)}).scrollIntoView({{block: 'center', behavior: 'instant'}})"
        )
        box = f"(r => [r.x + r.width / 2, r.y + r.height / 2])(document.querySelector({json.dumps(selector)})"
        x, y = self.ask(f"{box}.getBoundingClientRect())")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def violations(self) -> list[str]:
        """Violations that axe-core finds in the page: the rule, and the elements."""
        # Its package is not imported, as only this file of it is used.
        self.ask(files("axe_core_python").joinpath("axe.min.js").read_text(encoding="utf-8"))
        found = self.ask("axe.run({resultTypes: ['violations']})")["violations"]
        return [f"{rule['id']}: {node['html'][:150]}" for rule in found for node in rule["nodes"]]

    def complaints(self) -> list[str]:
        """Exceptions of the page, and warnings and errors of the console."""
        return [words for event in self.events if (words := _complaint(event)) is not None]

    def requests(self) -> list[str]:
        """The addresses that the page has asked for, beside its own data."""
        asked = [e["params"]["request"]["url"] for e in self.events if e["method"] == "Network.requestWillBeSent"]
        return [url for url in asked if not url.startswith(("data:", "blob:"))]

    def picture(self, path: Path) -> None:
        """Screenshot of the window as a PNG."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))


def _complaint(event: dict[str, Any]) -> str | None:
    parameters = event["params"]
    if event["method"] == "Runtime.exceptionThrown":
        return json.dumps(parameters["exceptionDetails"])
    if event["method"] == "Log.entryAdded" and parameters["entry"]["level"] in ("warning", "error"):
        return json.dumps(parameters["entry"])
    if event["method"] == "Runtime.consoleAPICalled" and parameters["type"] in ("warning", "error", "assert"):
        return json.dumps(parameters["args"])
    return None
