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


OWN_READERS = {
    "search_spaces/plain_file.py": "the opener",
    "search_spaces/schema/presets.py": "files that are installed with Parlay",
    "dashboards/report/html.py": "files that are installed with Parlay",
    "slurm/sandbox/config_files.py": "files that are installed with Parlay",
    "orchestrator/cli/submit.py": "no file: /dev/null",
    "slurm/sandbox/sandbox.py": "files of its own private folder, and /proc",
    "slurm/sandbox/daemons.py": "files of its own private folder, and /proc",
    "orchestrator/search/code_snapshot.py": "the sources that are installed, and a snapshot of them",
    "orchestrator/recipe/write.py": "a snapshot of the sources",
    "orchestrator/planning/plan.py": "the sources that are installed",
    "trials/ranks/environment.py": "the kernel's topology of the CPUs",
    "trials/fork_server/stub.py": "the kernel's words of processes and its counters",
    "trials/fork_server/preload.py": "the kernel's names of its own threads",
    "trials/ranks/kernel_oom.py": "the kernel's counters of a control group",
    "trials/ranks/software.py": "the kernel's words of processes and drivers",
    "trials/train/parallel/device.py": "the kernel's counters of memory",
    "orchestrator/launchers/private_tmp.py": "opens as the opener does, within a folder that it holds open",
}
"""Modules that open files directly, and the files they read."""
KERNELS = ("/proc", "/sys", "_proc", "proc /", "groups", "version_file", "EPHEMERAL_PORTS")
"""Path prefixes of kernel files."""


@pytest.mark.slow
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


DOORS = {"orchestrator/cli/output.py", "orchestrator/cli/main.py"}
"""main.py prints a message of its own for a Python that is too old to import anything."""


@pytest.mark.slow
@pytest.mark.bad_input(50)
def test_verbs_speak_through_one_door():
    verbs = [module for module in modules() if module.startswith("orchestrator/cli/")]
    assert {module for module in verbs if any(_spoken(module))} == DOORS
    consoles = {module for module in modules() for name, _ in calls(module) if name == "Console"}
    assert consoles <= {"dashboards/terminal/live_table.py"}


def _spoken(module: Module) -> Iterator[ast.Call]:
    for name, call in calls(module):
        if name in ("print", "sys.stdout.write", "sys.stderr.write", "typer.echo", "traceback.print_exc"):
            yield call


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
