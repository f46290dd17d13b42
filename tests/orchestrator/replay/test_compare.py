"""Comparison of recipes and searches: obstacles, differences, ratio."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.cli.main import main as run
from orchestrator.replay.compare import CompareVerdict, ComparisonSide, compare_sides
from orchestrator.replay.measured_layout import MeasuredLayout
from orchestrator.replay.software import FieldPair
from orchestrator.replay.speed_ratio import Confidence, Run, compare_runs
from search_spaces.layouts.layout import Layout
from tests.orchestrator.cli.simulated import OK, OUT_OF_MEMORY, TABLE_SEARCH, write_simulated_search
from trials.files.folders import SearchFolder
from trials.trial import FailureReason, TrialState

QUESTION = {
    "model.num_layers": 16,
    "cluster.accelerator": "h100-80gb",
    "cluster.num_nodes": 1,
    "global_batch_size": 64,
    "trainer.kind": "parlay",
    "measure.routing": "balanced",
}
FAST = Layout(tensor_parallel=2, grad_accum_steps=64)
SLOW = Layout(data_parallel=2, grad_accum_steps=32)
SOFTWARE = {"torch": "2.4.0", "device": "NVIDIA H100", "job_id": "7"}


def found(layout: Layout, *step_times_s: float, **fingerprint: Any) -> MeasuredLayout:
    runs = tuple(Run(time_s, time_s * 0.99, time_s * 1.01) for time_s in step_times_s)
    return MeasuredLayout("t0001", layout, TrialState.MEASURED, None, runs, SOFTWARE | fingerprint)


def failed(layout: Layout) -> MeasuredLayout:
    return MeasuredLayout("t0002", layout, TrialState.FAILED, FailureReason.GPU_OOM)


def side(name: str, best: MeasuredLayout | None, *others: MeasuredLayout, **question: Any) -> ComparisonSide:
    layouts = {one.layout.key: one for one in (best, *others) if one is not None}
    asked = QUESTION | {key.replace("__", "."): value for key, value in question.items()}
    return ComparisonSide("search", name, f"/runs/{name}", asked, best, 65536, layouts)


def rows(pairs: list[FieldPair]) -> list[tuple[str, Any, Any]]:
    return [(pair.field, pair.a, pair.b) for pair in pairs]


class TestVerdict:
    @pytest.mark.parametrize(
        ("step_times_s", "verdict"),
        [
            ((0.5, 0.5, 0.5), CompareVerdict.FASTER),
            ((1.0, 1.0, 1.0), CompareVerdict.SAME),
            ((1.5, 1.5, 1.5), CompareVerdict.SLOWER),
            ((1.13, 1.13, 1.13), CompareVerdict.SLOWER),  # a replay, which asks again, would not say so yet
            ((0.94,), CompareVerdict.INCONCLUSIVE),
        ],
    )
    def test_it_is_that_of_a_replay_with_its_interval(self, step_times_s, verdict):
        a, b = side("a", found(FAST, 1.0, 1.0, 1.0)), side("b", found(SLOW, *step_times_s))
        result = compare_sides(a, b, 0.05)
        assert result.verdict is verdict
        assert result.found == compare_runs(a.best.runs, b.best.runs, 0.05, Confidence.SINGLE_TEST)

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("model.num_layers", 24),
            ("cluster.accelerator", "a100-80gb"),
            ("cluster.num_nodes", 2),
            ("global_batch_size", 8),
            ("measure.routing", "learned"),
        ],
    )
    def test_another_model_batch_routing_or_cluster_is_not_comparable_and_named(self, field, value):
        b = side("b", found(FAST, 0.5), **{field.replace(".", "__"): value})
        result = compare_sides(side("a", found(FAST, 1.0)), b, 0.05)
        assert (result.verdict, result.answer.not_comparable) == (CompareVerdict.NOT_COMPARABLE, [field])
        assert rows(result.answer.question) == [(field, QUESTION[field], value)]
        assert (result.answer.ratio, result.answer.common) == (None, [])

    def test_another_device_is_other_hardware_and_one_that_is_not_known_is_not(self):
        a = side("a", found(FAST, 1.0))
        result = compare_sides(a, side("b", found(FAST, 0.5, device="NVIDIA H200")), 0.05)
        assert result.answer.not_comparable == ["device"]
        assert compare_sides(a, side("b", found(FAST, 0.5, device=None)), 0.05).found is not None

    def test_engines_are_not_compared_where_a_cpu_emulates_the_gpu_of_one(self):
        mine, theirs = found(FAST, 1.0), found(replace(FAST, engine="megatron-core"), 0.5)
        cpu = {"cluster__accelerator": "cpu"}
        result = compare_sides(side("a", mine, **cpu), side("b", theirs, **cpu), 0.05)
        assert (result.verdict, result.answer.not_comparable) == (CompareVerdict.NOT_COMPARABLE, ["emulated_engine"])
        assert rows(result.answer.question) == [("emulated_engine", "torch", "megatron-core")]
        assert result.answer.common == []
        assert compare_sides(side("a", theirs, **cpu), side("b", theirs, **cpu), 0.05).found is not None
        assert compare_sides(side("a", mine), side("b", theirs), 0.05).verdict is CompareVerdict.FASTER

    def test_other_software_or_another_trainer_is_named_and_compared(self):
        b = side("b", found(FAST, 0.5, torch="2.6.0", job_id="9"), trainer__kind="megatron-lm")
        result = compare_sides(side("a", found(FAST, 1.0)), b, 0.05)
        assert result.verdict is CompareVerdict.FASTER
        assert rows(result.answer.software) == [("torch", "2.4.0", "2.6.0")]
        assert [pair.field for pair in result.answer.question] == ["trainer.kind"]

    def test_without_a_measurement_there_is_none_and_whose_it_is_is_said(self):
        result = compare_sides(side("a", found(FAST, 1.0)), side("b", None, failed(FAST)), 0.05)
        assert result.verdict is CompareVerdict.NOT_COMPARABLE
        assert result.answer.detail == "b has found no best layout"
        assert [pair.ratio for pair in result.answer.common] == [None]


def test_the_layouts_differ_field_by_field():
    result = compare_sides(side("a", found(FAST, 1.0)), side("b", found(SLOW, 1.0)), 0.05)
    told = {pair.field: (pair.a, pair.b) for pair in result.answer.layout}
    assert told["tensor_parallel"] == (2, 1)
    assert told["grad_accum_steps"] == (64, 32)
    assert "zero_stage" not in told


def test_layouts_that_both_tried_are_compared_one_by_one_also_where_one_failed():
    a = side("a", found(FAST, 1.0, 1.0), found(SLOW, 2.0, 2.0))
    b = side("b", found(SLOW, 1.0, 1.0), failed(FAST))
    fast, slow = compare_sides(a, b, 0.05).answer.plain()["common"]
    assert (fast["layout_key"], slow["layout_key"]) == (FAST.key, SLOW.key)
    assert (fast["a"]["state"], fast["b"]["reason"], fast["ratio"]) == ("measured", "gpu_oom", None)
    assert (slow["verdict"], slow["ratio"]) == ("faster", pytest.approx(2.0))


class TestOfSearches:
    """Three searches of tables: two with the same question, one with another batch."""

    @pytest.fixture
    def searches(self, tmp_path, monkeypatch, capfd) -> Mapping[str, SearchFolder]:
        monkeypatch.chdir(tmp_path)
        folders = {}
        quick = {"step_time_s": "1.5"}
        for name, rows in {"first": (OK, OK, OUT_OF_MEMORY), "second": (quick, OUT_OF_MEMORY)}.items():
            (tmp_path / name).mkdir()
            text = TABLE_SEARCH.replace("name: table", f"name: {name}")
            assert run(["run", str(write_simulated_search(tmp_path / name, *rows, text=text)), "--json"]) == 0
            folders[name] = SearchFolder(tmp_path / "runs" / json.loads(capfd.readouterr().out)["search_id"])
        return folders

    @pytest.mark.slow
    def test_searches_and_recipes_by_id_and_folder_are_answered_alike(self, searches, capfd, tmp_path):
        first, second = searches.values()
        whole, by_folder, recipes = (
            json.loads(compared(capfd, a, b, "--json"))
            for a, b in (
                (first.search_id, second.search_id[:8]),
                (str(first.path), str(second.recipe)),
                (str(first.recipe / "recipe.yaml"), str(second.recipe)),
            )
        )
        names = ("ratio", "ratio_low", "ratio_high", "verdict", "layout", "question")
        assert (whole["verdict"], whole["ratio"]) == ("faster", pytest.approx(3.5 / 1.5))
        assert {name: recipes[name] for name in names} == {name: whole[name] for name in names}
        of_a = whole["a"]["search"]
        assert (of_a["trials"]["measured"], of_a["trials"]["failed"], of_a["reasons"]) == (2, 1, {"gpu_oom": 1})
        assert 0 < of_a["to_best"]["node_hours"] <= of_a["node_hours"]
        states = {(pair["a"]["state"], pair["b"]["state"]) for pair in whole["common"]}
        assert states == {("measured", "measured"), ("measured", "failed")}
        assert by_folder["common"] == []
        text = compared(capfd, first.search_id, second.search_id)
        assert text.startswith("faster: B is 2.333x as fast as A")
        assert "to the best: trials" not in text, "both took one trial"
        assert "tensor_parallel" not in text, "they have one layout"
        assert "node-hours" in text


def compared(capfd: pytest.CaptureFixture[str], *words: str) -> str:
    assert run(["compare", *words]) == 0
    return capfd.readouterr().out
