"""Comparison of recipes and searches: obstacles, differences, ratio."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.cli.main import run
from orchestrator.comparison.compare import (
    ComparedLayout,
    CompareVerdict,
    ComparisonSide,
    compare_sides,
    side_of_recipe,
    side_of_search,
)
from orchestrator.comparison.speed_ratio import Confidence, Run, compare
from orchestrator.config.loader import load_search_file
from orchestrator.recipe.read import read_recipe
from search_spaces.layouts.layout import Layout
from tests.orchestrator.cli.simulated import OK, OUT_OF_MEMORY, TABLE_SEARCH, write_simulated_search
from trials.files.folders import SearchFolder
from trials.ledger.fold import fold
from trials.ledger.journal import Journal
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


def found(layout: Layout, *step_times_s: float, **fingerprint: Any) -> ComparedLayout:
    runs = tuple(Run(time_s, time_s * 0.99, time_s * 1.01) for time_s in step_times_s)
    return ComparedLayout("t0001", layout, TrialState.MEASURED, None, runs, SOFTWARE | fingerprint)


def failed(layout: Layout) -> ComparedLayout:
    return ComparedLayout("t0002", layout, TrialState.FAILED, FailureReason.GPU_OOM)


def side(name: str, best: ComparedLayout | None, *others: ComparedLayout, **question: Any) -> ComparisonSide:
    layouts = {one.layout.key: one for one in (best, *others) if one is not None}
    asked = QUESTION | {key.replace("__", "."): value for key, value in question.items()}
    return ComparisonSide("search", name, f"/runs/{name}", asked, best, 65536, layouts)


def with_fast(one: ComparisonSide, step_time_s: float) -> ComparisonSide:
    runs = tuple(replace(run, fast_step_time_s=step_time_s) for run in one.best.runs)
    return replace(one, best=replace(one.best, runs=runs))


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
        assert result.found == compare(a.best.runs, b.best.runs, 0.05, Confidence.SINGLE_TEST)

    def test_the_tokens_per_sec_of_a_side_are_the_median_over_its_runs_as_everywhere_and_the_ratio_is_of_means(self):
        a, b = side("a", found(FAST, 1.0, 1.0, 1.0)), side("b", found(SLOW, 1.0, 1.1, 1.6))
        answer = compare_sides(a, b, 0.05).to_json()
        assert answer["b"]["tokens_per_sec"] == pytest.approx(65536 / 1.1)
        assert answer["ratio"] == pytest.approx((1.0 * 1.1 * 1.6) ** (-1 / 3))

    def test_fast_steps_that_say_otherwise_are_reported_beside_it(self):
        a, b = side("a", found(FAST, 1.0, 1.0)), side("b", found(SLOW, 2.0, 2.0))
        a, b = (with_fast(one, fast_s) for one, fast_s in ((a, 0.9), (b, 0.91)))
        answer = compare_sides(a, b, 0.05).to_json()
        assert (answer["verdict"], answer["ratio"]) == ("inconclusive", pytest.approx(0.5))
        assert answer["fast_ratio"] == pytest.approx(0.9 / 0.91)
        assert answer["fast_ratio_low"] < answer["fast_ratio"] < answer["fast_ratio_high"]

    @pytest.mark.parametrize(
        "other",
        [
            {"model__num_layers": 24},
            {"cluster__accelerator": "a100-80gb"},
            {"cluster__num_nodes": 2},
            {"global_batch_size": 8},
            {"measure__routing": "learned"},
        ],
    )
    def test_another_model_batch_routing_or_cluster_is_not_comparable_and_named(self, other):
        a, b = side("a", found(FAST, 1.0)), side("b", found(FAST, 0.5), **other)
        result = compare_sides(a, b, 0.05)
        (name,) = (key.replace("__", ".") for key in other)
        assert (result.verdict, result.obstacles) == (CompareVerdict.NOT_COMPARABLE, (name,))
        assert result.question == ({"field": name, "a": QUESTION[name], "b": next(iter(other.values()))},)
        assert result.to_json()["ratio"] is None
        assert result.pairs == ()

    def test_another_device_is_other_hardware_and_one_that_is_not_known_is_not(self):
        a = side("a", found(FAST, 1.0))
        result = compare_sides(a, side("b", found(FAST, 0.5, device="NVIDIA H200")), 0.05)
        assert result.obstacles == ("device",)
        assert compare_sides(a, side("b", found(FAST, 0.5, device=None)), 0.05).found is not None

    def test_engines_are_not_compared_where_a_cpu_emulates_the_gpu_of_one(self):
        mine, theirs = found(FAST, 1.0), found(replace(FAST, engine="megatron-core"), 0.5)
        cpu = {"cluster__accelerator": "cpu"}
        result = compare_sides(side("a", mine, **cpu), side("b", theirs, **cpu), 0.05)
        assert (result.verdict, result.obstacles) == (CompareVerdict.NOT_COMPARABLE, ("emulated_engine",))
        assert result.question == ({"field": "emulated_engine", "a": "torch", "b": "megatron-core"},)
        assert result.pairs == ()
        assert compare_sides(side("a", theirs, **cpu), side("b", theirs, **cpu), 0.05).found is not None
        assert compare_sides(side("a", mine), side("b", theirs), 0.05).verdict is CompareVerdict.FASTER

    def test_other_software_or_another_trainer_is_named_and_compared(self):
        b = side("b", found(FAST, 0.5, torch="2.6.0", job_id="9"), trainer__kind="megatron-lm")
        result = compare_sides(side("a", found(FAST, 1.0)), b, 0.05)
        assert result.verdict is CompareVerdict.FASTER
        assert result.software == ({"field": "torch", "a": "2.4.0", "b": "2.6.0"},)
        assert [row["field"] for row in result.question] == ["trainer.kind"]

    def test_without_a_measurement_there_is_none_and_whose_it_is_is_said(self):
        result = compare_sides(side("a", found(FAST, 1.0)), side("b", None, failed(FAST)), 0.05)
        assert result.verdict is CompareVerdict.NOT_COMPARABLE
        assert result.detail == "b has found no best layout"
        assert [pair.found for pair in result.pairs] == [None]


def test_the_layouts_differ_field_by_field():
    rows = compare_sides(side("a", found(FAST, 1.0)), side("b", found(SLOW, 1.0)), 0.05).layout
    told = {row["field"]: (row["a"], row["b"]) for row in rows}
    assert told["tensor_parallel"] == (2, 1)
    assert told["grad_accum_steps"] == (64, 32)
    assert "zero_stage" not in told


def test_layouts_that_both_tried_are_compared_one_by_one_also_where_one_failed():
    a = side("a", found(FAST, 1.0, 1.0), found(SLOW, 2.0, 2.0))
    b = side("b", found(SLOW, 1.0, 1.0), failed(FAST))
    fast, slow = compare_sides(a, b, 0.05).to_json()["common"]
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
            code = run(["run", str(write_simulated_search(tmp_path / name, *rows, text=text)), "--json"])
            assert code == 0
            folders[name] = SearchFolder(tmp_path / "runs" / json.loads(capfd.readouterr().out)["search_id"])
        return folders

    @pytest.mark.slow
    def test_searches_and_recipes_by_id_and_folder_are_answered_alike(self, searches, capfd, tmp_path):
        first, second = searches.values()
        answers = []
        for a, b in (
            (first.search_id, second.search_id[:8]),
            (str(first.path), str(second.recipe)),
            (str(first.recipe / "recipe.yaml"), str(second.recipe)),
        ):
            assert run(["compare", a, b, "--json"]) == 0
            answers.append(json.loads(capfd.readouterr().out))
        names = ("ratio", "ratio_low", "ratio_high", "verdict", "layout", "question")
        assert [answer["verdict"] for answer in answers] == ["faster"] * 3
        assert answers[0]["ratio"] == pytest.approx(3.5 / 1.5)
        assert {name: answers[2][name] for name in names} == {name: answers[0][name] for name in names}
        whole = answers[0]
        assert whole["a"]["search"]["trials"] == {
            "measured": 2,
            "stopped_early": 0,
            "failed": 1,
            "cancelled": 0,
            "in_flight": 0,
        }
        assert whole["a"]["search"]["reasons"] == {"gpu_oom": 1}
        to_best = whole["a"]["search"]["to_best"]
        assert to_best["trials"] >= 1
        assert 0 < to_best["node_hours"] <= whole["a"]["search"]["node_hours"]
        assert to_best["seconds"] > 0
        states = {(pair["a"]["state"], pair["b"]["state"]) for pair in whole["common"]}
        assert states == {("measured", "measured"), ("measured", "failed")}
        assert answers[1]["common"] == []

        assert run(["compare", first.search_id, second.search_id]) == 0
        text = capfd.readouterr().out
        assert "faster: B is 2.333x as fast as A (95 % confidence interval" in text
        assert "layouts that both tried" in text

    @pytest.mark.slow
    def test_a_search_that_goes_on_and_a_recipe_are_sides_like_any_other(self, searches, tmp_path):
        first = searches["first"]
        spec = load_search_file(tmp_path / "first" / "search.yaml")
        events = Journal(first.journal).read()
        whole = side_of_search(fold(first.search_id, events), spec, str(first.path))
        begun = side_of_search(fold(first.search_id, events[:4]), spec, str(first.path))
        assert compare_sides(begun, whole, 0.05).detail == f"{first.search_id} has found no best layout"
        result = compare_sides(whole, side_of_recipe(read_recipe(first.recipe)), 0.05)
        assert (result.verdict, result.found.ratio) == (CompareVerdict.SAME, 1.0)
        assert result.question == result.layout == result.software == ()


@pytest.mark.parametrize("margin", ["0", "0.5", "nan"])
def test_a_margin_that_is_none_is_bad_input(margin, capfd):
    assert run(["compare", "a", "b", "--margin", margin, "--json"]) == 2
    assert json.loads(capfd.readouterr().out)["error"]["key"] == "margin"


def test_what_is_neither_a_search_nor_a_recipe_is_refused(tmp_path, capfd):
    assert run(["compare", str(tmp_path), "b", "--json"]) == 2
    assert run(["compare", "nothing", "b", "--json"]) == 4
