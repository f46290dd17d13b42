"""A person at a desk who gets something wrong: the command in this process, and what is there before and after it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.main import run

SEARCH = """\
schema: parlay.search/1
name: tiny
model: {num_layers: 2, hidden_size: 32, num_attention_heads: 2, vocab_size: 64, seq_length: 16}
cluster: {accelerator: cpu, gpus_per_node: 2, num_nodes: 1}
global_batch_size: 8
space:
  tensor_parallel: [1, 2]
  pipeline_parallel: [1, 2]
  micro_batch_size: [1, 2, 4]
launcher: {kind: local}
tracking: {enabled: false}
"""
"""A search with nothing wrong."""


@dataclass(frozen=True)
class Refusal:
    """What a command that refused has said: its exit code, the error object, and its words beside it."""

    code: int
    error: dict[str, Any]
    words: str

    @property
    def problems(self) -> list[dict[str, Any]]:
        return [self.error, *self.error.get("others", [])]

    def about(self, key: str) -> dict[str, Any]:
        """The problem of this key, and nothing of it is missing: the rule it broke, and what to do."""
        [problem] = [p for p in self.problems if p["key"] == key]
        assert problem["message"]
        assert problem["rule"]
        assert problem["fix"]
        return problem


@dataclass(frozen=True)
class Desk:
    """`folder` is where the person types, and `home` Parlay's."""

    folder: Path
    home: Path
    capsys: pytest.CaptureFixture[str]

    def write(self, old: str = "", new: str = "", more: str = "") -> Path:
        """search.yaml with `new` in the place of `old`, and `more` at its end."""
        assert old in SEARCH
        return self.write_bytes((SEARCH.replace(old, new, 1) if old else SEARCH) + more)

    def write_bytes(self, content: bytes | str) -> Path:
        path = self.folder / "search.yaml"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def refused(self, *words: str | Path, code: int = 2) -> Refusal:
        """What this command says, which is refused with this exit code and leaves everything as it was."""
        before = self._all_files()
        got = run([*map(str, words), "--json"])
        said = self.capsys.readouterr()
        assert (got, self._all_files()) == (code, before), said
        return Refusal(code, json.loads(said.out)["error"], said.err)

    def refused_run(self, *sets: str) -> Refusal:
        """What is said to search.yaml with each `key=value` of `--set`."""
        if not (self.folder / "search.yaml").exists():
            self.write()
        return self.refused("run", "search.yaml", *(word for text in sets for word in ("--set", text)))

    def _all_files(self) -> dict[Path, bytes | None]:
        """Each path below the two folders, and what stands in it."""
        found = [path for root in (self.folder, self.home) for path in root.rglob("*")]
        return {path: path.read_bytes() if path.is_file() else None for path in found}
