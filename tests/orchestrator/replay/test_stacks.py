"""Comparison of the two software stacks of an experiment, from its record."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.replay.stacks import StackVerdict, stack_comparison
from search_spaces.layouts.layout import Layout
from tests.contract.answers import assert_as_declared
from tests.kit import MINIMAL, OUTCOME, loaded, metrics
from trials.ledger.events import SearchRecord
from trials.trial import Attempt, FailureReason, Flag, Trial, TrialKind, TrialState

PYTHON = "/opt/b/bin/python"
LAYOUTS = [Layout(num_nodes=2, data_parallel=8 // tp, tensor_parallel=tp, micro_batch_size=2 * tp) for tp in (1, 2, 4)]


def run(number: int, layout: Layout, tokens_per_sec: float | None, torch: str = "2.13.0") -> Trial:
    name = f"t{number:04d}"
    attempt = Attempt(name, "a1", "0" * 32, 1, 60.0)
    if tokens_per_sec is None:
        failed = replace(attempt, state=TrialState.FAILED, reason=FailureReason.GPU_OOM)
        return Trial(name, layout, state=TrialState.FAILED, reason=FailureReason.GPU_OOM, attempts=(failed,))
    known = metrics(tokens_per_sec, tokens_per_sec_low=0.99 * tokens_per_sec, tokens_per_sec_high=1.01 * tokens_per_sec)
    outcome = replace(OUTCOME, measured=known, fingerprint={"torch": torch, "kernel": "6.1", "nccl": torch})
    measured = replace(attempt, state=TrialState.MEASURED, outcome=outcome)
    return Trial(name, layout, state=TrialState.MEASURED, attempts=(measured,))


def both(number: int, layout: Layout, own: float | None, other: float | None) -> list[Trial]:
    side = layout.with_software({"python": PYTHON})
    return [run(number, layout, own), run(number + 1, side, other, "2.14.0")]


def test_each_layout_has_a_line_with_its_verdict_and_what_differs_comes_once(tmp_path: Path):
    spec = loaded(tmp_path, MINIMAL, f"search.against={PYTHON}")
    rounds = [both(number, LAYOUTS[0], 1000.0, 1200.0) for number in (1, 3)]
    rounds[1] = [replace(trial, kind=TrialKind.REPEAT) for trial in rounds[1]]
    trials = [*rounds[0], *rounds[1], *both(5, LAYOUTS[1], 1000.0, 1005.0), *both(7, LAYOUTS[2], None, 900.0)]
    found = stack_comparison(SearchRecord("one-aaaaaa", {}, "c0de", 1e9, trials=tuple(trials)), spec)
    assert [one.verdict for one in found.layouts] == [
        StackVerdict.FASTER,
        StackVerdict.UNDECIDED,
        StackVerdict.NOT_MEASURED,
    ]
    assert (found.layouts[0].ratio, found.layouts[0].pairs) == (pytest.approx(1.2), 2)
    assert [pair.field for pair in found.software] == ["torch", "nccl"]
    answer = found.plain()
    assert_as_declared(answer)
    assert answer["layouts"][2] == {
        "layout_key": LAYOUTS[2].key,
        "a": None,
        "b": {"trial": "t0008", "value": 900.0, "runs": 1},
        "ratio": None,
        "ratio_low": None,
        "ratio_high": None,
        "pairs": 0,
        "verdict": "not_measured",
    }


@pytest.mark.parametrize("missing", ["suspect", "failed"])
def test_a_run_whose_partner_does_not_count_is_in_no_pair(tmp_path: Path, missing: str):
    """The machine becomes twice as fast after each of three rounds. In the second one run was on a suspect node, or
    failed."""
    spec = loaded(tmp_path, MINIMAL, f"search.against={PYTHON}")
    trials: list[Trial] = []
    for number, speed in ((1, 1000.0), (3, 2000.0), (5, 4000.0)):
        pair = both(number, LAYOUTS[0], speed, 1.1 * speed)
        if number == 3:
            pair[1] = suspect(pair[1]) if missing == "suspect" else both(number, LAYOUTS[0], None, None)[1]
        trials += [replace(trial, kind=TrialKind.SEARCH if number == 1 else TrialKind.REPEAT) for trial in pair]
    (found,) = stack_comparison(SearchRecord("one-aaaaaa", {}, "c0de", 1e9, trials=tuple(trials)), spec).layouts
    assert (found.ratio, found.pairs) == (pytest.approx(1.1), 2)
    assert found.verdict is StackVerdict.FASTER


def suspect(trial: Trial) -> Trial:
    last = trial.last_attempt
    return replace(trial, attempts=(replace(last, outcome=replace(last.outcome, flags=(Flag.SUSPECT_NODE,))),))
