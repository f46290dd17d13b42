"""A user's mistakes: commands run in this process, with the files before and after them."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.main import main as run
from tests.kit import TINY_SEARCH, search_file

READERS = ("status", "resume", "cancel", "watch", "best", "report", "sync", "export", "ledger rebuild")
"""Verbs that read a search's journal."""
SEARCH = TINY_SEARCH + "tracking: {enabled: false}\n"
"""A valid search file."""


def pipe(path: Path) -> None:
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


@dataclass(frozen=True)
class Refusal:
    """Refusal of a command: error object and messages."""

    error: dict[str, Any]
    words: str

    def about(self, key: str) -> dict[str, Any]:
        """The problem of this key, complete with rule and fix."""
        [problem] = [p for p in (self.error, *self.error.get("others", [])) if p["key"] == key]
        assert problem["message"]
        assert problem["rule"]
        assert problem["fix"]
        return problem


@dataclass(frozen=True)
class Cli:
    """The command line, with the working directory `folder` and Parlay's home `home`."""

    folder: Path
    home: Path
    capsys: pytest.CaptureFixture[str]

    def write(self, old: str = "", new: str = "", more: str = "") -> Path:
        """Write search.yaml with `old` replaced by `new`, and `more` appended."""
        assert old in SEARCH
        return search_file(self.folder, SEARCH.replace(old, new, 1) + more)

    def refused(self, *words: str | Path, code: int = 2) -> Refusal:
        """Refusal of this command, with this exit code; checks that no file has changed."""
        before = self._all_files()
        got = run([*map(str, words), "--json"])
        said = self.capsys.readouterr()
        assert (got, self._all_files()) == (code, before), said
        return Refusal(json.loads(said.out)["error"], said.err)

    def refused_run(self, *sets: str) -> Refusal:
        """Refusal of search.yaml with each `key=value` as `--set`."""
        if not (self.folder / "search.yaml").exists():
            self.write()
        return self.refused("run", "search.yaml", *(word for text in sets for word in ("--set", text)))

    def _all_files(self) -> dict[Path, bytes | None]:
        """Content of every path below both folders."""
        found = [path for root in (self.folder, self.home) for path in root.rglob("*")]
        return {path: path.read_bytes() if path.is_file() else None for path in found}
