"""Pictures of docs/images: `python -m tests.dashboards.pictures WHAT ...`.

`report REPORT.html`: the first screen of this report and of the searches in `STATES`.
`terminal SEARCH`: `parlay status`, `parlay status --all` and the live table halfway, of a search of over 100 trials.
"""

from __future__ import annotations

import io
import math
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from rich.console import Console, RenderableType
from rich.text import Text

from dashboards.report.page import report_page
from dashboards.search_view import SearchView
from dashboards.terminal.live_table import LiveView
from orchestrator.records.lookup import find_search
from tests.chromium import Tab, started_chromium
from tests.dashboards.report.searches import STATES
from tests.dashboards.searches import START
from tests.sources import ROOT
from trials.ledger.events import EventKind
from trials.ledger.fold import fold
from trials.ledger.journal import Journal

_LOOKS = {"desktop": (1440, 900, "light"), "dark": (1440, 900, "dark"), "phone": (390, 844, "light")}
_PARLAY = (sys.executable, "-m", "orchestrator.cli.main")


def take_reports(tab: Tab, report: str) -> None:
    pages = {"report": Path(report).read_text(encoding="utf-8")}
    for name, search in STATES.items():
        pages[f"report-{name.replace('_', '-')}"] = report_page(SearchView.of(search().record, START + 660))
    for name, page in pages.items():
        for look in _LOOKS:
            _take(tab, page, _LOOKS[look], f"{name}-{look}")


def take_terminals(tab: Tab, search: str) -> None:
    for columns, lines in ((80, 24), (140, 40)):
        views = {
            "status": (f"parlay status {search}", _printed(("status", search), columns)),
            "searches": ("parlay status --all", _printed(("status", "--all"), columns)),
            "live": (f"parlay watch {search}", _live(search, columns, lines)),
        }
        for name, (title, screen) in views.items():
            console = Console(record=True, width=columns, file=io.StringIO(), highlight=False)
            console.print(screen)
            page = f"<body style='margin:0'>{console.export_svg(title=title)}"
            width, height = re.findall(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', page)[0]
            look = (math.ceil(float(width)), math.ceil(float(height)), "light")
            _take(tab, page, look, f"terminal-{name}-{columns}x{lines}")


def _printed(arguments: tuple[str, ...], columns: int) -> Text:
    """Output of the command on a terminal of this width."""
    environment = os.environ | {"TERM": "xterm-256color", "FORCE_COLOR": "1", "COLUMNS": str(columns)}
    done = subprocess.run((*_PARLAY, *arguments), cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    return Text.from_ansi(done.stdout)


def _live(search: str, columns: int, lines: int) -> RenderableType:
    """Live table when about half of the search's events had happened and a trial was submitted."""
    found = find_search(search, None)
    events = Journal(found.folder.journal).read()
    starts = [event.seq for event in events[: len(events) // 2] if event.kind is EventKind.ATTEMPT_SUBMITTED]
    record = fold(found.folder.search_id, events[: starts[-1]])
    assert record is not None, "the search has no events"
    ended_at = events[-1].at
    view = LiveView(io.StringIO(), lambda: ended_at)
    view._console.size = (columns, lines)
    view._show(record)
    return view._render()


def _take(tab: Tab, page: str, look: tuple[int, int, str], name: str) -> None:
    """Write the picture of this page, with few colours so that it is small."""
    picture = ROOT / "docs" / "images" / f"{name}.png"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "page.html"
        file.write_text(page, encoding="utf-8")
        tab.look(*look)
        tab.open(file.as_uri())
        tab.picture(picture)
    Image.open(picture).convert("RGB").quantize(128).save(picture, optimize=True)


if __name__ == "__main__":
    take = {"report": take_reports, "terminal": take_terminals}[sys.argv[1]]
    with started_chromium() as chromium, chromium.tab() as tab:
        take(tab, sys.argv[2])
