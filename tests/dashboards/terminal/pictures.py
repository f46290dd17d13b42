"""Terminal pictures of docs/images: `python -m tests.dashboards.terminal.pictures SEARCH`.

`parlay status SEARCH`, `parlay status --all`, and the live table of the search halfway, at 80x24 and at 140x40.
"""

from __future__ import annotations

import argparse
import fcntl
import io
import math
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
from pathlib import Path

from PIL import Image
from rich.console import Console, RenderableType
from rich.text import Text

from dashboards.terminal.live_table import LiveView
from orchestrator.records.lookup import find_search
from tests.chromium import Chromium, started_chromium
from tests.sources import ROOT
from trials.ledger.events import EventKind
from trials.ledger.fold import fold
from trials.ledger.journal import Journal

_COLOURS = 64
_SIZES = {"80x24": (80, 24), "140x40": (140, 40)}
_PARLAY = (sys.executable, "-m", "orchestrator.cli.main")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("search", help="a search with more than a hundred trials")
    search = parser.parse_args().search
    with started_chromium() as chromium:
        for size, (columns, lines) in _SIZES.items():
            views = {
                "status": (f"parlay status {search}", _printed(("status", search), columns, lines)),
                "searches": ("parlay status --all", _printed(("status", "--all"), columns, lines)),
                "live": (f"parlay watch {search}", _live(search, columns, lines)),
            }
            for name, (title, screen) in views.items():
                _draw(chromium, screen, columns, title, ROOT / "docs" / "images" / f"terminal-{name}-{size}.png")


def _printed(arguments: tuple[str, ...], columns: int, lines: int) -> Text:
    """Output of the command on a terminal of this size."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    environment = os.environ | {"TERM": "xterm-256color", "PYTHONPATH": str(ROOT)}
    with subprocess.Popen((*_PARLAY, *arguments), stdout=theirs, stderr=theirs, env=environment):
        os.close(theirs)
        output = b"".join(iter(lambda: _read(ours), b""))
    os.close(ours)
    return Text.from_ansi(output.decode().replace("\r\n", "\n"))


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 2**16)
    except OSError:  # the terminal's other end is closed
        return b""


def _live(search: str, columns: int, lines: int) -> RenderableType:
    """Live table when about half of the search's events had happened and a trial was submitted."""
    found = find_search(search, None)
    events = Journal(found.folder.journal).read()
    starts = [event.seq for event in events[: len(events) // 2] if event.kind is EventKind.ATTEMPT_SUBMITTED]
    record = fold(found.folder.search_id, events[: starts[-1]])
    assert record is not None, "the search has no events"
    spec, ended_at = found.spec, events[-1].at
    view = LiveView(spec.objective, spec.global_batch_size, spec.baseline_key, io.StringIO(), lambda: ended_at)
    view._console.size = (columns, lines)
    view._show(record)
    return view._render()


def _draw(chromium: Chromium, screen: RenderableType, columns: int, title: str, file: Path) -> None:
    """Write the screen as a PNG with few colours, so that it is small."""
    console = Console(record=True, width=columns, file=io.StringIO(), highlight=False)
    console.print(screen)
    with tempfile.TemporaryDirectory() as folder, chromium.tab() as tab:
        page = Path(folder) / "screen.html"
        page.write_text(f"<body style='margin:0'>{console.export_svg(title=title)}", encoding="utf-8")
        width, height = _view_box(page.read_text(encoding="utf-8"))
        tab.look(width, height)
        tab.open(page.as_uri())
        tab.picture(file)
    Image.open(file).convert("RGB").quantize(_COLOURS).save(file, optimize=True)


def _view_box(svg: str) -> tuple[int, int]:
    width, height = re.findall(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)[0]
    return math.ceil(float(width)), math.ceil(float(height))


if __name__ == "__main__":
    main()
