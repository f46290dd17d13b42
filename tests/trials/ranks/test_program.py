"""Exit of every rank's program."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from search_spaces.layouts.layout import Layout
from tests.trials.train.trial_processes import make_spec
from trials.files.folders import write_json
from trials.ranks.program import FILES_FAILED, read_spec, run_program


def left_with(path: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException | None = None) -> int:
    """Exit code of a rank whose part fails with this error, or succeeds."""

    def run_rank(spec, folder, env) -> bool:
        if failure is not None:
            raise failure
        return True

    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as left:
        run_program("trials.train", [str(path)], read_spec, run_rank, sys.exit)
    return left.value.code


@pytest.mark.fault(47)
@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (None, 0),
        (ZeroDivisionError(), 1),
        (OSError(errno.ENOENT, "no such file", "/etc/missing"), 1),
        (OSError(errno.ESTALE, "stale file handle"), FILES_FAILED),
    ],
)
def test_a_rank_whose_own_files_fail_leaves_with_a_code_of_its_own(tmp_path, monkeypatch, failure, code):
    write_json(tmp_path / "spec.json", make_spec(Layout()).to_json())
    assert left_with(tmp_path / "spec.json", monkeypatch, failure) == code


@pytest.mark.fault(47)
def test_a_spec_that_is_not_there_is_not_bad_usage_and_one_that_is_damaged_is(tmp_path, monkeypatch, capsys):
    path = tmp_path / "moved" / "spec.json"
    assert left_with(path, monkeypatch) == FILES_FAILED
    assert f"{path}: " in capsys.readouterr().err
    path.parent.mkdir()
    for damaged in ("{}", '{"schema": "parlay.spec/99"}', "no json"):
        path.write_text(damaged)
        assert left_with(path, monkeypatch) == 2, damaged


@pytest.mark.slow
@pytest.mark.parametrize("spoilt", ["pass", "os.close(1)"])
def test_a_program_leaves_with_its_code_also_where_its_words_cannot_be_written(spoilt):
    code = f"import os, sys; from trials.ranks.program import exit_at_once; print('words'); {spoilt}; exit_at_once(3)"
    with open("/dev/full", "w") as full:
        buffering = [sys.executable, "-E", "-c", code]  # whatever PYTHONUNBUFFERED says
        assert subprocess.run(buffering, stdout=full, timeout=30).returncode == 3
