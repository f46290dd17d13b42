"""Commits of checkouts that git made, and of folders that are none."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from trials.files.git_commit import commit_of

pytestmark = [pytest.mark.processes, pytest.mark.slow]


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "protocol.file.allow=always")
    command = ["git", "-C", str(folder), *identity, *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkout")
    git(folder, "init", "-b", "main")
    git(folder, "commit", "--allow-empty", "-m", "first")
    return folder


def head(folder: Path) -> str:
    return git(folder, "rev-parse", "HEAD")


def test_the_commit_is_that_of_the_branch_which_moves(checkout):
    first = head(checkout)
    assert commit_of(checkout) == first
    git(checkout, "commit", "--allow-empty", "-m", "second")
    assert commit_of(checkout) == head(checkout) != first


def test_a_packed_branch_and_one_that_moved_since_are_read(checkout):
    git(checkout, "branch", "mai")  # the end of another name
    git(checkout, "pack-refs", "--all")
    assert not (checkout / ".git/refs/heads/main").exists()
    assert commit_of(checkout) == head(checkout)
    git(checkout, "commit", "--allow-empty", "-m", "third")
    assert commit_of(checkout) == head(checkout)


def test_so_are_a_tag_a_linked_work_tree_and_a_submodule(checkout, tmp_path):
    git(checkout, "tag", "-a", "v1", "-m", "v1")
    git(checkout, "commit", "--allow-empty", "-m", "later")
    git(checkout, "worktree", "add", "--detach", str(tmp_path / "tag"), "v1")
    git(checkout, "worktree", "add", "-b", "other", str(tmp_path / "branch"))
    git(tmp_path, "init", "outer")
    git(tmp_path / "outer", "submodule", "add", str(checkout), "inner")
    found = {name: commit_of(tmp_path / name) for name in ("tag", "branch", "outer/inner")}
    assert found == {name: head(tmp_path / name) for name in found}
    assert found["tag"] != found["branch"]
    git(checkout, "pack-refs", "--all")
    assert commit_of(tmp_path / "branch") == found["branch"]


def test_where_there_is_no_commit_there_is_none(tmp_path):
    assert commit_of(tmp_path) is None
    (tmp_path / "HEAD").write_text("a" * 40)
    assert commit_of(tmp_path) is None
    git(tmp_path, "init", "-b", "main")
    assert commit_of(tmp_path) is None
    for damaged in ("", "ref: refs/heads/none", "a" * 39, "ref: "):
        (tmp_path / ".git/HEAD").write_text(damaged)
        assert commit_of(tmp_path) is None
