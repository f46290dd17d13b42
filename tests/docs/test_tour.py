"""docs/tour.ipynb runs."""

from __future__ import annotations

import re
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
import pytest
from nbclient import NotebookClient
from traitlets.config import Config

TOUR = Path(__file__).resolve().parents[2] / "docs" / "tour.ipynb"
PATIENCE_S = 240


def test_the_notebook_in_git_holds_no_output():
    notebook = nbformat.read(TOUR, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert len(code) > 8
    assert all(cell.outputs == [] and cell.execution_count is None for cell in code)


@pytest.mark.processes
@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_the_notebook_does_what_it_says(tmp_path, monkeypatch):
    for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    notebook = nbformat.read(TOUR, as_version=4)
    waits = {"timeout": PATIENCE_S, "startup_timeout": PATIENCE_S}
    with TemporaryDirectory() as folder:  # its kernel's sockets, whose paths are short
        kernel = Config(KernelManager={"transport": "ipc", "ip": f"{folder}/kernel"})
        NotebookClient(notebook, config=kernel, resources={"metadata": {"path": str(tmp_path)}}, **waits).execute()
    shown = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert not [output for output in shown if output.output_type == "stream"]
    pages = "".join(output.data.get("text/html", "") for output in shown)
    assert re.search(r"<code>tour-[a-z2-7]{6}</code>, completed", pages)
    drawn = [output for output in shown if "application/vnd.plotly.v1+json" in output.data]
    assert len(drawn) == 2
    searches = [path.name for path in (tmp_path / "runs").iterdir() if path.name.startswith("tour-")]
    assert len(searches) == 2
