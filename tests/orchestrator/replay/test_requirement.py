"""A required speed: verdicts, the budget, the report for CI, and slow nodes by short runs on parts of the nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from orchestrator.replay.node_search import fewest_nodes, layout_on
from orchestrator.replay.replay import ReplayRules, replay
from orchestrator.replay.requirement import BudgetSpent, NodeHourBudget, Requirement, RequirementVerdict, junit_xml
from orchestrator.replay.slow_nodes import Group, node_groups, slow_nodes
from orchestrator.replay.speed_ratio import Run
from search_spaces.errors import InputError
from search_spaces.layouts.layout import Layout
from tests.orchestrator.replay.test_replay import loaded  # noqa: F401
from tests.orchestrator.scripted import ScriptedLauncher, in_turn
from trials.files.folders import SearchFolder


def taking(seconds: float, *step_times_s: float) -> ScriptedLauncher:
    """Runs with these step times, each of so many seconds."""
    launcher = in_turn(*step_times_s)
    script = launcher.script
    launcher.script = lambda spec: replace(script(spec), duration_s=seconds)
    return launcher


def required(loaded, tmp_path, *step_times_s: float):  # noqa: F811
    asked, launcher = ReplayRules(3, require=Requirement(0.95)), taking(1.0, *step_times_s)
    answer = replay(loaded, launcher, SearchFolder(tmp_path / "again"), python="python3", rules=asked)
    return answer, launcher


@pytest.mark.parametrize(
    ("step_time_s", "verdict", "sessions"),
    [(0.1, "pass", 1), (0.09, "pass", 1), (0.14, "fail", 1), (0.107, "inconclusive", 5)],
    ids=["as fast", "faster", "much slower", "a little slower"],
)
def test_sessions_end_once_the_requirement_is_met_or_failed(loaded, tmp_path, step_time_s, verdict, sessions):  # noqa: F811
    answer, launcher = required(loaded, tmp_path, *[step_time_s] * 15)
    assert (answer.requirement.verdict, len(launcher.requests)) == (verdict, 3 * sessions)
    assert 0 < answer.requirement.node_hours_used < answer.requirement.node_hours


def test_no_run_starts_that_may_not_fit_into_the_budget(loaded, tmp_path):  # noqa: F811
    launcher = taking(20.0, *[0.107] * 15)
    whole = launcher.reservation_node_s(loaded.spec().measure.time_limit_s + 30, 1) / 3600
    rules = ReplayRules(3, require=Requirement(0.95, node_hours=1.5 * whole))
    answer = replay(loaded, launcher, SearchFolder(tmp_path / "again"), python="python3", rules=rules)
    assert 0 < len(launcher.requests) < 15
    assert answer.requirement.verdict is RequirementVerdict.INCONCLUSIVE
    assert answer.requirement.node_hours_used <= answer.requirement.node_hours
    assert "node-hours" in answer.detail


def test_a_run_that_may_not_fit_is_refused():
    budget = NodeHourBudget(1.0, used=0.5)
    budget.require(0.5)
    with pytest.raises(BudgetSpent):
        budget.require(0.51)


@pytest.mark.parametrize(("ratio", "node_hours"), [(0, None), (-1, None), (3, None), (float("nan"), None), (0.9, 0)])
def test_what_no_machine_can_reach_or_no_budget_holds_is_refused(ratio, node_hours):
    with pytest.raises(InputError) as caught:
        Requirement(ratio, node_hours)
    assert caught.value.problems[0].key == ("--require" if node_hours is None else "--node-hours")


@pytest.mark.parametrize(("step_time_s", "child"), [(0.1, None), (0.14, "failure"), (0.107, "skipped")])
def test_junit_has_one_case_that_fails_or_is_skipped_by_the_verdict(loaded, tmp_path, step_time_s, child):  # noqa: F811
    answer, _ = required(loaded, tmp_path, *[step_time_s] * 15)
    suite = ElementTree.fromstring(junit_xml("<a&b>", answer.requirement, "slow:\n<node>", 1.0))
    (case,) = suite
    assert [found.tag for found in case] == ([] if child is None else [child])
    assert case.get("name") == "<a&b>"


class Cluster:
    """Nodes whose runs take as long as their slowest, and every run a little longer than the one before."""

    def __init__(self, **slow: float):
        self.slow, self.runs = slow, list[Sequence[Group]]()

    def measure(self, groups: Sequence[Group]) -> Run:
        self.runs.append(groups)
        seconds = 0.1 * max(self.slow.get(node, 1.0) for group in groups for node in group)
        return Run(seconds, seconds, seconds, started_s=60.0 * len(self.runs))


@pytest.mark.parametrize("num_nodes", [2, 3, 5, 8, 13, 32])
@pytest.mark.parametrize("place", [0, 1, -1])
def test_a_slow_node_is_named_with_its_speed_wherever_it_is(num_nodes, place):
    nodes = [f"n{number}" for number in range(num_nodes)]
    cluster = Cluster(**{nodes[place]: 1.5})
    (found,) = slow_nodes(node_groups(nodes, 1), cluster.measure, 0.05)
    assert found.nodes == [nodes[place]]
    assert found.ratio == pytest.approx(1 / 1.5, rel=0.01)
    assert len(cluster.runs) <= 22


def test_equal_nodes_are_not_named_and_several_slow_ones_are():
    nodes = [f"n{number}" for number in range(4)]
    assert [*slow_nodes(node_groups(nodes, 1), Cluster().measure, 0.05)] == []
    found = slow_nodes(node_groups(nodes, 1), Cluster(n1=1.5, n2=2.0).measure, 0.05)
    assert [each.nodes for each in found] == [["n1"], ["n2"]]


def test_nodes_that_hold_a_copy_of_the_model_together_are_one_group():
    layout = Layout(num_nodes=4, tensor_parallel=8, pipeline_parallel=2, data_parallel=2, zero_stage=1)
    assert fewest_nodes(layout) == 2
    assert node_groups(["a", "b", "c", "d"], 2) == [("a", "b"), ("c", "d")]
    part = layout_on(layout, 2)
    assert (part.num_nodes, part.data_parallel, part.num_gpus) == (2, 1, 16)
