"""Pictures of docs/images of servers: `python -m tests.dashboards.server_pictures MANY REAL LIVE FAILED`.

`parlay serve --port N` and `parlay dashboard` have to run on the same home. MANY is a search with many trials, REAL an
ended one whose trials really ran, LIVE one that still runs, and the trainer of FAILED wrote a log.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

from mlflow import MlflowClient
from PIL import Image

from dashboards.mlflow.backend_store import tracking_uri
from dashboards.mlflow.shared_views import SEARCHES, run_path, trials_key, view_path
from tests.chromium import Tab, started_chromium
from tests.sources import ROOT
from trials.ledger.location import home_folder

_COLOURS = 128
_DESKTOP, _DARK, _PHONE = (1440, 900, "light"), (1440, 900, "dark"), (390, 844, "light")
_DRAWING_S = 3.0
"""For MLflow's charts, which say nowhere that they are drawn."""
_NO_ASSISTANT = ("mlflow.assistant.fab.autoOpenedOnFirstLoad_v1", "true"), ("mlflow.assistant.panelOpen_v1", "false")
"""Storage of MLflow's pages by which its assistant stays closed."""
_SHOW_MORE = "[...document.querySelectorAll('button')].find(b => b.textContent === 'Show more')?.click()"
"""Shows the whole description, where a page has one."""
_CHARTS = "document.querySelectorAll('.js-plotly-plot').length > 1"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("many", "real", "live", "failed"):
        parser.add_argument(name, help=f"id of the search {name.upper()}")
    given = parser.parse_args()
    with started_chromium() as chromium:
        with chromium.tab() as tab:
            _service(tab, _signed_in(tab, "serve"), given.live, given.failed)
        with chromium.tab() as tab:
            _mlflow(tab, _signed_in(tab, "dashboard"), given.many, given.real)


def _service(tab: Tab, server: str, live: str, failed: str) -> None:
    for name, look in (("list", _DESKTOP), ("phone", _PHONE)):
        _open(tab, f"{server}/", _has_text(live), look)
        _take(tab, f"service-{name}")
    _open(tab, f"{server}/searches/{failed}/logs/t0001", "document.querySelector('pre') !== null")
    _take(tab, "service-log")
    is_live = "document.getElementById('line').dataset.state === 'live'"
    _open(tab, f"{server}/searches/{live}", is_live)
    _take(tab, "report-live")
    _open(tab, f"{server}/searches/{live}", is_live, _DARK)
    tab.click("[data-opens=cancel]")
    tab.until("document.querySelector('dialog').open")
    _take(tab, "service-cancel")


def _mlflow(tab: Tab, server: str, many: str, real: str) -> None:
    for item, value in _NO_ASSISTANT:
        tab.ask(f"localStorage.setItem('{item}', '{value}')")
    client = MlflowClient(tracking_uri(None, home_folder()))
    experiments = [found.experiment_id for found in client.search_experiments()]
    (parent,) = client.search_runs(experiments, f"tags.`parlay.search_id` = '{real}' AND tags.`parlay.kind` = 'search'")
    experiment_id, best = parent.info.experiment_id, parent.data.tags["parlay.best_run_id"]
    trials = f"{view_path(experiment_id, trials_key(many))}&compareRunsMode=CHART"
    for name, path, is_shown in (
        ("searches", view_path(experiment_id, SEARCHES), _has_text("matching runs")),
        ("charts", trials, f"{_has_text('matching runs')} && {_CHARTS}"),
        ("search", run_path(experiment_id, parent.info.run_id), _has_text("measured layouts")),
        ("system", run_path(experiment_id, best, "/system-metrics"), _CHARTS),
    ):
        _open(tab, server + path, is_shown)
        tab.ask(_SHOW_MORE)
        _take(tab, f"mlflow-{name}")


def _has_text(text: str) -> str:
    return f"document.body.textContent.includes('{text}')"


def _signed_in(tab: Tab, verb: str) -> str:
    """Sign in to the running server that this command starts; its address."""
    command = (sys.executable, "-m", "orchestrator.cli.main", verb, "--page")
    address = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    tab.call("Page.navigate", url=address)
    tab.until("location.pathname === '/' && document.readyState === 'complete'")
    return address.partition("/enter")[0]


def _open(tab: Tab, address: str, is_shown: str, look: tuple[int, int, str] = _DESKTOP) -> None:
    """Open a page in a window of this size; return once it is drawn. MLflow changes its address."""
    tab.look(*look)
    tab.call("Page.navigate", url="about:blank")
    tab.call("Page.navigate", url=address)
    tab.until(f"document.readyState === 'complete' && {is_shown}")
    time.sleep(_DRAWING_S)


def _take(tab: Tab, name: str) -> None:
    """Write the picture, with few colours so that it is small."""
    file = ROOT / "docs" / "images" / f"{name}.png"
    tab.picture(file)
    Image.open(file).convert("RGB").quantize(_COLOURS).save(file, optimize=True)


if __name__ == "__main__":
    main()
