"""Commits and contents of checkouts that git made, and of folders that are none."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.trials.trainers.specs import spec_of
from trials.attempt_result import are_comparable, program_change
from trials.external.fingerprint import fingerprint
from trials.files.git_checkout import checkout_of, commit_of
from trials.ranks.environment import RankEnvironment

pytestmark = [pytest.mark.processes, pytest.mark.slow]


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "protocol.file.allow=always")
    command = ["git", "-C", str(folder), *identity, *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def head(folder: Path) -> str:
    return git(folder, "rev-parse", "HEAD")


def test_the_commit_is_that_of_a_branch_that_moves_or_is_packed_a_tag_a_linked_work_tree_and_a_submodule(tmp_path):
    checkout = tmp_path / "checkout"
    git(tmp_path, "init", "-b", "main", "checkout")
    for message in ("first", "second"):
        git(checkout, "commit", "--allow-empty", "-m", message)
        assert commit_of(checkout) == head(checkout)
    git(checkout, "branch", "mai")  # the end of another name
    git(checkout, "tag", "-a", "v1", "-m", "v1")
    git(checkout, "pack-refs", "--all")
    assert not (checkout / ".git/refs/heads/main").exists()
    assert commit_of(checkout) == head(checkout)
    git(checkout, "commit", "--allow-empty", "-m", "later")
    git(checkout, "worktree", "add", "--detach", str(tmp_path / "tag"), "v1")
    git(checkout, "worktree", "add", "-b", "other", str(tmp_path / "branch"))
    git(tmp_path, "init", "outer")
    git(tmp_path / "outer", "submodule", "add", str(checkout), "inner")
    found = {name: commit_of(tmp_path / name) for name in ("checkout", "tag", "branch", "outer/inner")}
    assert found == {name: head(tmp_path / name) for name in found}
    assert found["tag"] != found["branch"]
    git(checkout, "pack-refs", "--all")
    assert commit_of(tmp_path / "branch") == found["branch"]


def test_where_there_is_no_commit_there_is_none(tmp_path):
    (tmp_path / "HEAD").write_text("a" * 40)
    assert commit_of(tmp_path) is None
    git(tmp_path, "init", "-b", "main")
    assert commit_of(tmp_path) is None
    for damaged in ("", "ref: refs/heads/none", "a" * 39):
        (tmp_path / ".git/HEAD").write_text(damaged)
        assert commit_of(tmp_path) is None


@pytest.fixture(params=["sha1", "sha256"])
def sources(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A checkout with two committed Python files and a note."""
    git(tmp_path, "init", "-b", "main", f"--object-format={request.param}")
    (tmp_path / "lib").mkdir()
    for name in ("train.py", "lib/model.py", "notes.md"):
        (tmp_path / name).write_text(f"# {name}\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "first")
    return tmp_path


def test_a_changed_python_file_is_named_and_changes_the_state_whatever_its_size_and_time(sources):
    before, model = checkout_of(sources), sources / "lib/model.py"
    assert (before.commit, before.modified) == (head(sources), {})
    saved = model.stat()
    model.write_text("# lib/mode1.py\n")
    os.utime(model, ns=(saved.st_atime_ns, saved.st_mtime_ns))  # as an edit within one tick of the file system's clock
    os.utime(sources / ".git/index", ns=(saved.st_atime_ns, saved.st_mtime_ns))
    now = checkout_of(sources / "lib")
    assert now.modified == {"lib/model.py": git(sources, "hash-object", "lib/model.py")}
    assert now.python_files != before.python_files
    model.unlink()
    assert checkout_of(sources).modified == {"lib/model.py": ""}


def test_an_edited_module_is_another_program_than_the_script_had_before(sources):
    template = f"{{python}} {sources / 'train.py'}"
    spec = spec_of("command", trainer={"script": None, "template": template})
    before = fingerprint(spec, RankEnvironment(rank=0, world_size=1, local_rank=0))
    assert before["script_commit"] == head(sources)
    (sources / "lib/model.py").write_text("layers = 1\n")
    now = fingerprint(spec, RankEnvironment(rank=0, world_size=1, local_rank=0))
    assert not are_comparable(before, now)
    assert "lib/model.py" in program_change(before, now)


def test_the_state_is_that_of_the_files_and_not_of_the_commit(sources):
    (sources / "train.py").write_text("edited\n")
    edited = checkout_of(sources)
    git(sources, "commit", "-a", "-m", "second")
    committed = checkout_of(sources)
    assert (committed.python_files, committed.modified) == (edited.python_files, {})
    assert committed.commit != edited.commit
    os.utime(sources / "train.py", (1, 1))
    (sources / "notes.md").write_text("other words\n")
    (sources / "untracked.py").write_text("")
    assert checkout_of(sources) == committed


@pytest.mark.parametrize("form", ["--index-version=4", "--split-index", "damaged"])
def test_with_an_index_of_another_form_the_commit_stands_for_the_files(sources, form):
    index = sources / ".git/index"
    if form == "damaged":
        whole = index.read_bytes()
        for length in range(0, len(whole), 7):
            index.write_bytes(whole[:length])
            assert checkout_of(sources).commit == head(sources)
        index.write_bytes(b"DIRC" + b"\xff" * 200)
    else:
        git(sources, "update-index", *form.split("="))
    found = checkout_of(sources)
    assert (found.python_files, found.modified) == (head(sources), {})


def test_a_sparse_checkout_is_not_modified(sources):
    git(sources, "sparse-checkout", "set", "--no-cone", "/train.py")
    assert not (sources / "lib").exists()
    assert checkout_of(sources).modified == {}
    (sources / "scratch").mkdir()
    assert checkout_of(sources / "scratch") is None, "nothing is tracked there"
