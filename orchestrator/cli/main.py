"""The command `parlay`: errors and exit codes."""

from __future__ import annotations

import gc
import io
import os
import sys

# Before the imports below, which fail on an older Python with an unclear error.
if sys.version_info < (3, 11):  # noqa: UP036
    sys.stderr.write(
        f"parlay: Python {sys.version_info[0]}.{sys.version_info[1]} is too old: 3.11 or newer is needed\n"
        "  fix: create the environment with a newer Python; trials may use another one, trainer.python\n"
    )
    sys.exit(2)

from collections.abc import Sequence
from functools import cache
from typing import Any

import typer

from orchestrator.cli.endings import discard_output, ending, is_whole_process
from orchestrator.cli.verbs import app
from orchestrator.lifecycle.exit_codes import ExitCode


def main(words: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Without `words` it is this process's, which is set up for it."""
    is_whole = words is None
    words = list(sys.argv[1:] if words is None else words)
    if is_whole:
        _set_up_process()
    with ending(as_json="--json" in words) as end:
        end.code = _command()(words, prog_name="parlay", standalone_mode=False) or ExitCode.SUCCESS
    if is_whole:
        for stream in (sys.stdout, sys.stderr):
            discard_output(stream)
    return int(end.code)


def _set_up_process() -> None:
    os.umask(0o077)  # files of a search are private, whatever the machine's default
    gc.set_threshold(50_000)  # what is imported stays: looking through it for garbage is a twentieth of a short verb
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal without "±" must not make a command fail
    is_whole_process.set(True)


@cache
def _command() -> Any:
    return typer.main.get_command(app)


if __name__ == "__main__":
    sys.exit(main())
