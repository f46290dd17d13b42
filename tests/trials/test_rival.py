from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.trials.examples import SPEC
from trials.rival import READ_EVERY_S, Rival, RivalWatch, may_stop, read_rival
from trials.trial import TrialKind

HERE = {"python": "3.11.7", "torch": "2.13.0", "host": "n1"}
TOKENS = SPEC.global_batch_size * SPEC.model.seq_length
BEST = {
    "schema": "parlay.best/1",
    "search_id": SPEC.search_id,
    "trial": "t0007",
    "objective": "tokens_per_sec",
    "global_batch_size": SPEC.global_batch_size,
    "threshold": 1000.0,
    "fingerprint": {"torch": "2.13.0", "deepspeed": "0.19.8"},
}


def rival_in(path: Path, **changes: Any) -> Rival | None:
    path.write_text(json.dumps(BEST | changes))
    return read_rival(SPEC, path, HERE)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "best.json"


def test_the_best_of_the_search_asks_for_a_step_time(path):
    assert rival_in(path) == Rival("t0007", TOKENS / 1000.0)


def test_an_objective_for_each_gpu_or_node_is_for_this_trials_own(path):
    # Four GPUs on one node.
    assert rival_in(path, objective="tokens_per_sec_per_gpu") == Rival("t0007", TOKENS / 4000.0)
    assert rival_in(path, objective="node_hours_per_billion_tokens") == Rival("t0007", TOKENS / 1000.0)


@pytest.mark.parametrize(
    "changes",
    [
        {"schema": "parlay.best/2"},
        {"schema": "parlay.status/1"},
        {"search_id": "other-bbbbbb"},
        {"trial": SPEC.trial},
        {"global_batch_size": 2 * SPEC.global_batch_size},
        {"fingerprint": {"torch": "2.12.0"}},
        {"fingerprint": None},
        {"objective": "loss"},
        {"threshold": 0},
        {"threshold": None},
        {"threshold": "fast"},
    ],
    ids=str,
)
def test_what_cannot_be_compared_is_no_rival(path, changes):
    assert rival_in(path, **changes) is None


@pytest.mark.parametrize("name", sorted(BEST))
def test_a_file_without_a_name_is_no_rival(path, name):
    path.write_text(json.dumps({key: value for key, value in BEST.items() if key != name}))
    assert read_rival(SPEC, path, HERE) is None


@pytest.mark.parametrize("text", ["", "[]", '{"schema": "parlay.be', '{"threshold": NaN}'])
def test_a_damaged_file_is_no_rival(path, text):
    path.write_text(text)
    assert read_rival(SPEC, path, HERE) is None


def test_nor_is_one_that_is_missing_or_cannot_be_read(tmp_path):
    assert read_rival(SPEC, tmp_path / "best.json", HERE) is None
    assert read_rival(SPEC, tmp_path, HERE) is None


def test_it_is_read_now_and_then(path):
    seconds = [100.0]
    watch = RivalWatch(SPEC, path, HERE, now=lambda: seconds[0])
    assert watch.look() is None
    path.write_text(json.dumps(BEST))
    seconds[0] += READ_EVERY_S - 1
    assert watch.look() is None
    seconds[0] += 1
    assert watch.look() == watch.rival == Rival("t0007", TOKENS / 1000.0)


def test_a_repeat_never_ends_itself_nor_does_what_its_rules_forbid():
    assert may_stop(SPEC)
    assert not may_stop(replace(SPEC, kind=TrialKind.FINALIST))
    assert not may_stop(replace(SPEC, kind=TrialKind.REPLAY))
    assert not may_stop(replace(SPEC, measure=replace(SPEC.measure, stop_dominated=False)))
