"""Logs in an attempt's folder: excerpts, and files that a file system does not show."""

from __future__ import annotations

import pytest

from orchestrator.launchers.slurm.attempt_logs import failure_excerpt, may_exist
from trials.files.folders import AttemptFolder


@pytest.mark.parametrize(("words", "log", "told"), [("a", "b", "a\nb"), ("a", "", "a"), ("", "b", "b"), ("", "", "")])
def test_an_excerpt_has_no_line_for_what_nobody_said(tmp_path, words, log, told):
    assert failure_excerpt(AttemptFolder(tmp_path), words, log) == told


def test_a_file_may_exist_where_its_file_system_does_not_say(tmp_path):
    (tmp_path / "there").touch()
    assert [may_exist(tmp_path / name) for name in ("there", "gone", "x" * 10_000)] == [True, False, True]
