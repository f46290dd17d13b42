"""Paths of a search's folder, and atomic writes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from trials.files.folders import SearchFolder, read_json, write_json, write_text


def test_the_names_are_the_contracts():
    folder = SearchFolder(Path("/scratch/tiny-aaaaaa"))
    attempt = folder.attempt("t0001", "a1")
    assert folder.search_id == "tiny-aaaaaa"
    names = [folder.yaml, folder.json, folder.journal, folder.best, folder.lease, folder.recipe, folder.code]
    written = "search.yaml search.json journal.jsonl best.json lease.json recipe code"
    assert [str(path.relative_to(folder.path)) for path in names] == written.split()
    names = [attempt.spec, attempt.rank_log(7), attempt.ranks, attempt.heartbeat]
    names += [attempt.metrics(), attempt.outcome(), attempt.outcome(restart=2)]
    written = "spec.json rank-00007.log ranks.json heartbeat metrics.r0.jsonl outcome.r0.json outcome.r2.json"
    assert [str(path.relative_to(folder.path / "trials/t0001/a1")) for path in names] == written.split()


def test_json_is_read_back_as_it_was_written_and_what_is_not_there_is_none(tmp_path):
    data = {"schema": "parlay.x/1", "value": 0.1, "nothing": None, "text": "é\u2028"}
    assert read_json(tmp_path / "x.json") is None
    write_json(tmp_path / "x.json", data)
    assert read_json(tmp_path / "x.json") == data
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "x.json", {"a": float("nan")})
    assert read_json(tmp_path / "x.json") == data


@pytest.mark.parametrize(
    "text",
    [b"", b"[1]", b'{"a": NaN}', b'{"a": 1e999}', b"\xff", b"[" * 10**5],
)
def test_what_is_no_json_object_of_finite_numbers_is_refused(tmp_path, text):
    (tmp_path / "x.json").write_bytes(text)
    with pytest.raises(ValueError, match=r"x\.json"):
        read_json(tmp_path / "x.json")


def test_a_reader_sees_the_old_file_until_the_new_one_is_whole(tmp_path, monkeypatch):
    path, seen, sync = tmp_path / "x.json", [], os.fsync
    write_json(path, {"a": 1})

    def look(descriptor: int) -> None:
        seen.append(json.loads(path.read_text()))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", look)
    write_json(path, {"a": 2})
    assert seen == [{"a": 1}, {"a": 2}], "the file is synced before it has its name, the folder after"


@pytest.mark.parametrize("fails", ["fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, fails):
    path = tmp_path / "x.txt"
    write_text(path, "old")

    def full(*args) -> None:
        raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, fails, full)
        with pytest.raises(OSError, match="No space"):
            write_text(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.security("private_files")
def test_only_its_owner_may_read_what_is_written_whatever_the_umask(tmp_path):
    old = os.umask(0)
    try:
        write_text(tmp_path / "x.txt", "text")
    finally:
        os.umask(old)
    assert (tmp_path / "x.txt").stat().st_mode & 0o777 == 0o600
