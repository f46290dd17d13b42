"""Line 41, and other files in an attempt's folder that no trial of ours wrote."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.search.attempt_factory import MAX_OUTCOME_BYTES, AttemptFactory
from search_spaces.hardware.cluster import ACCELERATORS, Cluster
from tests.bad_inputs.cli import endless, pipe
from tests.kit import MEASURED, OUTCOME, SPEC
from trials.attempt_result import AttemptResult, LaunchStatus, Liveness, classify
from trials.files import folders
from trials.files.folders import SearchFolder, read_json, read_lines, write_json
from trials.files.text import tail
from trials.measurement.step_log import StepRecord
from trials.trial import Attempt, FailureReason, Outcome, Trial, TrialState

ENDED = LaunchStatus(Liveness.ENDED, started=True)
ATTEMPT = Attempt(SPEC.trial, SPEC.attempt, SPEC.nonce, num_nodes=1, time_limit_s=630.0)
TRIAL = Trial(SPEC.trial, SPEC.layout, attempts=(ATTEMPT,))

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
ODD = st.sampled_from([10**400, -1, 0, True, "", [0], ["x"], [None], [10**400], {"a": "x"}, float("nan"), float("inf")])
NAMES = st.sampled_from(sorted({*MEASURED, *OUTCOME.proof, "mfu", "hfu", "time_s", "probe_ms_by_rank", "executable"}))


@pytest.fixture
def search(tmp_path: Path) -> SearchFolder:
    """Folder of a search with one attempt."""
    folder = SearchFolder(tmp_path / SPEC.search_id)
    folder.attempt(SPEC.trial, SPEC.attempt).path.mkdir(parents=True)
    return folder


def factory(search: SearchFolder) -> AttemptFactory:
    cluster = Cluster(ACCELERATORS["cpu"], SPEC.gpus_per_node, 1)
    return AttemptFactory(search, SPEC.model, cluster, SPEC.measure, sys.executable)


def result(search: SearchFolder) -> AttemptResult:
    """Result of the attempt, from its folder."""
    return factory(search).result(TRIAL, ATTEMPT, ENDED)


def outcome_path(search: SearchFolder) -> Path:
    return search.attempt(SPEC.trial, SPEC.attempt).outcome()


def test_the_outcome_that_these_tests_spoil_is_a_good_one(search):
    write_json(outcome_path(search), OUTCOME.to_json())
    assert result(search).state is TrialState.MEASURED


def elsewhere(path: Path) -> Path:
    """A valid outcome outside of the search's folder."""
    outside = path.parents[4] / "elsewhere"
    outside.mkdir()
    write_json(outside / path.name, OUTCOME.to_json())
    return outside


def link_to_the_file(path: Path) -> None:
    path.symlink_to(elsewhere(path) / path.name)


def link_to_the_folder(path: Path) -> None:
    path.parent.rmdir()
    path.parent.symlink_to(elsewhere(path))


def huge(path: Path) -> None:
    path.touch()
    os.truncate(path, MAX_OUTCOME_BYTES + 1)


@pytest.mark.bad_input(41)
@pytest.mark.security("paths")
@pytest.mark.parametrize("plant", [link_to_the_file, link_to_the_folder, pipe, endless, huge])
def test_an_outcome_that_is_no_plain_file_of_the_attempt_is_not_believed(search, plant: Callable):
    plant(outcome_path(search))
    ended = result(search)
    assert (ended.state, ended.reason, ended.outcome) == (TrialState.FAILED, FailureReason.RESULT_INVALID, None)
    assert ended.excerpt


@pytest.mark.bad_input(41)
@pytest.mark.security("paths")
def test_another_users_outcome_is_not_believed(search, monkeypatch):
    """Writers of a folder other than its owner: root, and users on an access list."""
    write_json(outcome_path(search), OUTCOME.to_json())
    mode, inode, device, links, owner, *others = os.stat(outcome_path(search))
    of_another = os.stat_result([mode, inode, device, links, owner + 1, *others])
    monkeypatch.setattr(folders.os, "fstat", lambda descriptor: of_another)
    assert "folder's owner" in str(result(search).excerpt)


@pytest.mark.bad_input(41)
def test_an_outcome_that_says_what_cannot_be_is_not_believed(search):
    for change in ({"restart": "0"}, {"measured": {**MEASURED, "measured_steps": 1}}):
        write_json(outcome_path(search), OUTCOME.to_json() | change)
        assert result(search).reason is FailureReason.RESULT_INVALID, change
    for text in ("", "{", "[]", '"x"', '{"a": NaN}', '{"a": 1e999}', "\0", "[" * 100_000, "\xff"):
        outcome_path(search).write_text(text, encoding="latin-1")
        assert result(search).reason is FailureReason.RESULT_INVALID, text[:80]


@pytest.mark.slow
@pytest.mark.bad_input(41)
@settings(deadline=None)
@given(st.sampled_from(["measured", "proof", "fingerprint"]), NAMES, JSON | ODD)
def test_whatever_the_numbers_are_there_is_a_verdict(section, name, value):
    data = OUTCOME.to_json()
    try:
        outcome = Outcome.from_json(data | {section: data[section] | {name: value}})
    except ValueError:
        return
    assert classify(SPEC, outcome, ENDED).state.is_ended


@pytest.mark.bad_input(41)
def test_a_fingerprint_that_nothing_can_rely_on_is_not_believed():
    probes = ("abc", 5, [0], [None], ["1"], [10**400], {"a": 1})
    programs = ({"scripts": "train.py"}, {"scripts": {"train.py": 5}}, {"script_modified": ["train.py"]})
    for fingerprint in ({"executable": ["rm"]}, *programs, *({"probe_ms_by_rank": values} for values in probes)):
        with pytest.raises(ValueError, match=next(iter(fingerprint))):
            Outcome.from_json(OUTCOME.to_json() | {"fingerprint": fingerprint})


@pytest.mark.security("paths")
def test_no_log_and_no_metrics_are_read_through_a_link(search):
    secret = search.path.parent / "secret"
    secret.write_text("hunter2\n")
    attempt = search.attempt(SPEC.trial, SPEC.attempt)
    attempt.rank_log(0).symlink_to(secret)
    attempt.metrics().symlink_to(secret)
    with pytest.raises(OSError, match="not a regular file"):
        tail(attempt.rank_log(0), 3)
    with pytest.raises(ValueError, match="not a regular file"):
        read_lines(StepRecord, attempt.metrics())


@pytest.mark.security("paths")
def test_nothing_is_written_through_a_link_that_leads_out_of_the_search(search):
    away = search.path.parent / "away"
    away.mkdir()
    (search.path / "trials" / "t0002").symlink_to(away)
    request = factory(search).request(replace(TRIAL, trial="t0002"), replace(ATTEMPT, trial="t0002"))
    with pytest.raises(OSError, match="is outside"):
        request.folder.write_spec(search.path, request.spec.to_json())
    assert list(away.iterdir()) == []


@pytest.mark.security("paths")
def test_a_json_of_ours_is_read_where_a_folder_above_is_a_link(tmp_path):
    """The folder is reached through a link, like many home directories."""
    (tmp_path / "real").mkdir()
    (tmp_path / "home").symlink_to(tmp_path / "real")
    write_json(tmp_path / "home" / "x.json", {"a": 1})
    assert read_json(tmp_path / "home" / "x.json") == {"a": 1}
