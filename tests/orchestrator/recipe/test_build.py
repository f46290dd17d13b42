from __future__ import annotations

import sys
from dataclasses import fields, replace

import pytest

from orchestrator.recipe.build import build_recipe, evidence
from orchestrator.recipe.recipe import Recipe
from orchestrator.recipe.render import readme
from orchestrator.recipe.write import recipe_files
from search_spaces.cost_model.memory import StageMemory
from search_spaces.hardware.cluster import ACCELERATORS, Cluster
from search_spaces.hardware.links import Fabric, LinkDomain, Links
from search_spaces.layouts.layout import Layout
from tests.kit import FULLEST, with_metrics
from tests.orchestrator.recipe.builders import LAYOUT, SLOWER_LAYOUT, measured_trial, source_of
from trials.analysis.best_layout import Fastest
from trials.analysis.ranked_layout import RankedLayout
from trials.analysis.ranking import Objective, rank
from trials.trial import FailureReason, Trial, TrialKind, TrialState


def built(source):
    return build_recipe(source, "2026-01-01T00:00:00.000000Z", "0.1.0", {})


def changed(trial: Trial, **fields) -> Trial:
    """The trial with these fields of its last attempt's outcome."""
    attempt = trial.last_attempt
    return replace(trial, attempts=(replace(attempt, outcome=replace(attempt.outcome, **fields)),))


def test_the_layout_run_today_comes_first_and_says_how_many_times_faster_the_recipe_is():
    today, best = measured_trial("t0001", SLOWER_LAYOUT, 0.2), measured_trial("t0002", LAYOUT, 0.1)
    other = measured_trial("t0003", replace(LAYOUT, grad_accum_steps=2, micro_batch_size=4), 0.15)
    recipe = built(source_of(today, best, other, baseline=today))
    assert [c["trial"] for c in recipe.compared_with] == ["t0001", "t0003"]
    assert recipe.baseline["speedup"] == pytest.approx(2.0)
    assert recipe.baseline["speedup_low"] < 2.0 < recipe.baseline["speedup_high"]
    recipe = built(source_of(today, best, baseline=best))
    assert (recipe.baseline["trial"], recipe.baseline["speedup"]) == ("t0002", 1.0)


def test_a_layout_that_is_slower_than_todays_is_not_said_to_be_faster():
    slow, fast = measured_trial("t0001", LAYOUT, 0.2), measured_trial("t0002", SLOWER_LAYOUT, 0.1)
    page = readme(built(replace(source_of(fast, slow), best=RankedLayout((slow,)))))
    assert "| 0.50x (0.48–0.52) |" in page
    assert "is faster" not in page


def test_ties_are_a_caveat_and_no_win_in_the_headline():
    recipe = built(source_of(measured_trial("t0001", LAYOUT, 0.1), measured_trial("t0002", SLOWER_LAYOUT, 0.101)))
    assert recipe.ties == ("t0002",)
    assert "Statistically tied with t0002: the 95 % intervals overlap." in recipe.caveats
    trials = [measured_trial("t0001", LAYOUT, 0.1, 0.3), measured_trial("t0002", SLOWER_LAYOUT, 0.108, 0.3)]
    recipe = built(source_of(*trials, baseline=trials[1]))
    assert recipe.verdict["kind"] == "no_winner"
    assert readme(recipe).splitlines()[0] == f"# quickstart-abc234: {recipe.verdict['headline']}"
    assert "No clear winner: 1.08x (0.58–2.01)" in recipe.verdict["headline"]


def test_a_layout_chosen_for_its_memory_says_so_and_its_numbers_are_its_own():
    first = [with_metrics(measured_trial(f"t000{n}", LAYOUT, 0.1), peak_memory_gib=63.0) for n in (1, 3, 5)]
    second = [with_metrics(measured_trial(f"t000{n}", SLOWER_LAYOUT, 0.102), peak_memory_gib=55.5) for n in (2, 4, 6)]
    trials = [first[0], second[0], *map(repeated, (*first[1:], *second[1:]))]
    today, chosen = rank(trials, Objective.TOKENS_PER_SEC, LAYOUT.global_batch_size).ordered
    recipe = built(source_of(*trials, baseline=today))
    assert (recipe.trial, recipe.selection_reason, recipe.ties) == ("t0002", "memory", ("t0001",))
    assert recipe.fastest == Fastest("t0001", pytest.approx(2560.0), 63.0)
    assert recipe.baseline["speedup"] == pytest.approx(0.1 / 0.102)
    assert "No clear winner: 0.98x (0.91–1.06)" in readme(recipe).splitlines()[0]
    tied = "No clear winner: the baseline is statistically tied with t0001"
    assert tied in readme(built(source_of(*trials, baseline=chosen))).splitlines()[0]


def test_where_there_are_several_answers_the_readme_lists_them_and_the_recipe_has_them():
    on_two = replace(LAYOUT, num_nodes=2, data_parallel=2, grad_accum_steps=2)
    recipe = built(source_of(measured_trial("t0001", on_two, 0.06), measured_trial("t0002", LAYOUT, 0.1)))
    assert [(point.trial, point.num_nodes) for point in recipe.pareto] == [("t0001", 2), ("t0002", 1)]
    assert recipe.rationale.endswith("t0002 on 1 node has 60 % of its tokens/s at 83 % of its node-hours a token")
    assert f"| t0002 | 1 | `{LAYOUT.key}` | 2,560 |" in readme(recipe)
    one = built(source_of(measured_trial("t0001", LAYOUT, 0.1), measured_trial("t0002", SLOWER_LAYOUT, 0.2)))
    assert (one.pareto, "Pareto front" in readme(one)) == ((), False)


def repeated(trial: Trial) -> Trial:
    return replace(trial, kind=TrialKind.REPEAT)


def test_what_was_measured_is_over_all_runs_of_the_layout_and_of_what_runs_today():
    today = [measured_trial(f"t000{n}", SLOWER_LAYOUT, time) for n, time in ((1, 0.2), (5, 0.4), (6, 0.4))]
    best = [measured_trial(f"t000{n}", LAYOUT, time) for n, time in ((2, 0.2), (3, 0.1), (4, 0.1))]
    trials = [today[0], best[0], *map(repeated, (*best[1:], *today[1:]))]
    ranking = rank(trials, Objective.TOKENS_PER_SEC, LAYOUT.global_batch_size)
    recipe = built(source_of(*trials, baseline=next(t for t in ranking.ordered if t.layout == SLOWER_LAYOUT)))
    assert (recipe.trial, recipe.repeats, recipe.measured.step_time_s) == ("t0002", 3, pytest.approx(0.1))
    assert recipe.baseline["speedup"] == pytest.approx(4.0)
    assert [run.step_time_s for run in recipe.evidence.runs] == [0.2, 0.1, 0.1]
    assert "95 % confidence interval over the medians of 3 runs" in readme(recipe)
    assert not any("Measured once" in caveat for caveat in recipe.caveats)


def test_a_repeat_and_a_baseline_that_failed_are_caveats_and_the_evidence_has_nodes_jobs_and_raw_step_times():
    failed = Trial("t0003", LAYOUT, TrialKind.REPEAT, TrialState.FAILED, FailureReason.NODE_FAILURE)
    today = Trial("t0002", SLOWER_LAYOUT, state=TrialState.FAILED, reason=FailureReason.GPU_OOM)
    source = source_of(measured_trial("t0001", LAYOUT, 0.1), today, failed, baseline=today)
    recipe, data = built(source), evidence(source)
    assert recipe.baseline is None
    told = ("A repeat (t0003) was not measured: node failure.", "The baseline (t0002) was not measured: out of memory.")
    assert {*told} <= {*recipe.caveats}
    [run] = data["runs"]
    assert run["outcome"]["step_times_s"] == list(source.runs[0].outcome.step_times_s)
    assert (run["job_id"], run["nodes"]) == ("local-1", ["node01"])
    assert [(other["trial"], other["reason"]) for other in data["others"]] == [
        ("t0002", "gpu_oom"),
        ("t0003", "node_failure"),
    ]


def test_flags_and_growing_memory_are_caveats_and_the_page_says_where_time_and_memory_go():
    grown = {
        "host_memory_full_at_step": 1200,
        "host_memory_slope_mib_per_step": 4.0,
        "device_memory_full_at_step": 4000,
    }
    grown |= {"allocated_memory_slope_mib_per_step": 0.0, "reserved_memory_slope_mib_per_step": 2.0}
    grown |= {"device_memory_slope_mib_per_step": 2.0, "peak_host_memory_gib": 12.5, "host_memory_available_gib": 40.0}
    trial = with_metrics(measured_trial("t0001", LAYOUT, 0.1), time_s={"compute": 0.09, "bubble": 0.01}, **grown)
    recipe = built(source_of(changed(trial, flags=("time_limit",), fullest_rank=FULLEST)))
    for words in (
        "Flagged time_limit: time limit reached before ",
        "Host memory grows by 4 MiB a step: at this rate a node is full at step 1200",
        "Device memory grows, in MiB a step: 2 used of the device, 2 reserved by the allocator, 0 allocated",
    ):
        assert any(caveat.startswith(words) for caveat in recipe.caveats), words
    assert recipe.to_json()["memory"]["fullest_rank"] == FULLEST
    assert recipe.memory["predicted_gib"]["weights"] > 0
    assert set(recipe.memory["predicted_gib"]) == {field.name for field in fields(StageMemory)}
    assert "\n- step time: compute 90 %, bubble 10 %\n" in readme(recipe)


@pytest.mark.parametrize(("order", "groups"), [("tp-dp-pp", "pipeline"), ("tp-pp-dp", "data")])
def test_the_groups_in_several_link_domains_are_a_caveat(order: str, groups: str):
    layout = Layout(
        num_nodes=4, tensor_parallel=2, pipeline_parallel=2, data_parallel=2, pipeline_schedule="1f1b", rank_order=order
    )
    rack = Links((LinkDomain("node", 2, 90, 6), LinkDomain("rack", 4, 90, 9)), Fabric(20, 5))
    source = source_of(measured_trial("t0001", layout, 0.1))
    racks = Cluster(ACCELERATORS["cpu"], 2, 4, rack).to_json()
    searched = replace(source.search, spec={**source.search.spec, "cluster": racks})
    told = [caveat for caveat in built(replace(source, search=searched)).caveats if "link domain" in caveat]
    assert told == [f"Measured on link domains of 2 nodes. Groups in several of them: {groups}."]
    assert not any("link domain" in caveat for caveat in built(source).caveats)


@pytest.mark.bad_input(50)
def test_control_characters_do_not_reach_the_recipe():
    trial = changed(measured_trial("t0001", LAYOUT, 0.1), fingerprint={"device": "CPU\x1b[31m\nred"})
    assert built(source_of(trial)).fingerprint == {"device": "CPU [31m red"}


def test_runs_of_too_few_steps_for_an_interval_are_reported_without_one():
    trials = [measured_trial("t0001", LAYOUT, 0.1), measured_trial("t0002", SLOWER_LAYOUT, 0.2)]
    ends = ("tokens_per_sec_low", "tokens_per_sec_high", "step_time_low_s", "step_time_high_s")
    trials = [with_metrics(trial, **dict.fromkeys(ends)) for trial in trials]
    page = readme(built(source_of(*trials, baseline=trials[1])))
    assert "No clear winner: 2.00x (interval unknown)" in page
    assert "| 2.00x |" in page
    assert "95 %" not in page


@pytest.mark.parametrize(
    ("trainer", "words"),
    [
        ({}, "221 million tokens a day without checkpoints, whose cost is not stated (trainer.checkpoint)"),
        (
            {"checkpoint": {"every_steps": 90, "stall": "1s"}},
            "199 million tokens a day: checkpoints stall the training for 1 s each, 10 % of its time",
        ),
    ],
)
def test_the_tokens_a_day_count_the_checkpoints_that_were_stated(trainer, words):
    source = source_of(measured_trial("t0001", LAYOUT, 0.1))
    recipe = built(replace(source, search=replace(source.search, spec={"trainer": trainer})))
    assert f"\n- {words}\n" in readme(recipe)
    assert Recipe.from_json(recipe.to_json()).training_rate == recipe.training_rate


@pytest.mark.parametrize(
    ("software", "trainer", "started"),
    [
        ({}, {}, sys.executable),
        ({}, {"python": "/opt/a/start.sh"}, "/opt/a/start.sh"),
        ({"python": "/opt/b/start.sh"}, {"python": "/opt/a/start.sh"}, "/opt/b/start.sh"),
    ],
)
def test_the_recipe_starts_what_the_search_started_not_what_that_started(software, trainer, started):
    """A script that prepares the environment is part of the measurement."""
    source = source_of(measured_trial("t0001", LAYOUT.with_software(software), 0.1))
    source = replace(source, search=replace(source.search, spec={"trainer": trainer}))
    assert built(source).python == started
    assert f"default: {started})" in recipe_files(source, "2026-11-28T00:00:00Z", "0" * 64)["launch.sh"]
