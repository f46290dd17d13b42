"""Line 51: paths that are not regular files, given as files or in place of a journal."""

from __future__ import annotations

import ast
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.cli.main import main as run
from tests.bad_inputs.cli import READERS, Cli, endless, pipe
from tests.sources import calls, modules

pytestmark = pytest.mark.slow


def itself(path: Path) -> None:
    path.symlink_to(path.name)


@pytest.mark.bad_input(51)
@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["plan", "it.yaml"], "it.yaml"),
        (["init", "--from", "it.sh"], "it.sh"),
        (["compare", "it.yaml", "it.yaml"], "it.yaml"),
        (["replay", "it.yaml"], "it.yaml"),
        (["replay", "."], "recipe.yaml"),
        (["plan", "search.yaml", "--set", "space={candidates: it.csv}"], "it.csv"),
        (["import", "it.csv", "search.yaml", "--out", "past.csv"], "it.csv"),
    ],
)
def test_what_is_no_plain_file_is_refused_where_a_file_is_due(cli: Cli, words, name):
    cli.write()
    for make in (pipe, endless):
        (cli.folder / name).unlink(missing_ok=True)
        make(cli.folder / name)
        error = cli.refused(*words).error
        assert "not a regular file" in error["message"], make
        assert error["fix"]


@pytest.mark.bad_input(51)
@pytest.mark.security("paths")
@pytest.mark.parametrize("make", [pipe, endless, itself])
def test_a_journal_that_is_no_plain_file_is_refused(cli: Cli, ended: Path, make: Callable[[Path], None]):
    (ended / "journal.jsonl").unlink()
    make(ended / "journal.jsonl")
    for verb in READERS:
        assert run([*verb.split(), str(ended)]) == 6, verb
        assert "journal.jsonl is not a regular file" in cli.capsys.readouterr().err


@pytest.mark.security("paths")
def test_no_log_is_shown_through_a_link(cli: Cli, ended: Path):
    secret = cli.folder / "secret"
    attempt = ended / "trials" / "t0001" / "a1"
    for folder in (secret, attempt):
        folder.mkdir(parents=True, exist_ok=True)
    for name in ("rank-00000.log", "rank-00001.log"):
        (secret / name).write_text("hunter2\n")
        (attempt / name).unlink(missing_ok=True)
        (attempt / name).symlink_to(secret / name)
    logs = ["logs", "t0001", "--search", str(ended)]
    for words in (logs, [*logs, "--rank", "0"], [*logs, "--rank", "1"]):
        assert "not a regular file" in cli.refused(*words, code=6).error["message"]
    shutil.rmtree(attempt)
    attempt.symlink_to(secret)
    for words in (logs, [*logs, "--rank", "0"]):
        assert "out of the search's folder" in cli.refused(*words, code=6).error["message"]


@pytest.mark.bad_input(51)
def test_a_folder_that_is_a_link_to_itself_is_no_search(cli: Cli):
    itself(cli.folder / "loop")
    assert "not a regular file" in cli.refused("status", "./loop", code=6).error["message"]
    assert cli.refused("ledger", "rebuild", "loop", code=4).error["fix"]


OWN_READERS = {
    "search_spaces/plain_file.py": "the opener",
    "search_spaces/schema/presets.py": "files that are installed with Parlay",
    "dashboards/report/html.py": "files that are installed with Parlay",
    "orchestrator/cli/detached.py": "no file: /dev/null",
    "slurm/site_profile.py": "imports nothing of ours; looks what it is before it reads",
    "slurm/squeue_cache.py": "imports nothing of ours; opens as the opener does",
    "slurm/sandbox/sandbox.py": "files of its own private folder, and /proc",
    "slurm/sandbox/daemons.py": "files of its own private folder, and /proc",
    "orchestrator/search/code_snapshot.py": "the sources that are installed, and a snapshot of them",
    "orchestrator/recipe/write.py": "a snapshot of the sources",
    "orchestrator/planning/plan.py": "the sources that are installed",
    "trials/ranks/cpu_binding.py": "the kernel's topology of the CPUs",
    "trials/fork_server/stub.py": "the kernel's words of processes and its counters",
    "trials/fork_server/preload.py": "the kernel's names of its own threads",
    "trials/ranks/kernel_oom.py": "the kernel's counters of a control group",
    "trials/ranks/software.py": "the kernel's words of processes and drivers",
    "trials/train/proof/host_memory.py": "the kernel's counters of memory",
    "orchestrator/launchers/private_tmp.py": "opens as the opener does, within a folder that it holds open",
}
"""Modules that open files directly, and the files they read."""
KERNELS = ("/proc", "/sys", "_proc", "proc /", "groups", "version_file", "EPHEMERAL_PORTS")
"""Path prefixes of kernel files."""


@pytest.mark.security("paths")
def test_files_are_read_through_the_one_opener():
    found = {f"{module}:{line}" for module in modules() for line in _reads_by_itself(module)}
    assert found == set()


def _reads_by_itself(module: str) -> Iterator[str]:
    if module in OWN_READERS:
        return
    for name, call in calls(module):
        if _is_reading(name, call) and not any(word in ast.unparse(call) for word in KERNELS):
            yield f"{call.lineno}: {ast.unparse(call)}"


def _is_reading(name: str, call: ast.Call) -> bool:
    if name.endswith((".read_text", ".read_bytes")):
        return True
    if name != "open" and not name.endswith(".open"):
        return False
    words = ast.unparse(call)
    if name == "os.open":
        return "O_RDONLY" in words and "O_DIRECTORY" not in words
    return any(mode in words for mode in ("'rb'", "'r'"))
