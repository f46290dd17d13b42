"""A search over several node counts: the best layout of each is measured, despite early stopping."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.search.stopping import Limits
from search_spaces.layouts.layout import Layout
from tests.orchestrator.scripted import Script
from tests.rig import Rig
from trials.analysis.early_stopping import may_stop_early, read_incumbent
from trials.analysis.pareto import pareto
from trials.analysis.ranking import Objective, rank
from trials.ledger.events import SearchRecord
from trials.trial import FailureReason, TrialKind, TrialSpec, TrialState

pytestmark = pytest.mark.slow


def layout_on(nodes: int, micro: int) -> Layout:
    """A layout on nodes of four ranks; the larger micro-batch is the faster one."""
    return Layout(
        nodes, tensor_parallel=4, data_parallel=nodes, micro_batch_size=micro, grad_accum_steps=16 // (nodes * micro)
    )


FAST, SLOW = ([layout_on(nodes, micro) for nodes in (4, 2, 1)] for micro in (4, 2))
LAYOUTS = tuple(layout for pair in zip(FAST, SLOW, strict=True) for layout in pair)
SPEEDS = {4: 3000.0, 2: 2000.0, 1: 600.0}


def searched(path: Path, *others: Objective) -> SearchRecord:
    """Run a search whose trials stop early against best.json. The fastest layout is measured first."""
    limits = Limits(max_trials=len(LAYOUTS), parallel_trials=1, finalists=1, finalist_repeats=1)
    rig = Rig("jobs", path, limits, LAYOUTS, num_nodes=4, others=others)

    def script(spec: TrialSpec, restart: int) -> Script:
        speed = SPEEDS[spec.layout.num_nodes] / (1 if spec.layout in FAST else 2)
        incumbent = read_incumbent(spec, rig.folder.best, {}) if may_stop_early(spec) else None
        step_time_s = spec.global_batch_size * spec.model.seq_length / speed
        if incumbent is not None and step_time_s > 1.1 * incumbent.step_time_s:
            return Script(reason=FailureReason.PRUNED, duration_s=20.0)
        return Script(tokens_per_sec=speed)

    rig.script = script
    return rig.run()


def layouts_of(search: SearchRecord, state: TrialState, kind: TrialKind = TrialKind.SEARCH) -> list[Layout]:
    return [trial.layout for trial in search.trials if (trial.state, trial.kind) == (state, kind)]


def answers(search: SearchRecord, *others: Objective) -> list[Layout]:
    return [trial.layout for trial in pareto(rank(search.trials, Objective.TOKENS_PER_SEC, 16, others=others))]


def test_each_number_of_nodes_is_an_answer_that_was_measured_again_and_what_is_slower_on_it_ends_itself(tmp_path):
    search = searched(tmp_path)
    assert layouts_of(search, TrialState.MEASURED) == FAST
    assert layouts_of(search, TrialState.FAILED) == SLOW
    assert answers(search) == layouts_of(search, TrialState.MEASURED, TrialKind.REPEAT) == FAST


def test_with_several_objectives_what_is_worse_in_all_of_them_ends_itself_on_fewer_nodes_too(tmp_path):
    search = searched(tmp_path, Objective.NODE_HOURS_PER_BILLION_TOKENS)
    assert layouts_of(search, TrialState.FAILED) == [*SLOW[:2], FAST[2], SLOW[2]]
    assert answers(search, Objective.NODE_HOURS_PER_BILLION_TOKENS) == FAST[:2]
