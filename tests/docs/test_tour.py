"""docs/tour.ipynb runs; and the effect of interrupting a notebook's kernel on a search."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nbformat
import pytest
from jupyter_client import KernelManager
from jupyter_client.blocking import BlockingKernelClient
from nbclient import NotebookClient
from traitlets.config import Config

from tests.orchestrator.cli.parlay import TINY_SEARCH

TOUR = Path(__file__).resolve().parents[2] / "docs" / "tour.ipynb"
PATIENCE_S = 240


@pytest.fixture(autouse=True)
def own_jupyter(tmp_path_factory, monkeypatch):
    """Jupyter's and IPython's files in a fresh folder, as Parlay's are."""
    home = tmp_path_factory.mktemp("jupyter")
    for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(home / name.lower()))


@pytest.fixture
def kernels() -> Iterator[Config]:
    """Kernels are spoken to by sockets of the file system: no two tests can want the same port."""
    with TemporaryDirectory() as folder:  # a socket's path is short
        yield Config(KernelManager={"transport": "ipc", "ip": f"{folder}/kernel"})


def test_the_notebook_in_git_holds_no_output():
    notebook = nbformat.read(TOUR, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert len(code) > 8
    assert all(cell.outputs == [] and cell.execution_count is None for cell in code)


@pytest.mark.processes
@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_the_notebook_does_what_it_says(tmp_path, kernels):
    notebook = nbformat.read(TOUR, as_version=4)
    waits = {"timeout": PATIENCE_S, "startup_timeout": PATIENCE_S}
    NotebookClient(notebook, config=kernels, resources={"metadata": {"path": str(tmp_path)}}, **waits).execute()
    shown = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert not [output for output in shown if output.output_type == "stream"]
    pages = "".join(output.data.get("text/html", "") for output in shown)
    assert re.search(r"<code>tour-[a-z2-7]{6}</code>, completed", pages)
    drawn = [output for output in shown if "application/vnd.plotly.v1+json" in output.data]
    assert len(drawn) == 2
    searches = [path.name for path in (tmp_path / "runs").iterdir() if path.name.startswith("tour-")]
    assert len(searches) == 2


@pytest.mark.walks
@pytest.mark.processes
@pytest.mark.timeout(900)
def test_an_interrupt_of_the_kernel_leaves_a_search_in_order_that_goes_on(tmp_path, kernels):
    (tmp_path / "search.yaml").write_text(TINY_SEARCH.replace("max_trials: 3", "max_trials: 9"))
    manager = KernelManager(kernel_name="python3", config=kernels)
    with started(manager, tmp_path) as client:
        run = "from orchestrator import api\napi.run('search.yaml', quiet=True)"
        search = client.execute(run, stop_on_error=False)  # else the kernel drops what is asked right after an error
        wait_for_a_running_trial(tmp_path)
        manager.interrupt_kernel()
        left = reply_to(client, search)
        assert (left["ename"], "nothing is lost" in left["evalue"]) == ("KeyboardInterrupt", True)
        looks = "search = api.load(); assert search.state == 'running'; assert search.trials['ended_at'].notna().all()"
        assert reply_to(client, client.execute(looks))["status"] == "ok"


@contextmanager
def started(manager: KernelManager, place: Path) -> Iterator[BlockingKernelClient]:
    manager.start_kernel(cwd=str(place))
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=PATIENCE_S)
        yield client
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def wait_for_a_running_trial(place: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not any('"attempt_running"' in path.read_text() for path in (place / "runs").glob("tiny-*/journal.jsonl")):
        assert time.monotonic() < deadline, "no trial began"
        time.sleep(0.05)


def reply_to(client: BlockingKernelClient, request: str) -> dict[str, Any]:
    while True:
        reply = client.get_shell_msg(timeout=PATIENCE_S)
        if reply["parent_header"].get("msg_id") == request:
            return reply["content"]
