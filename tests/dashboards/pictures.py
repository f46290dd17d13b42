"""Pictures of docs/images: `python -m tests.dashboards.pictures WHAT ...`.

`report REPORT.html`: the first screen of this report and of the searches in `STATES`.
`terminal SEARCH`: `parlay status`, `parlay status --all` and the live table halfway, of a search of over 100 trials.
`servers MANY REAL LIVE FAILED`: pages of `parlay serve` and `parlay dashboard`, which have to run on the same home.
MANY is a search with many trials, REAL an ended one whose trials really ran, LIVE one that still runs, and the trainer
of FAILED wrote a log.
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
from collections.abc import Callable
from pathlib import Path

from mlflow import MlflowClient
from PIL import Image
from rich.console import Console, RenderableType
from rich.text import Text

from dashboards.mlflow.backend_store import tracking_uri
from dashboards.mlflow.shared_views import SEARCHES, run_path, trials_key, view_path
from dashboards.report.data import report_data
from dashboards.report.page import report_page
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
_PARLAY = (sys.executable, "-m", "orchestrator.cli.main")
_MLFLOW_DRAWS_S = 3.0
"""For MLflow's charts, which say nowhere that they are drawn."""
_MLFLOW_STORAGE = {"mlflow.assistant.fab.autoOpenedOnFirstLoad_v1": "true", "mlflow.assistant.panelOpen_v1": "false"}
"""Storage of MLflow's pages by which its assistant stays closed."""
_SHOW_MORE = "[...document.querySelectorAll('button')].find(b => b.textContent === 'Show more')?.click()"
_CHARTS = "document.querySelectorAll('.js-plotly-plot').length > 1"


def take_reports(tab: Tab, report: str) -> None:
    pages = {"report": Path(report).read_text(encoding="utf-8")}
    for name, search in STATES.items():
        pages[f"report-{name.replace('_', '-')}"] = report_page(report_data(search().record, START + 660))
    for name, page in pages.items():
        for look in _LOOKS:
            _take_text(tab, page, _LOOKS[look], f"{name}-{look}")


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
            _take_text(tab, page, look, f"terminal-{name}-{columns}x{lines}")


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
    spec, ended_at = found.spec, events[-1].at
    view = LiveView(spec.objective, spec.global_batch_size, spec.baseline_key, io.StringIO(), lambda: ended_at)
    view._console.size = (columns, lines)
    view._show(record)
    return view._render()


def take_servers(tab: Tab, many: str, real: str, live: str, failed: str) -> None:
    service = _signed_in(tab, "serve")
    for name, look in (("list", "desktop"), ("phone", "phone")):
        _take_page(tab, f"{service}/", _has_text(live), f"service-{name}", look)
    _take_page(tab, f"{service}/searches/{failed}/logs/t0001", "document.querySelector('pre') !== null", "service-log")
    is_live = "document.getElementById('line').dataset.state === 'live'"
    _take_page(tab, f"{service}/searches/{live}", is_live, "report-live")
    ask = "document.querySelector('[data-opens=cancel]').click()"
    _take_page(tab, f"{service}/searches/{live}", is_live, "service-cancel", "dark", ask)
    mlflow = _signed_in(tab, "dashboard")
    for item, value in _MLFLOW_STORAGE.items():
        tab.ask(f"localStorage.setItem('{item}', '{value}')")
    client = MlflowClient(tracking_uri(None, home_folder()))
    experiments = [found.experiment_id for found in client.search_experiments()]
    (parent,) = client.search_runs(experiments, f"tags.`parlay.search_id` = '{real}' AND tags.`parlay.kind` = 'search'")
    number, best = parent.info.experiment_id, parent.data.tags["parlay.best_run_id"]
    trials = f"{view_path(number, trials_key(many))}&compareRunsMode=CHART"
    for name, path, is_shown in (
        ("searches", view_path(number, SEARCHES), _has_text("matching runs")),
        ("charts", trials, f"{_has_text('matching runs')} && {_CHARTS}"),
        ("search", run_path(number, parent.info.run_id), _has_text("measured layouts")),
        ("system", run_path(number, best, "/system-metrics"), _CHARTS),
    ):
        _take_page(tab, mlflow + path, is_shown, f"mlflow-{name}", then=_SHOW_MORE)


def _has_text(text: str) -> str:
    return f"document.body.textContent.includes('{text}')"


def _signed_in(tab: Tab, verb: str) -> str:
    """Sign in to the running server that this command starts; its address."""
    done = subprocess.run((*_PARLAY, verb, "--page"), cwd=ROOT, capture_output=True, text=True, check=True)
    tab.call("Page.navigate", url=done.stdout.strip())
    tab.until("location.pathname === '/' && document.readyState === 'complete'")
    return done.stdout.partition("/enter")[0]


def _take_page(tab: Tab, address: str, is_shown: str, name: str, look: str = "desktop", then: str = "0") -> None:
    tab.look(*_LOOKS[look])
    tab.call("Page.navigate", url="about:blank")
    tab.call("Page.navigate", url=address)  # MLflow changes its address
    tab.until(f"document.readyState === 'complete' && {is_shown}")
    tab.ask(then)
    time.sleep(_MLFLOW_DRAWS_S)
    _take(tab, name)


def _take_text(tab: Tab, page: str, look: tuple[int, int, str], name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "page.html"
        file.write_text(page, encoding="utf-8")
        tab.look(*look)
        tab.open(file.as_uri())
        _take(tab, name)


def _take(tab: Tab, name: str) -> None:
    """Write the picture, with few colours so that it is small."""
    file = ROOT / "docs" / "images" / f"{name}.png"
    tab.picture(file)
    Image.open(file).convert("RGB").quantize(128).save(file, optimize=True)


if __name__ == "__main__":
    takers: dict[str, Callable[..., None]] = {
        "report": take_reports,
        "terminal": take_terminals,
        "servers": take_servers,
    }
    with started_chromium() as chromium, chromium.tab() as tab:
        takers[sys.argv[1]](tab, *sys.argv[2:])
