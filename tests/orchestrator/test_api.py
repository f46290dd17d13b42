"""Public Python API: the same searches and results as on the command line."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
from pathlib import Path

import pandas
import pytest
import yaml

from orchestrator import api
from orchestrator.cli.main import main as parlay
from orchestrator.launchers import factory
from orchestrator.recipe.write import write_recipe
from orchestrator.records.formats.trial_table import COLUMNS
from orchestrator.search.driver import Driver
from search_spaces.layouts.layout import LAYOUT_FIELDS
from tests.kit import TINY_SEARCH
from tests.orchestrator.cli.parlay import environment
from tests.orchestrator.cli.simulated import OUT_OF_MEMORY, TABLE_SEARCH, write_simulated_search
from tests.orchestrator.recipe.builders import LAYOUT, measured_trial, source_of
from tests.orchestrator.scripted import in_turn
from trials.ledger.events import EndReason, SearchState

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]  # pandas and plotly are large

ROWS = ({"step_time_s": "4.5"}, {"step_time_s": "3.5"}, OUT_OF_MEMORY)


@pytest.fixture
def question(tmp_path, monkeypatch) -> Path:
    """A search over a table of three layouts, the second of them the fastest, in the working directory."""
    monkeypatch.chdir(tmp_path)
    return write_simulated_search(tmp_path, *ROWS)


@pytest.fixture
def ended(question) -> api.Search:
    return api.run(question, quiet=True)


MAPPING = yaml.safe_load(TABLE_SEARCH) | {"name": "mapped", "space": {"candidates": Path("table.csv")}}


def begun(question: Path, monkeypatch: pytest.MonkeyPatch) -> api.Search:
    """A search whose driver exited before it did anything."""
    with monkeypatch.context() as patch:
        patch.setattr(Driver, "iterate", Driver.interrupt)
        with pytest.raises(KeyboardInterrupt):
            api.run(question, quiet=True)
    return api.load()


def told(capsys, *words: str) -> dict:
    """The command line's answer for the search."""
    parlay([*words, "--json"])
    return json.loads(capsys.readouterr().out)


class TestRunning:
    def test_a_search_ends_with_the_answer_of_the_command_line(self, ended, capsys):
        assert (ended.state, ended.end_reason) == (SearchState.COMPLETED, EndReason.SPACE_EXHAUSTED)
        assert ended.best.trial == "t0002"
        assert ended.summary.plain() == told(capsys, "status", ended.search_id)

    def test_text_and_a_mapping_are_as_good_as_a_file(self, question, ended):
        text = api.run(question.read_text(), quiet=True)
        mapping = api.run(MAPPING, quiet=True)
        for other in (text, mapping):
            assert other.folder.parent == question.parent / "runs"
            assert api.compare(ended, other).verdict == "same"
        assert mapping.search_id.startswith("mapped-")

    def test_a_keyword_changes_a_key_of_its_section_or_the_key_itself(self, question, tmp_path):
        search = api.run(
            question, search={"max_trials": 1}, work_dir="elsewhere", objective=["tokens_per_sec_per_gpu"], quiet=True
        )
        assert search.folder.parent == tmp_path / "elsewhere"
        assert len(search.trials) == 1
        assert search.best.objective == "tokens_per_sec_per_gpu"
        assert search.spec.search.sampler == "grid"


class TestBadInput:
    @pytest.mark.parametrize(
        ("changes", "key", "fix"),
        [
            ({"search": {"max_trils": 3}}, "search.max_trils", "max_trials"),
            ({"serach": {}}, "serach", "search"),
            ({"launcher": {"kind": object()}}, "launcher.kind", ""),
            ({"search": {"max_trials": math.nan}}, "search.max_trials", ""),
        ],
        ids=["key", "section", "no value of a file", "not a number"],
    )
    @pytest.mark.parametrize("call", [api.plan, api.run], ids=["plan", "run"])
    def test_a_change_that_cannot_be_names_key_rule_and_fix_and_writes_nothing(
        self, question, tmp_path, call, changes, key, fix
    ):
        with pytest.raises(api.InputError) as refused:
            call(question, **changes)
        problem = refused.value.problems[0]
        assert problem.key == key
        assert problem.rule
        assert fix in (problem.fix or "")
        assert "--set" not in str(refused.value)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["search.yaml", "table.csv"]

    def test_a_file_that_is_not_there_and_an_unknown_search(self, question):
        with pytest.raises(api.InputError, match=r"absent\.yaml"):
            api.run("absent.yaml")
        with pytest.raises(api.InputError) as unknown:
            api.load("nothing")
        assert unknown.value.problems[0].code == "unknown_id"

    @pytest.mark.parametrize("call", [api.searches, lambda ledger: api.load("abc", ledger=ledger)])
    def test_a_ledger_that_is_not_there_is_no_empty_one(self, tmp_path, call):
        (tmp_path / "ledger.db").touch()
        with pytest.raises(api.InputError) as refused:
            call(ledger=f"sqlite:///{tmp_path}/leger.db")
        (problem,) = refused.value.problems
        assert (problem.code, problem.key) == ("ledger_url", "ledger.url")
        assert problem.fix.startswith("did you mean ledger.db?")
        assert [path.name for path in tmp_path.iterdir()] == ["ledger.db"]


class TestLooking:
    def test_a_search_is_loaded_by_id_by_its_beginning_by_folder_and_as_the_newest(self, ended):
        for named in (ended.search_id, ended.search_id[:-3], ended.folder, str(ended.folder), ended, None):
            assert api.load(named).search_id == ended.search_id
        assert api.searches()["search_id"].tolist() == [ended.search_id]

    def test_trials_are_a_row_each_with_the_contracts_names_and_types(self, ended):
        trials = ended.trials
        assert tuple(trials.columns) == COLUMNS
        assert trials["trial"].tolist() == ["t0001", "t0002", "t0003"]
        assert trials["step_time_s"].tolist()[:2] == [4.5, 3.5]
        assert trials["step_time_s"][2] is pandas.NA
        assert trials["reason"][2] == "gpu_oom"
        kinds = {name: str(trials[name].dtype) for name in ("tensor_parallel", "sequence_parallel", "ended_at")}
        assert kinds.pop("ended_at").endswith("UTC]")
        assert kinds == {"tensor_parallel": "Int64", "sequence_parallel": "boolean"}

    def test_events_figures_recipe_report_and_what_a_notebook_shows_are_those_of_the_command_line(
        self, ended, tmp_path
    ):
        events = ended.events
        assert events["seq"].tolist() == list(range(1, len(events) + 1))
        assert (events["kind"][0], set(events["trial"].dropna())) == ("search_created", {"t0001", "t0002", "t0003"})
        assert set(ended.figures) >= {"progress", "memory", "heat"}
        assert (ended.recipe.trial, ended.recipe.layout.to_json()) == (ended.best.trial, ended.best.plain()["layout"])
        assert ended.report() == ended.folder / "report.html"
        assert f"<code>{ended.search_id}</code>" in ended.report(tmp_path / "mine.html").read_text()
        with pytest.raises(api.InputError, match="use a new file"):
            ended.report(tmp_path / "mine.html")
        html = ended._repr_html_()
        assert f"<code>{ended.search_id}</code>" in html
        assert "<script" not in html
        assert ended.best.trial in repr(ended)

    def test_a_search_without_a_trial_has_the_same_columns_and_types(self, question, monkeypatch):
        empty = begun(question, monkeypatch)
        assert len(empty.trials) == 0
        assert "no layout has been measured yet" in repr(empty)
        assert "No layout has been measured yet" in empty._repr_html_()
        assert empty.figures == {}
        assert empty.best is None
        assert empty.recipe is None
        assert empty.trials.dtypes.to_dict() == api.resume(quiet=True).trials.dtypes.to_dict()


class TestPlanning:
    def test_a_plan_is_a_row_for_each_layout_in_the_command_lines_order(self, question, capsys):
        frame = api.plan(question)
        listed = told(capsys, "plan", str(question))
        assert frame["layout_key"].tolist() == [layout["layout_key"] for layout in listed["layouts"]]
        assert frame["step_time_s"].tolist() == [layout["step_time_s"] for layout in listed["layouts"]]
        assert frame["memory_gib"].tolist() == [layout["memory_gib"] for layout in listed["layouts"]]
        assert list(frame.columns[: len(LAYOUT_FIELDS)]) == list(LAYOUT_FIELDS)
        assert frame.filter(like="time_s.").sum(axis=1).tolist() == pytest.approx(frame["step_time_s"].tolist())
        assert frame.attrs["notes"] == listed["notes"]
        assert frame.attrs["num_layouts"] == listed["num_layouts"] == 3
        assert len(api.plan(question, top=2)) == 2

    def test_what_nobody_knows_is_na_and_its_columns_stay(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        unknown, known = api.plan(TINY_SEARCH), api.plan(TINY_SEARCH, cluster={"accelerator": "h100-80gb"})
        assert list(unknown.columns) == list(known.columns)
        assert unknown["step_time_s"].isna().all()
        assert str(unknown["time_s.compute"].dtype) == str(known["time_s.compute"].dtype) == "Float64"
        assert unknown["relative_step_time"][0] == 1.0
        assert list(tmp_path.iterdir()) == []


def test_two_searches_side_by_side_as_the_command_line_has_them(ended, question, capsys):
    other = api.run(question, search={"max_trials": 1}, quiet=True)
    found = api.compare(ended, other.folder / "recipe")
    assert (found.verdict, found.found.ratio) == ("slower", pytest.approx(3.5 / 4.5))
    assert found.answer.plain() == told(capsys, "compare", ended.search_id, str(other.folder / "recipe"))


class TestReplaying:
    @pytest.fixture
    def recipe(self, tmp_path, monkeypatch) -> Path:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "code").mkdir()
        return write_recipe(tmp_path / "recipe", source_of(measured_trial("t0001", LAYOUT, 0.1)), tmp_path / "code")

    def test_a_recipes_layout_is_measured_again_in_a_folder_of_its_own(self, recipe, monkeypatch, capsys):
        launcher = in_turn(0.1, 0.101, 0.099)
        monkeypatch.setattr(factory, "make_launcher", lambda *_, **__: (launcher, None))
        result = api.replay(recipe, repeats=3, work_dir="replays")
        assert (result.verdict, len(launcher.requests)) == ("reproduced", 3)
        [folder] = Path("replays").iterdir()
        assert json.loads((folder / "replay.json").read_text()) == result.plain()
        assert "measuring 3 times in" in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("asked", "key"),
        [
            ({"launcher": "loacl"}, "launcher"),
            ({"repeats": 0}, "repeats"),
            ({"session_interval": "4m"}, "session_interval"),
            ({"trainer": {"kind": "megatron-lm", "scirpt": "pretrain.py"}}, "trainer.scirpt"),
        ],
        ids=["launcher", "repeats", "session_interval", "key"],
    )
    def test_what_cannot_be_asked_is_named(self, recipe, tmp_path, asked, key):
        with pytest.raises(api.InputError) as refused:
            api.replay(recipe, **asked)
        assert refused.value.problems[0].key == key
        assert not (tmp_path / "runs").exists()


def test_a_forecast_is_a_row_for_each_scaling_and_number_of_nodes(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    search = api.run(write_simulated_search(tmp_path, *[{"step_time_s": s} for s in ("4.5", "3.5", "5.5")]), quiet=True)
    frame = api.forecast(search, nodes=[2, 4], scaling="weak")
    assert frame["num_nodes"].tolist() == [2, 4]
    assert (frame["step_time_low_s"] < frame["step_time_high_s"]).all()
    listed = told(capsys, "plan", "--from", search.search_id, "--nodes", "2,4", "--scaling", "weak")
    assert frame["step_time_s"].tolist() == [forecast["step_time_s"] for forecast in listed["forecasts"]]
    assert frame.attrs["notes"] == listed["notes"]


def test_a_search_that_nobody_drives_is_ended_by_a_cancel(question, monkeypatch):
    left = begun(question, monkeypatch)
    done = api.cancel(left, quiet=True)
    assert (done.is_complete, done.cancelled, done.unreached) == (True, [], [])
    ended = left.refresh()
    assert (ended.state, ended.end_reason) == (SearchState.CANCELLED, EndReason.CANCELLED_BY_USER)


class TestEnding:
    """Ctrl-C, which is a notebook's interrupt, shuts the driver down; SIGTERM does too, and then ends the process."""

    @pytest.mark.parametrize("times", [1, 2])
    def test_an_interrupt_raises_once_the_driver_has_left_and_the_search_goes_on(self, question, monkeypatch, times):
        turn = Driver.iterate

        def interrupted(driver: Driver) -> None:
            turn(driver)
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)

        with monkeypatch.context() as patch:
            patch.setattr(Driver, "iterate", interrupted)
            with pytest.raises(KeyboardInterrupt, match=r"nothing is lost: api\.resume"):
                api.run(question, quiet=True)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        left = api.load()
        assert left.state is SearchState.RUNNING
        assert len(api.resume(left, quiet=True).trials) == 3

    def test_sigterm_ends_the_process_as_it_was_to_after_the_driver_has_left(self, question, monkeypatch):
        heard = []
        monkeypatch.setattr(Driver, "iterate", lambda driver: signal.raise_signal(signal.SIGTERM))
        before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
        try:
            with pytest.raises(KeyboardInterrupt):
                api.run(question, quiet=True)
        finally:
            signal.signal(signal.SIGTERM, before)
        assert (heard, api.load().state) == ([signal.SIGTERM], SearchState.RUNNING)


def test_importing_it_brings_nothing_heavy(tmp_path):
    heavy = ("deephyper", "ray", "torch", "deepspeed", "mlflow", "pandas", "plotly", "numpy", "sqlalchemy", "pydantic")
    program = f"import sys\nfrom orchestrator import api\nprint([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
