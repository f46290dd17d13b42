"""The command `parlay`: errors and exit codes."""

from __future__ import annotations

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
from orchestrator.common.exit_codes import ExitCode


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit with its code."""
    os.umask(0o077)  # files of a search are private, whatever the machine's default
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal without "±" must not make a command fail
    is_whole_process.set(True)
    code = run(list(sys.argv[1:] if arguments is None else arguments))
    for stream in (sys.stdout, sys.stderr):
        discard_output(stream)
    sys.exit(int(code))


def run(words: Sequence[str]) -> int:
    """Run one command and return its exit code. A bug prints its traceback, and with --json an object too."""
    with ending(as_json="--json" in words) as end:
        end.code = _command()(list(words), prog_name="parlay", standalone_mode=False) or ExitCode.SUCCESS
    return end.code


@cache
def _command() -> Any:
    return typer.main.get_command(app)


if __name__ == "__main__":
    main()
