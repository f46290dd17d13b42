"""`parlay prepare` as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.orchestrator.cli.parlay import parlay_here
from trials.data.token_file import TokenFile

pytestmark = pytest.mark.timeout(120)  # each a command line or a few

DOLLY = {"context": "", "instruction": "good day", "response": "stop"}


def write_lines(folder: Path, *lines: object) -> str:
    (folder / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return "a.jsonl"


def tokens_in(path: Path) -> list[int]:
    file = TokenFile(path)
    return file.samples([0], file.header.num_tokens - 1).tolist()


def test_bytes_need_nothing_and_the_answer_says_what_was_written(tmp_path):
    lines = write_lines(tmp_path, DOLLY, DOLLY)
    words = ("--tokenizer", "bytes", "--fields", "instruction,context,response", "--append-eos", "--out", "t.bin")
    answer = parlay_here("prepare", lines, *words, "--json", cwd=tmp_path)
    assert answer.code == 0, answer.err
    assert tokens_in(tmp_path / "t.bin") == [*b"good day\nstop", 256] * 2
    counted = {"num_documents": 2, "num_skipped": 0, "num_tokens": 28, "vocab_size": 257}
    checksum = TokenFile(tmp_path / "t.bin").header.checksum
    assert answer.json == {"schema": "parlay.prepare/1", "out": "t.bin", "checksum": checksum, **counted}
