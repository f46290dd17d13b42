"""Security rules for all source code: calls that never occur, and arguments that are never passed."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.orchestrator.cli.parlay import environment
from tests.sources import ROOT, Module, calls, imported, modules, parsed

SHELLS = {
    "os.system",
    "os.popen",
    "subprocess.getoutput",
    "subprocess.getstatusoutput",
    "asyncio.create_subprocess_shell",
}
NAMES = {"sh", "bash", "dash", "ksh", "zsh"}
EVALUATORS = {"eval", "exec", "compile", "__import__"}
UNPICKLERS = ("pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal", "joblib")
MAKERS_OF_OBJECTS = {
    "torch.load",
    "yaml.load",
    "yaml.unsafe_load",
    "yaml.full_load",
    "yaml.load_all",
    "numpy.load",
    "np.load",
}
OBJECT_COLLECTIVES = {
    "all_gather_object",
    "gather_object",
    "broadcast_object_list",
    "scatter_object_list",
    "send_object_list",
    "recv_object_list",
}
"""Calls of torch.distributed that unpickle whatever a process sent to a rank's port."""
MADE_OF_CHECKED_WORDS = {"slurm/srun_command.py"}
"""Modules whose script for `sh -c` has words that option_checks.py accepted: tests/slurm/test_option_checks.py."""


def faults(module: Module) -> Iterator[str]:
    for name, call in calls(module):
        if name in SHELLS | EVALUATORS | MAKERS_OF_OBJECTS:
            yield f"{module}:{call.lineno}: {name}"
        if name.rpartition(".")[2] in OBJECT_COLLECTIVES:
            yield f"{module}:{call.lineno}: {name}"
        if any(keyword.arg == "shell" for keyword in call.keywords):
            yield f"{module}:{call.lineno}: shell="
    for name in imported(module):
        if name.split(".")[0] in UNPICKLERS:
            yield f"{module}: import {name}"


def test_the_sources_are_looked_at():
    assert len(modules()) > 200
    assert any(name == "subprocess.Popen" for module in modules() for name, _ in calls(module))


@pytest.mark.slow
@pytest.mark.security("no_shell", "no_pickle")
def test_no_text_reaches_a_shell_or_an_interpreter_and_nothing_is_unpickled():
    assert [fault for module in modules() for fault in faults(module)] == []


@pytest.mark.security("no_shell")
def test_a_shell_is_started_for_scripts_of_ours_alone():
    """The script after `sh -c` or `bash -c` is a constant; everything else is an argument of it."""
    assert {module for module in modules() if _starts_made_up_scripts(module)} == MADE_OF_CHECKED_WORDS


def _starts_made_up_scripts(module: Module) -> bool:
    lists = [node for node in parsed(module) if isinstance(node, (ast.List, ast.Tuple))]
    return any(not _is_constant(script, module) for node in lists for script in _shell_scripts(node))


def _shell_scripts(node: ast.List | ast.Tuple) -> Iterator[ast.expr]:
    """Script that a shell would run: the word after its -c, also within -lc or -ec."""
    words = [str(item.value) if isinstance(item, ast.Constant) else "" for item in node.elts]
    for place, word in enumerate(words[:-1]):
        if re.fullmatch("-[a-z]*c", word) and any(before.rpartition("/")[2] in NAMES for before in words[:place]):
            yield node.elts[place + 1]


def _is_constant(script: ast.expr, module: Module) -> bool:
    """True for a string literal, or a name that is only assigned string literals in the file."""
    if not isinstance(script, ast.Name):
        return isinstance(script, ast.Constant)
    file, *nodes = parsed(module)
    bound = [node for node in nodes if isinstance(node, ast.Name) and node.id == script.id]
    values = [node.value for node in file.body if isinstance(node, ast.Assign) and node.targets[0] in bound]
    stored = [node for node in bound if isinstance(node.ctx, ast.Store)]
    return len(values) == len(stored) == 1 and isinstance(values[0], ast.Constant)


@pytest.mark.security("ray")
def test_ray_stop_is_never_called():
    """The command ends every Ray of this user, and as root those of all users."""
    words = [node for module in modules() for node in _texts(module)]
    assert [text for text in words if "ray stop" in text and "never" not in text] == []
    assert [m for m in modules() if "'ray', 'stop'" in (ROOT / m).read_text().replace('"', "'")] == []


def _texts(module: str) -> Iterator[str]:
    for node in parsed(module):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


@pytest.mark.bad_input(47)
@pytest.mark.processes
@pytest.mark.timeout(180)
def test_an_unsupported_python_is_reported_before_anything_is_imported():
    program = (
        "import sys; sys.version_info = (3, 9, 1, 'final', 0); sys.argv = ['parlay', '--help'];"
        "from orchestrator.cli.main import main; sys.exit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment(), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 2
    assert done.stderr.startswith("parlay: Python 3.9 is too old: 3.11 or newer is needed")
