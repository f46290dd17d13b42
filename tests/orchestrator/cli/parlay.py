"""The command as a process of its own, with its exit code, its object on stdout and its remarks."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unittest import mock

from orchestrator.cli.main import main as run
from tests.contract.answers import assert_as_declared

COMMAND = (sys.executable, "-P", "-m", "orchestrator.cli.main")


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The printed object. Raises if it is not as its model says (`parlay schema`)."""
        answer = json.loads(self.out)
        assert_as_declared(answer)
        return answer


def parlay(
    *words: str | Path, cwd: Path, timeout_s: float = 240.0, variables: Mapping[str, str] = MappingProxyType({})
) -> Answer:
    """Run one command to its end, with these additional environment variables."""
    env = environment() | dict(variables)
    done = subprocess.run(
        [*COMMAND, *map(str, words)], cwd=cwd, env=env, capture_output=True, text=True, timeout=timeout_s
    )
    return Answer(done.returncode, done.stdout, done.stderr)


def parlay_here(*words: str | Path, cwd: Path, variables: Mapping[str, str] = MappingProxyType({})) -> Answer:
    """Run one command in this process, which saves a second, but without what `main` adds: umask, streams and exit."""
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(cwd),
        mock.patch.dict(os.environ, {"NO_COLOR": "1", **variables}),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        code = run([*map(str, words)])
    return Answer(code, out.getvalue(), err.getvalue())


def start(*words: str | Path, cwd: Path, command: Sequence[str] = COMMAND) -> subprocess.Popen[str]:
    """Start one command and go on."""
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [*command, *map(str, words)], cwd=cwd, env=environment(), stdout=pipe, stderr=pipe, text=True
    )


def environment() -> dict[str, str]:
    """This test's environment, with the project importable from anywhere."""
    places = (str(Path(__file__).resolve().parents[3]), os.environ.get("PYTHONPATH"))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places)), "NO_COLOR": "1"}


def command_line(pid: int) -> bytes:
    """Command line of a process, empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def python_that_begins_with(program: str, folder: Path) -> Path:
    """An interpreter that runs this text at its start, before any of Parlay's modules."""
    site = folder / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(program)
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{site}:$PYTHONPATH" exec "{COMMAND[0]}" "$@"\n')
    python.chmod(0o755)
    return python
