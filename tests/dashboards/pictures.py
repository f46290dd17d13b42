"""Pictures of docs/images: `python -m tests.dashboards.pictures WHAT ...`.

`report REPORT.html`: the first screen of this report and of the searches in `STATES`.
`terminal SEARCH`: `parlay status`, `parlay status --all` and the live table halfway, of a search of over 100 trials.
`service LIVE FAILED`: pages of the running `parlay serve --port N`; LIVE runs, and t0001 of FAILED has a log.
`mlflow SEARCH`: pages of the running `parlay dashboard`, of an ended search that really ran.
"""

from __future__ import annotations

import io
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from PIL import Image
from rich.console import Console, RenderableType
from rich.text import Text

from dashboards.mlflow.backend_store import tracking_uri
from dashboards.mlflow.links import run_link, searches_link
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
from trials.ledger.location import home_folder

_LOOKS = {"desktop": (1440, 900, "light"), "dark": (1440, 900, "dark"), "phone": (390, 844, "light")}
_NO_ASSISTANT = {"mlflow.assistant.fab.autoOpenedOnFirstLoad_v1": "true", "mlflow.assistant.panelOpen_v1": "false"}
"""Storage of MLflow's pages by which its assistant stays closed."""
_DRAWING_S = 4.0
"""For MLflow's charts, which say nowhere that they are drawn."""
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


def take_service(tab: Tab, live: str, failed: str) -> None:
    server = _signed_in(tab, "serve")
    is_live = "document.getElementById('line').dataset.state === 'live'"
    for name, look in (("list", "desktop"), ("phone", "phone")):
        _open(tab, f"{server}/", f"document.body.textContent.includes('{live}')", look)
        _save(tab, f"service-{name}")
    _open(tab, f"{server}/searches/{failed}/logs/t0001", "document.querySelector('pre') !== null")
    _save(tab, "service-log")
    drawn = "document.querySelector('.tiles, .use') !== null"
    _open(tab, f"{server}/searches/{live}", f"{is_live} && {drawn}")
    _save(tab, "report-live")
    _open(tab, f"{server}/searches/{live}", f"{is_live} && {drawn}", "dark")
    tab.click("[data-opens=cancel]")
    tab.until("document.querySelector('dialog').open")
    _save(tab, "service-cancel")


def take_mlflow(tab: Tab, search: str) -> None:
    from mlflow import MlflowClient

    server = _signed_in(tab, "dashboard")
    for item, value in _NO_ASSISTANT.items():
        tab.ask(f"localStorage.setItem('{item}', '{value}')")
    client = MlflowClient(tracking_uri(None, home_folder()))
    experiments = [found.experiment_id for found in client.search_experiments()]
    wanted = f"tags.`parlay.search_id` = '{search}' AND tags.`parlay.kind` = 'search'"
    (parent,) = client.search_runs(experiments, wanted)
    experiment, best = parent.info.experiment_id, parent.data.tags["parlay.best_run_id"]
    system = run_link(experiment, best).replace("?", "/system-metrics?")
    for name, path, is_shown in (
        ("searches", searches_link(experiment), "document.body.textContent.includes('matching runs')"),
        ("search", run_link(experiment, parent.info.run_id), "document.body.textContent.includes('Launch the')"),
        ("system", system, "document.querySelectorAll('.js-plotly-plot').length > 1"),
    ):
        _open(tab, f"{server}/{path}", is_shown)
        time.sleep(_DRAWING_S)
        _save(tab, f"mlflow-{name}")


def _signed_in(tab: Tab, verb: str) -> str:
    """Sign in to the running server that this verb starts; its address."""
    command = (*_PARLAY, verb, "--page")
    address = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    tab.call("Page.navigate", url=address)
    tab.until("location.pathname === '/' && document.readyState === 'complete'")
    return address.partition("/enter")[0]


def _open(tab: Tab, address: str, is_shown: str, look: str = "desktop") -> None:
    """Open a page in a window; return once it is drawn. MLflow changes its address."""
    tab.look(*_LOOKS[look])
    tab.call("Page.navigate", url="about:blank")
    tab.call("Page.navigate", url=address)
    tab.until(f"document.readyState === 'complete' && {is_shown}")


def _take(tab: Tab, page: str, look: tuple[int, int, str], name: str) -> None:
    """Write the picture of this page."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "page.html"
        file.write_text(page, encoding="utf-8")
        tab.look(*look)
        tab.open(file.as_uri())
        _save(tab, name)


def _save(tab: Tab, name: str) -> None:
    """Write the picture of the window, with few colours so that it is small."""
    picture = ROOT / "docs" / "images" / f"{name}.png"
    tab.picture(picture)
    Image.open(picture).convert("RGB").quantize(128).save(picture, optimize=True)


if __name__ == "__main__":
    take = {"report": take_reports, "terminal": take_terminals, "service": take_service, "mlflow": take_mlflow}[
        sys.argv[1]
    ]
    with started_chromium() as chromium, chromium.tab() as tab:
        take(tab, *sys.argv[2:])
