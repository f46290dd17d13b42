"""docs/api.md: its examples run, and page, notebook and `api.__all__` name the same things."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from orchestrator import api
from orchestrator.replay import run
from tests.orchestrator.cli.simulated import write_simulated_search
from tests.orchestrator.scripted import in_turn

pytestmark = pytest.mark.slow

PAGE = Path(__file__).resolve().parents[2] / "docs" / "api.md"


@pytest.mark.timeout(120)
def test_its_examples_run_in_their_order(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    of_the_replay = SimpleNamespace(make_launcher=lambda *_, **__: (in_turn(3.5), None))
    monkeypatch.setattr(run, "factory", of_the_replay)  # searches have the real ones, whoever is imported first
    write_simulated_search(tmp_path, *({"step_time_s": seconds} for seconds in ("4.5", "3.5", "5.5")))
    names: dict[str, object] = {}
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    for example in examples:
        exec(compile(example, str(PAGE), "exec"), names)
    assert len(examples) == 5
    out = capsys.readouterr().out
    assert "t0002" in out
    assert "slower" in out
    assert "did you mean max_trials?" in out
    assert {"for-others.html", "progress.html"} <= {path.name for path in tmp_path.iterdir()}


def public_names(text: str) -> set[str]:
    """Names behind `api.` in a page or a notebook, without file names."""
    return set(re.findall(r"(?<![\w./])api\.([A-Za-z_]+)", text)) - {"md", "py"}


def test_what_the_module_defines_is_what_it_exports():
    defined = {name for name, value in vars(api).items() if getattr(value, "__module__", None) == api.__name__}
    errors = {"ExternalError", "InputError", "LeaseHeld"}
    assert {name for name in defined if not name.startswith("_")} | errors | {"Search"} == set(api.__all__)
    assert list(api.__all__) == sorted(api.__all__)


def test_the_page_lists_each_function_with_parameters_that_it_has():
    rows = dict(re.findall(r"^\| `(\w+)\((.*?)\)` \|", section("Functions"), re.MULTILINE))
    assert set(rows) == {name for name in api.__all__ if name.islower()}
    for name, parameters in rows.items():
        known = inspect.signature(getattr(api, name)).parameters
        named = re.findall(r"(?:^|, )\**(\w+)(=[^,]+)?", parameters)
        assert [parameter for parameter, _ in named if parameter not in known] == []
        for parameter, default in named:
            if default:
                assert repr(known[parameter].default) == repr(ast.literal_eval(default[1:])), (name, parameter)


def test_the_page_lists_the_members_of_a_search():
    listed = re.findall(r"^\| `([^`]+)` \|", section("A search"), re.MULTILINE)
    names = {name for entry in listed for name in re.sub(r"\(.*\)", "", entry).split()}
    assert names == {name for name in vars(api.Search) if not name.startswith("_")}


@pytest.mark.parametrize("file", ["docs/api.md", "docs/tour.ipynb", "README.md"])
def test_pages_and_the_notebook_use_only_public_names(file):
    used = public_names((PAGE.parents[1] / file).read_text())
    assert used - set(api.__all__) == set()


def test_the_page_and_the_notebook_name_all_that_is_public():
    page = PAGE.read_text()
    assert {name for name in api.__all__ if f"`{name}" not in page and f"api.{name}" not in page} == set()
    notebook = public_names((PAGE.parent / "tour.ipynb").read_text())
    assert {"plan", "run", "replay", "compare", "searches"} <= notebook


def section(title: str) -> str:
    return PAGE.read_text().partition(f"## {title}\n")[2].partition("\n## ")[0]
