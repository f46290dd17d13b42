"""`parlay prepare` as a user runs it."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.orchestrator.cli.parlay import parlay_here
from tests.orchestrator.cli.parlay import start as start_parlay
from tests.orchestrator.slurm_searches import until
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


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (("absent.jsonl",), "INPUT"),
        (("a.jsonl", "--fields", "a,,b"), "--fields"),
        (("a.jsonl", "--eos-token", "x"), "--eos-token"),
        (("a.jsonl", "--tokenizer", "absent.json"), "--tokenizer"),
        (("a.jsonl", "--out", "a.jsonl"), "--out"),
        (("a.jsonl", "--out", "absent/t.bin"), "--out"),
        (("a.jsonl", "--limit", "0"), "--limit"),
        ((), "INPUT"),
    ],
)
def test_bad_usage_is_an_error_object_and_leaves_nothing(tmp_path, words, key):
    write_lines(tmp_path, DOLLY)
    given = ("--tokenizer", "bytes", "--fields", "response", "--out", "t.bin")
    answer = parlay_here("prepare", *given, *words, "--json", cwd=tmp_path)
    assert answer.code == 2
    assert answer.json["error"]["key"] == key
    assert answer.json["error"]["fix"]
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


@pytest.mark.processes
def test_a_signal_ends_it_and_nothing_half_is_left(tmp_path):
    os.mkfifo(tmp_path / "lines")
    words = ("prepare", "lines", "--tokenizer", "bytes", "--out", "t.bin")
    with start_parlay(*words, cwd=tmp_path) as command, (tmp_path / "lines").open("w") as lines:
        lines.write((json.dumps({"text": "ab" * 100}) + "\n") * 5000)
        lines.flush()
        until(lambda: any(path.stat().st_size for path in tmp_path.glob(".t.bin.*.part")), bool)
        command.send_signal(signal.SIGTERM)
        assert command.wait(timeout=30) == 130
        assert "parlay: stopped; t.bin was not written" in command.stderr.read()
    assert [path.name for path in tmp_path.iterdir()] == ["lines"]
