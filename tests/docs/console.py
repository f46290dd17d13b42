"""The commands of a page, run as they stand there: its blocks of `console` below a mark, in order, in one shell.

A mark is a comment of the page, on the line above the block:

    <!-- tested -->
    <!-- tested: the last one leaves with 10, 11 or 13 -->

A line that begins with `$ ` is typed; it goes on over lines that end in a backslash, and over a here-document. What
follows it is what it prints: ids, the folders of a path and numbers may be others, but for how many layouts there are,
and `...` stands for anything, on a line of its own for any lines. A command below which nothing is shown may print what
it likes.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

_BLOCK = re.compile(r"(?:^<!-- (?P<mark>tested.*?) -->\n)?^```console\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_HERE = re.compile(r"<<'?(\w+)'?")
_ENDED = "--- the command ended with"
_MEASURED = re.compile(r"\d[\d,.:]*+(?! (?:layouts|more)\b)")
"""A number that may be another, which how many layouts there are may not."""


@dataclass(frozen=True)
class Command:
    """Command as typed (one or more lines), its expected output lines, and the allowed exit codes."""

    typed: str
    shown: tuple[str, ...] = ()
    codes: tuple[int, ...] = (0,)


@dataclass(frozen=True)
class Answered:
    """Output of a command on both streams, and its exit code."""

    command: Command
    printed: str
    code: int


def pages() -> list[Path]:
    """Every page that people read: those beside the rooms, and docs/ with what is below it, without what is made."""
    made = ROOT / "docs" / "contract.md"
    return sorted([*ROOT.glob("*.md"), *(path for path in (ROOT / "docs").rglob("*.md") if path != made)])


def commands_of(page: str, *, marked: bool = True) -> list[Command]:
    """The commands of a page's blocks in order; of those below a mark, or of all."""
    found: list[Command] = []
    for block in _BLOCK.finditer(page):
        if block["mark"] or not marked:
            found += _commands(block["text"].splitlines(), _codes(block["mark"] or ""))
    return found


def _codes(mark: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", mark))) or (0,)


def _commands(lines: list[str], last_codes: tuple[int, ...]) -> Iterator[Command]:
    """Commands of one block; lines before its first command are ignored."""
    begin = _next_prompt(lines, 0)
    while begin < len(lines):
        shown = begin + _length(lines[begin:])
        end = _next_prompt(lines, shown)
        typed = "\n".join([lines[begin][2:], *lines[begin + 1 : shown]])
        yield Command(typed, tuple(lines[shown:end]), last_codes if end == len(lines) else (0,))
        begin = end


def _next_prompt(lines: list[str], begin: int) -> int:
    return next((number for number in range(begin, len(lines)) if lines[number].startswith("$ ")), len(lines))


def _length(lines: list[str]) -> int:
    """Number of lines that are typed, from the prompt on."""
    here = _HERE.search(lines[0])
    if here is not None:
        return lines.index(here[1]) + 1
    return next(number for number, line in enumerate(lines, 1) if not line.endswith("\\"))


def run(commands: list[Command], place: Path, environment: Mapping[str, str], timeout_s: float) -> list[Answered]:
    """Type the commands one after the other into a shell of this folder, up to the first that leaves with another code.

    AssertionError with all that was printed where they take longer; then nothing that the shell started is left, but
    for what began a session of its own.
    """
    out = place / ".answers"
    with open(out, "wb") as stream:
        shell = subprocess.Popen(
            ["bash", "-c", _script(commands)],
            cwd=place,
            env={**environment, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            start_new_session=True,
        )
    try:
        shell.wait(timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()
        raise AssertionError(f"after {timeout_s} s:\n{out.read_text()}") from None
    return list(_answers(commands, out.read_text()))


def _script(commands: list[Command]) -> str:
    lines = ["set -o pipefail"]
    for command in commands:
        codes = " | ".join(map(str, command.codes))
        lines += [command.typed, "ended=$?", f"echo; echo {shlex.quote(_ENDED)} $ended"]
        lines += [f"case $ended in {codes}) ;; *) exit 1 ;; esac"]
    return "\n".join(lines) + "\n"


def _answers(commands: list[Command], printed: str) -> Iterator[Answered]:
    parts = re.split(rf"\n{_ENDED} (\d+)\n", printed)
    for command, text, code in zip(commands, parts[::2], parts[1::2], strict=False):
        yield Answered(command, text, int(code))


def environment_of_a_user() -> dict[str, str]:
    """This test's environment with `parlay` on the path, from this checkout."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}


def assert_as_shown(commands: list[Command], answers: list[Answered]) -> None:
    """Every command ran, left with a code of its own, and printed what its page shows."""
    for answer in answers:
        said = f"$ {answer.command.typed}\n{answer.printed}"
        assert answer.code in answer.command.codes, f"left with {answer.code}:\n{said}"
        assert is_as_shown(answer.command.shown, answer.printed), f"{said}\nis not what is shown:\n" + "\n".join(
            answer.command.shown
        )
    assert len(answers) == len(commands), f"never ran: {commands[len(answers)].typed}"


def is_as_shown(shown: tuple[str, ...], printed: str) -> bool:
    """True if the shown lines match the output; no lines match any output."""
    if not shown:
        return True
    pattern = "".join("(?:.*\n)*?" if line.strip() == "..." else _pattern(line) for line in shown)
    return re.fullmatch(pattern, "".join(f"{_alike(line)}\n" for line in printed.strip("\n").splitlines())) is not None


def _pattern(line: str) -> str:
    return ".*".join(re.escape(_alike(part)) for part in line.split("...")) + "\n"


def _alike(line: str) -> str:
    """The line without what differs from run to run and from machine to machine."""
    line = re.sub(r"(?<![\w.*])/(?:[\w.@+*-]+/)+", "/", line)
    line = re.sub(r"-[a-z2-7]{6}\b", "-*", line)
    return re.sub(r"\s+", " ", _MEASURED.sub("0", line)).rstrip()
