"""`parlay prepare` as a user runs it."""

from __future__ import annotations

import json
import os
import pty
import signal
import stat
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from orchestrator.cli import prepare
from tests.orchestrator.cli.parlay import COMMAND, environment, parlay, parlay_here
from tests.orchestrator.cli.parlay import start as start_parlay
from tests.trials.data.test_tokenizer import write_tokenizer
from trials.data.prepare import Progress
from trials.data.token_file import TokenFile

pytestmark = pytest.mark.timeout(120)  # each a command line or a few

DOLLY = {"context": "", "instruction": "good day", "response": "stop"}


def write_lines(folder: Path, *lines: object) -> str:
    (folder / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return "a.jsonl"


def tokens_in(path: Path) -> list[int]:
    file = TokenFile(path)
    return file.samples([0], file.header.num_tokens - 1).tolist()


@pytest.mark.slow
def test_bytes_need_nothing_and_the_answer_says_what_was_written(tmp_path):
    lines = write_lines(tmp_path, DOLLY, DOLLY)
    words = ("--tokenizer", "bytes", "--fields", "instruction,context,response", "--append-eos", "--out", "t.bin")
    answer = parlay("prepare", lines, *words, "--json", cwd=tmp_path)
    assert answer.code == 0, answer.err
    assert tokens_in(tmp_path / "t.bin") == [*b"good day\nstop", 256] * 2
    assert stat.S_IMODE((tmp_path / "t.bin").stat().st_mode) == 0o600
    header = TokenFile(tmp_path / "t.bin").header
    assert answer.json == {
        "schema": "parlay.prepare/1",
        "out": "t.bin",
        "num_documents": 2,
        "num_skipped": 0,
        "num_tokens": 28,
        "vocab_size": 257,
        "checksum": header.checksum,
    }


def test_a_tokenizer_json_and_a_separator_of_ones_own(tmp_path):
    write_tokenizer(tmp_path)
    lines = write_lines(tmp_path, DOLLY)
    words = ("--tokenizer", "tokenizer.json", "--fields", "instruction, response", "--separator", r"\n stop\t")
    answer = parlay_here(
        "prepare", lines, *words, "--out", "t.bin", "--append-eos", "--eos-token", "[UNK]", cwd=tmp_path
    )
    assert answer.code == 0, answer.err
    assert tokens_in(tmp_path / "t.bin") == [1, 2, 7, 7, 0]
    assert "kind: tokens, path: t.bin" in answer.out


@pytest.mark.slow
def test_lines_may_come_through_a_pipe(tmp_path):
    command = [*COMMAND, "prepare", "-", "--tokenizer", "bytes", "--out", "t.bin"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment(), input=b'{"text": "ab"}\n{"text": ""}\n', capture_output=True
    )
    assert done.returncode == 2
    assert b"standard input:2: text: empty" in done.stderr
    assert not list(tmp_path.iterdir())


def test_bad_lines_that_are_left_out_are_named_up_to_a_few(tmp_path):
    lines = write_lines(tmp_path, *range(20), DOLLY)
    words = ("--tokenizer", "bytes", "--fields", "response", "--out", "t.bin", "--skip-bad")
    answer = parlay_here("prepare", lines, *words, cwd=tmp_path)
    assert answer.code == 0
    assert answer.err.count("skipped: a.jsonl:") == 5
    assert "skipped: further lines are not listed" in answer.err
    assert "20 invalid lines skipped" in answer.out


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


@pytest.mark.slow
def test_a_terminal_shows_how_far_it_is_and_the_answer_stays_clean(tmp_path):
    lines = write_lines(tmp_path, *[{"text": "ab"}] * 2000)
    shown, terminal = pty.openpty()
    command = [*COMMAND, "prepare", lines, "--tokenizer", "bytes", "--out", "t.bin", "--json"]
    environ = environment() | {"TERM": "xterm", "COLUMNS": "100"}
    with subprocess.Popen(command, cwd=tmp_path, env=environ, stdout=subprocess.PIPE, stderr=terminal) as running:
        os.close(terminal)
        assert b"2000 texts, 4000 tokens" in everything_shown(shown)
        assert json.load(running.stdout)["num_tokens"] == 4000


def test_elsewhere_a_line_now_and_then_says_how_far_it_is(monkeypatch, logged):
    now = 0.0
    monkeypatch.setattr(prepare.time, "monotonic", lambda: now)
    lines = prepare._ProgressLines(total_bytes=200)
    for now in (1.0, 9.0, 10.5, 12.0, 21.0):
        lines.report(Progress(num_documents=int(now), num_tokens=100, bytes_read=50))
    assert logged == ["25%, 10 texts, 100 tokens", "25%, 21 texts, 100 tokens"]


@pytest.mark.processes
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_and_nothing_half_is_left(tmp_path, number):
    os.mkfifo(tmp_path / "lines")
    words = ("prepare", "lines", "--tokenizer", "bytes", "--out", "t.bin")
    with start_parlay(*words, cwd=tmp_path) as command, (tmp_path / "lines").open("w") as lines:
        lines.write((json.dumps({"text": "ab" * 100}) + "\n") * 5000)
        lines.flush()
        wait_until(lambda: any(path.stat().st_size for path in tmp_path.glob(".t.bin.*.part")))
        command.send_signal(number)
        assert command.wait(timeout=30) == 130
        assert "parlay: stopped; t.bin was not written" in command.stderr.read()
    assert [path.name for path in tmp_path.iterdir()] == ["lines"]


@pytest.mark.processes
def test_a_disk_that_is_full_is_said_and_nothing_half_is_left(tmp_path):
    """A limit on the size of files, which the kernel keeps as it keeps a full disk."""
    write_lines(tmp_path, *[{"text": "x" * 1000}] * 100)
    command = " ".join(("ulimit -f 40; trap '' XFSZ; exec", *COMMAND, "prepare a.jsonl --tokenizer bytes --out t.bin"))
    # A module whose compiled form is cut off by the limit could not be imported by anybody any more.
    environ = environment() | {"PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert done.returncode == 6, done.stderr
    assert "t.bin could not be written: File too large; nothing of it is left" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


def everything_shown(terminal: int) -> bytes:
    """Read a program's terminal output until it ends; an unread terminal would block the program."""
    parts = []
    with os.fdopen(terminal, "rb", buffering=0) as stream, suppress(OSError):  # that is how Linux says the end
        while part := stream.read(4096):
            parts.append(part)
    return b"".join(parts)


def wait_until(happened, limit_s: float = 30.0) -> None:
    deadline = time.monotonic() + limit_s
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.02)
