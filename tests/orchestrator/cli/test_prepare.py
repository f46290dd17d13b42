"""`parlay prepare` as a user runs it."""

from __future__ import annotations

import json

import pytest

from tests.orchestrator.cli.parlay import parlay_here
from trials.data.token_file import TokenFile

pytestmark = pytest.mark.timeout(120)  # each a command line or a few

DOLLY = {"context": "", "instruction": "good day", "response": "stop"}


def test_bytes_need_nothing_and_the_answer_says_what_was_written(tmp_path):
    (tmp_path / "a.jsonl").write_text(2 * (json.dumps(DOLLY) + "\n"))
    words = ("--tokenizer", "bytes", "--fields", "instruction,context,response", "--append-eos", "--out", "t.bin")
    answer = parlay_here("prepare", "a.jsonl", *words, "--json", cwd=tmp_path)
    assert answer.code == 0, answer.err
    header = TokenFile(tmp_path / "t.bin").header
    assert TokenFile(tmp_path / "t.bin").samples([0], header.num_tokens - 1).tolist() == [*b"good day\nstop", 256] * 2
    counted = {"num_documents": 2, "num_skipped": 0, "num_tokens": 28, "vocab_size": 257}
    assert answer.json == {"schema": "parlay.prepare/1", "out": "t.bin", "checksum": header.checksum, **counted}
