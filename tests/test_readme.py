"""Commands of the README, run in its order."""

from __future__ import annotations

import re
import shlex
import signal
from pathlib import Path

import pytest

from slurm.sandbox.apt_packages import missing_packages
from tests.docs.console import ROOT, commands_of
from tests.kit import TINY_SEARCH, search_file
from tests.orchestrator.cli.parlay import parlay, start
from tests.servers import CHROMIUM_PACKAGE, POSTGRES_PACKAGE

README = ROOT / "README.md"
MAKEFILE = ROOT / "Makefile"


def commands() -> list[list[str]]:
    """The words of every line that begins with a prompt, in order."""
    return [shlex.split(command.typed) for command in commands_of(README.read_text(), marked=False)]


def test_every_package_that_make_installs_is_named():
    venv = re.findall(r"apt-get install -y -qq (\S+);", MAKEFILE.read_text())
    packages = {*venv, *missing_packages(accounting=True, path="/nonexistent"), POSTGRES_PACKAGE, CHROMIUM_PACKAGE}
    assert len(packages) == 9
    assert not {package for package in packages if f"`{package}`" not in README.read_text()}


@pytest.mark.processes
@pytest.mark.timeout(900)
def test_its_commands_do_what_it_says_in_their_order(tmp_path):
    for words in (words for words in commands() if words[0] == "parlay"):
        if words[1] == "dashboard":
            assert_the_dashboard_answers(tmp_path)
            continue
        words, target = (words[:-2], words[-1]) if ">" in words else (words, None)
        if words[1] == "run":
            # The example's search takes minutes; what its commands do is the same for one of seconds.
            search_file(tmp_path, TINY_SEARCH, search={"max_trials": 1})
        once = ("--repeats", "1") if words[1] == "replay" else ()  # for the same reason
        answer = parlay(*words[1:], *once, cwd=tmp_path, timeout_s=240)
        # How fast a replay was is this machine's affair; that it was measured and judged is the command's.
        assert answer.code in ({0, 10, 11, 13} if words[1] == "replay" else {0}), answer.err
        if target:
            (tmp_path / target).write_text(answer.out)


def assert_the_dashboard_answers(place: Path) -> None:
    server = start("dashboard", cwd=place)
    try:
        said = server.stderr.readline()
        assert said.startswith("MLflow: http://127.0.0.1:"), said
        assert "ssh -N -L" in server.stderr.readline()
    finally:
        server.send_signal(signal.SIGINT)
        server.communicate(timeout=90)
    assert server.returncode == 0
