from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit import SPEC
from tests.trials.analysis.test_pareto import on
from tests.trials.analysis.test_ranking import OF_THROUGHPUT
from trials.analysis.early_stopping import (
    READ_EVERY_S,
    Incumbent,
    IncumbentWatcher,
    incumbents_of,
    may_stop_early,
    read_incumbent,
)
from trials.analysis.pareto import pareto
from trials.analysis.ranking import Objective, rank
from trials.trial import TrialKind, TrialSpec

HERE = {"python": "3.11.7", "torch": "2.13.0", "host": "n1"}
TOKENS = SPEC.global_batch_size * SPEC.model.seq_length
FASTEST = {"trial": "t0007", "num_nodes": 1, "threshold": 1000.0}
FASTEST["fingerprint"] = {"torch": "2.13.0", "deepspeed": "0.19.8"}
BEST = {
    "schema": "parlay.incumbents/1",
    "search_id": SPEC.search_id,
    "objectives": ["tokens_per_sec"],
    "global_batch_size": SPEC.global_batch_size,
    "incumbents": [FASTEST],
}


def incumbent_in(path: Path, spec: TrialSpec = SPEC, **changes: Any) -> Incumbent | None:
    path.write_text(json.dumps(BEST | changes))
    return read_incumbent(spec, path, HERE)


def among(path: Path, num_nodes: int, objectives: Sequence[Objective], **tokens_per_sec: float) -> Incumbent | None:
    """The incumbent of a trial on `num_nodes` nodes; the others are `on_2=300.0`, tokens per second by their nodes."""
    incumbents = [
        FASTEST | {"trial": name, "num_nodes": int(name.removeprefix("on_")), "threshold": speed}
        for name, speed in tokens_per_sec.items()
    ]
    spec = replace(SPEC, layout=replace(SPEC.layout, num_nodes=num_nodes))
    return incumbent_in(path, spec, incumbents=incumbents, objectives=objectives)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "best.json"


def test_the_best_of_the_search_asks_for_a_step_time_of_its_share_of_nodes(path):
    assert incumbent_in(path) == Incumbent("t0007", TOKENS / 1000.0)
    assert among(path, 4, [Objective.TOKENS_PER_SEC], on_1=100.0, on_2=300.0) == Incumbent("on_2", TOKENS / 300.0)
    for share in (Objective.TOKENS_PER_SEC_PER_GPU, Objective.NODE_HOURS_PER_BILLION_TOKENS):
        assert among(path, 4, [share], on_1=200.0, on_2=300.0) == Incumbent("on_1", TOKENS / 800.0)
    both = [Objective.NODE_HOURS_PER_BILLION_TOKENS, Objective.TOKENS_PER_SEC]
    assert among(path, 4, both, on_2=300.0) == Incumbent("on_2", TOKENS / 300.0)
    assert among(path, 1, both, on_2=300.0) == Incumbent("on_2", TOKENS / 150.0)
    for objective in OF_THROUGHPUT:  # a layout on fewer nodes may be an answer beside one on more
        assert among(path, 1, [objective], on_2=1e9) is None, objective
        assert among(path, 1, [objective], on_1=100.0, on_2=1e9) == Incumbent("on_1", TOKENS / 100.0), objective


@pytest.mark.parametrize(
    "changes",
    [
        *({"schema": schema} for schema in ("parlay.incumbents/2", "parlay.status/1")),
        {"search_id": "other-bbbbbb"},
        {"global_batch_size": 2 * SPEC.global_batch_size},
        *({"objectives": objectives} for objectives in (["loss"], [])),
        *({"incumbents": incumbents} for incumbents in ([], None)),
        *({"incumbents": [FASTEST | wrong]} for wrong in ({"trial": SPEC.trial}, {"num_nodes": 0})),
        *({"incumbents": [FASTEST | {"fingerprint": wrong}]} for wrong in ({"torch": "2.12.0"}, None)),
        *({"incumbents": [FASTEST | {"threshold": wrong}]} for wrong in (0, None, "fast")),
    ],
    ids=str,
)
def test_what_cannot_be_compared_is_no_incumbent(path, changes):
    assert incumbent_in(path, **changes) is None


WITHOUT_A_NAME = [
    *({key: value for key, value in BEST.items() if key != name} for name in BEST),
    *(BEST | {"incumbents": [{k: v for k, v in FASTEST.items() if k != name}]} for name in FASTEST),
]


@pytest.mark.parametrize(
    "text", ["", "[]", '{"schema": "parlay.be', '{"threshold": NaN}', *map(json.dumps, WITHOUT_A_NAME)]
)
def test_a_file_that_lacks_a_name_or_is_damaged_missing_or_cannot_be_read_is_no_incumbent(path, text):
    assert read_incumbent(SPEC, path, HERE) is None
    path.write_text(text)
    assert read_incumbent(SPEC, path, HERE) is None
    assert read_incumbent(SPEC, path.parent, HERE) is None


def test_it_is_read_now_and_then_and_never_by_a_repeat(path):
    seconds = [100.0]
    watch = IncumbentWatcher(SPEC, path, HERE, now=lambda: seconds[0])
    assert watch.look() is None
    path.write_text(json.dumps(BEST))
    seconds[0] += READ_EVERY_S - 1
    assert watch.look() is None
    seconds[0] += 1
    assert watch.look() == watch.incumbent == Incumbent("t0007", TOKENS / 1000.0)
    assert may_stop_early(SPEC)
    assert not may_stop_early(replace(SPEC, kind=TrialKind.REPEAT))
    assert not may_stop_early(replace(SPEC, kind=TrialKind.REPLAY))
    assert not may_stop_early(replace(SPEC, measure=replace(SPEC.measure, early_stopping=False)))


@pytest.mark.slow
@given(
    others=st.lists(st.tuples(st.sampled_from([1, 2, 4]), st.floats(10.0, 1e4)), min_size=1, max_size=6),
    own=st.tuples(st.sampled_from([1, 2, 4]), st.floats(10.0, 1e4)),
    objectives=st.permutations(OF_THROUGHPUT).flatmap(lambda found: st.sampled_from([found[:1], found[:2], found])),
)
def test_what_would_end_itself_is_never_one_of_the_answers(tmp_path_factory, others, own, objectives):
    first, *beside = objectives
    known = [on(nodes, number, speed) for number, (nodes, speed) in enumerate(others, 1)]
    by_nodes = [[run for run in known if run.layout.num_nodes == nodes] for nodes in {nodes for nodes, _ in others}]
    rankings = [rank(runs, first, 8, None, tuple(beside)) for runs in (known, *by_nodes)]
    run = on(own[0], 9, own[1])
    spec = replace(SPEC, trial=run.trial, layout=run.layout, global_batch_size=8)
    path = tmp_path_factory.getbasetemp() / "best-of-several.json"
    path.write_text(json.dumps(incumbents_of(rankings[1:], spec.search_id, 8).to_json()))
    incumbent = read_incumbent(spec, path, HERE)
    if incumbent is not None and 8 * spec.model.seq_length / own[1] > 1.1 * incumbent.step_time_s:
        answers = pareto(rank([*known, run], first, 8, None, tuple(beside)))
        assert run.trial not in {answer.trial for answer in answers}
