"""Ranks that a fork server forks: all that a plain start would have given them, and their end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.orchestrator.launchers.attempts import is_running
from tests.trials.fork_server.servers import (
    IMPORT_NOTHING,
    Node,
    handle_no_signals,
    ignore_signals,
    wait_for_end,
    with_fewer_files,
)

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]

TELL = """
import json
stats = open("/proc/self/status").read().split("\\n")
print(json.dumps({
    "argv": sys.argv[1:], "cwd": os.getcwd(), "umask": os.umask(0), "affinity": sorted(os.sched_getaffinity(0)),
    "environment": dict(os.environ), "session": os.getsid(0) == os.getpid(), "name": __name__,
    "main": sys.modules["__main__"].__spec__ is not None,
    "files": sorted(os.readlink(f"/proc/self/fd/{n}") for n in range(3, 256) if os.path.lexists(f"/proc/self/fd/{n}")),
    "signals": [line for line in stats if line.startswith(("SigBlk", "SigIgn", "SigCgt"))],
    "stdin": os.readlink("/proc/self/fd/0"), "random": __import__("random").random(), "parent": os.getppid(),
}))
"""
WARM = {"PARLAY_WARM", "PARLAY_LAUNCHED_TICKS"}
OWN = {"PARLAY_PRELOAD"}
"""Variables that tell a warm start from a plain one."""


def told(node: Node, **options: object) -> dict:
    code, out, err = node.run(TELL, **options)
    assert (code, err) == (0, "")
    return json.loads(out)


def plain(node: Node, **options: object) -> dict:
    """The answer of a rank that was started without a server."""
    (node.root / "plain").write_text(TELL)
    argv = [sys.executable, "-m", "trials.train", str(node.root / "plain")]
    settings = {"cwd": node.root, "env": node.environment, "start_new_session": True, "preexec_fn": handle_no_signals}
    return json.loads(subprocess.run(argv, check=True, capture_output=True, **{**settings, **options}).stdout)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """A node whose server was started."""
    node = Node(tmp_path)
    node.serve()
    yield node
    node.close()


SAME = ("cwd", "umask", "affinity", "session", "name", "main", "files", "signals", "stdin")


def test_a_forked_rank_has_all_that_a_plain_start_gives_and_its_own_random_numbers(node: Node) -> None:
    (node.root / "elsewhere").mkdir()
    cores = sorted(os.sched_getaffinity(0))[:1]
    place = {"RANK": "3", "CUDA_VISIBLE_DEVICES": "1", "PARLAY_PARENT_PID": str(os.getpid())}
    with open("/dev/zero", "rb") as zero:
        changes = {
            "cwd": node.root / "elsewhere",
            "umask": 0o027,
            "stdin": zero,
            "preexec_fn": lambda: (os.sched_setaffinity(0, cores), ignore_signals()),
        }
        changed, cold = told(node, environment=place, **changes), plain(node, **changes)
    assert (changed["cwd"], changed["umask"], changed["affinity"]) == (str(node.root / "elsewhere"), 0o027, cores)
    assert {name: changed["environment"][name] for name in place} == place | {"PARLAY_PARENT_PID": str(node.server.pid)}
    assert {name: changed[name] for name in SAME} == {name: cold[name] for name in SAME}
    warm, cold = told(node), plain(node)
    assert warm["parent"] == node.server.pid
    assert warm["random"] != changed["random"]
    assert {name: warm[name] for name in SAME} == {name: cold[name] for name in SAME}
    mine, theirs = warm["environment"], cold["environment"]
    assert (set(mine) - set(theirs), set(theirs) - set(mine)) == (WARM, OWN)
    assert {name: mine[name] for name in set(theirs) - OWN} == {name: theirs[name] for name in set(theirs) - OWN}


@pytest.mark.parametrize(
    ("program", "code", "words"),
    [
        ("sys.exit(7)", 7, ""),
        ("raise ValueError('broken')", 1, "ValueError: broken\n"),
        ("os._exit(74)", 74, ""),
        ("os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)", -signal.SIGTERM, ""),
        ("raise KeyboardInterrupt", -signal.SIGINT, "KeyboardInterrupt\n"),
        ("os.abort()", -signal.SIGABRT, ""),
    ],
)
def test_a_stub_ends_as_its_rank_does(node: Node, program: str, code: int, words: str) -> None:
    found, _, errors = node.run(program)
    assert found == code
    assert errors.endswith(words)
    assert not list(Path(node.root).glob("core*"))


@pytest.mark.parametrize(
    ("name", "before"),
    [("SIGTERM", handle_no_signals), ("SIGINT", handle_no_signals), ("SIGHUP", ignore_signals)],
)
def test_signals_are_forwarded_to_the_handlers_of_a_rank(node: Node, name: str, before: Callable[[], None]) -> None:
    stub = node.stub(
        f"signal.signal(signal.{name}, lambda *_: sys.exit(9))\nprint('ready', flush=True)\ntime.sleep(60)",
        preexec_fn=before,
    )
    assert stub.stdout.readline() == b"ready\n"
    stub.send_signal(getattr(signal, name))
    assert stub.wait(60) == 9


WITH_A_CHILD = """
import subprocess
child = subprocess.Popen(["sleep", "600"], process_group=0)
print(os.getpid(), child.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.fault(48)
def test_a_killed_stub_takes_its_rank_and_all_of_its_session_with_it(node: Node) -> None:
    stub, other = node.stub(WITH_A_CHILD), node.stub("input(); sys.exit(4)", stdin=subprocess.PIPE)
    pids = [int(word) for word in stub.stdout.readline().split()]
    stub.kill()
    for pid in pids:
        wait_for_end(pid)
    assert other.communicate(b"\n", timeout=60) == (b"", b"")
    assert other.returncode == 4


@pytest.mark.fault(48)
def test_a_killed_rank_is_a_killed_stub_and_its_children_end(node: Node) -> None:
    stub = node.stub(WITH_A_CHILD)
    rank, child = map(int, stub.stdout.readline().split())
    os.kill(rank, signal.SIGKILL)
    assert stub.wait(60) == -signal.SIGKILL
    wait_for_end(child)


@pytest.mark.fault(49)
def test_a_killed_server_takes_its_ranks_with_it_and_their_stubs_are_killed(node: Node) -> None:
    stubs = [node.stub("print(os.getpid(), flush=True)\ntime.sleep(600)") for _ in range(2)]
    pids = [int(stub.stdout.readline()) for stub in stubs]
    node.server.kill()
    assert [stub.wait(60) for stub in stubs] == [-signal.SIGKILL] * 2
    for pid in pids:
        wait_for_end(pid)


def test_what_a_rank_leaves_behind_has_ended_before_its_stub_does(node: Node) -> None:
    program = "import subprocess\nprint(subprocess.Popen(['sleep', '600'], stdout=subprocess.DEVNULL).pid)"
    code, out, _ = node.run(program)
    assert code == 0
    assert not Path(f"/proc/{int(out)}").exists() or "Z" in Path(f"/proc/{int(out)}/stat").read_text().split()[2]


HIDE_DEVICES = "import sys\nsys.argv.pop(0)\nimport glob\nglob.glob = lambda pattern: ['/dev/null']\n"
HIDE_DEVICES += "import runpy\nrunpy.run_path(sys.argv[0], run_name='__main__')"


class TestPlainStarts:
    def refusal(self, node: Node, **options: object) -> str:
        """The line of a rank that the server refused and that ran all the same."""
        code, out, err = node.run("print(os.environ.get('PARLAY_WARM'))\nsys.exit(3)", **options)
        assert (code, out) == (3, "None\n")
        assert err.startswith("parlay: this rank starts without a fork server: ")
        return err

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"environment": {"OMP_NUM_THREADS": "8"}}, "variable OMP_NUM_THREADS differs"),
            ({"environment": {"MY_TOKEN": "hunter2"}}, "MY_TOKEN"),
            (
                {"environment": {"PARLAY_PRELOAD": "deepspeed/cpu"}},
                "it has imported torch/cpu, the rank needs deepspeed",
            ),
            ({"preexec_fn": with_fewer_files}, "limits differ: RLIMIT_NOFILE"),
            ({"preexec_fn": lambda: os.nice(1)}, "priorities differ"),
            ({"stub": ("-c", HIDE_DEVICES)}, "the accelerators that may be opened differ"),
        ],
        ids=["variable", "secret", "engine", "limits", "priority", "devices"],
    )
    def test_what_differs_from_the_server_is_refused_by_its_name(self, node: Node, options: dict, words: str) -> None:
        line = self.refusal(node, **options)
        assert words in line
        assert "hunter2" not in line

    @pytest.mark.security("contents")
    @pytest.mark.parametrize("body", [b"[" * 100_000, b'{"argv": 1}', b"\xff"])
    def test_what_is_no_request_is_refused_and_the_next_rank_is_forked(self, node: Node, body: bytes) -> None:
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.settimeout(60)
            stranger.connect(str(node.socket_path))
            with open(os.devnull, "rb") as null:
                socket.send_fds(stranger, [b"\n"], [null.fileno()] * 3)
            stranger.sendall(body + b"\n")
            assert stranger.recv(4096).startswith(b"refused it cannot serve the request")
        assert node.run("print(os.environ['PARLAY_WARM'])") == (0, "1\n", "")

    @pytest.mark.skipif(os.geteuid() != 0, reason="no leave to mount a small disk")
    def test_another_mount_namespace_is_refused_unless_both_are_a_start_of_one_container(self, tmp_path: Path) -> None:
        node = Node(tmp_path)
        inside = {"before": ("unshare", "--mount"), "environment": {"PARLAY_CONTAINER": "image-1"}}
        node.serve(PARLAY_CONTAINER="image-1")
        assert node.run("print(os.environ['PARLAY_WARM'])", **inside) == (0, "1\n", "")
        assert "the namespaces (the container) differ: mnt" in self.refusal(
            node, **inside | {"environment": {"PARLAY_CONTAINER": "image-2"}}
        )
        node.close()

    def test_without_a_server_ranks_start_plain(self, tmp_path: Path) -> None:
        assert "none serves on this node" in self.refusal(Node(tmp_path))

    def test_after_a_difference_the_server_takes_no_more_and_ends_with_its_last_rank(self, node: Node) -> None:
        stub = node.stub("print(flush=True); input(); sys.exit(4)", stdin=subprocess.PIPE)
        stub.stdout.readline()
        self.refusal(node, environment={"OMP_NUM_THREADS": "8"})
        assert "none serves on this node" in self.refusal(node)
        assert stub.communicate(b"\n", timeout=60) == (b"", b"")
        assert (stub.returncode, node.server.wait(60)) == (4, 1)
        last = (node.root / "server.log").read_text().splitlines()[-1]
        assert last == "cannot fork: the environment variable OMP_NUM_THREADS differs"

    @pytest.mark.fault(50)
    @pytest.mark.parametrize(
        ("preload", "reason"),
        [
            (
                "import threading, time\n"
                "def import_engine(*_): threading.Thread(target=time.sleep, args=(600,), daemon=True).start()",
                "an import has started 1 threads",
            ),
            (
                "import trials.fork_server.preload as checks\n"
                "def import_engine(*_): checks.DEVICE_FILES, checks.held = ('/dev/zero',), open('/dev/zero')",
                "an import has opened /dev/zero",
            ),
            (
                "import sys\n"
                "class torch:\n    class cuda:\n        is_initialized = lambda: True\n"
                "def import_engine(*_): sys.modules['torch'] = torch",
                "an import has initialized CUDA",
            ),
            ("def import_engine(*_): import no_such_module", "ModuleNotFoundError: No module named"),
        ],
        ids=["threads", "device", "cuda", "import"],
    )
    def test_a_server_that_cannot_be_forked_says_why(self, tmp_path: Path, preload: str, reason: str) -> None:
        node = Node(tmp_path, preload)
        server = node.start_server()
        assert server.wait(60) == 1
        assert reason in (node.root / "server.log").read_text().splitlines()[-1]
        assert not list(node.folder.glob("*.socket"))


def with_changes(changes: str) -> str:
    """A program that runs a stub with other values of its names."""
    run = "import runpy, sys\nsys.argv.pop(0)\nstub = runpy.run_path(sys.argv[0])\n"
    return f"{run}stub['main'].__globals__.update({changes})\nstub['main'](sys.argv[1], sys.argv[2:])"


@pytest.mark.fault(52)
@pytest.mark.parametrize(("kills", "code"), [("0, 1", 76), ("1, 1", -signal.SIGKILL)])
def test_a_rank_in_a_step_of_slurm_that_was_killed_for_memory_ends_with_a_code_that_says_so(
    tmp_path: Path, kills: str, code: int
) -> None:
    counts = f"import trials.fork_server.server as server\nserver.count_oom_kills = iter([{kills}]).__next__\n"
    node = Node(tmp_path, counts + IMPORT_NOTHING)
    node.serve(SLURM_STEP_ID="1")
    try:
        assert node.stub("os.kill(os.getpid(), 9)", {"SLURM_STEP_ID": "2"}).wait(60) == code
    finally:
        node.close()


@pytest.mark.fault(52)
@pytest.mark.parametrize(
    ("message", "code"),
    [("slurmstepd: error: Detected 1 oom_kill event in StepId=7.0.\n", 76), ("", -signal.SIGKILL)],
)
def test_ranks_of_a_server_that_was_killed_for_memory_end_with_it_where_slurm_says_so(
    node: Node, message: str, code: int
) -> None:
    stub = node.stub("print(1, flush=True); time.sleep(60)", {"SLURM_STEP_ID": "1"})
    assert stub.stdout.readline() == b"1\n"
    (node.root / "servers.log").write_text(message)
    node.server.kill()
    assert stub.wait(60) == code


@pytest.mark.fault(50)
class TestAServerThatHangs:
    """A server that was stopped; in these stubs patience is short."""

    def impatient(self, node: Node, program: str, **options: object) -> subprocess.Popen[bytes]:
        return node.stub(program, stub=("-c", with_changes("PATIENCE_S=0.3")), **options)

    def test_its_ranks_start_plain_and_the_next_ones_without_waiting(self, node: Node) -> None:
        node.server.send_signal(signal.SIGSTOP)
        stub = self.impatient(node, "print(os.environ.get('PARLAY_WARM'))")
        assert b"does not answer" in stub.stderr.readline()  # the server has the other ends of its pipes
        assert (stub.stdout.readline(), stub.wait(60)) == (b"None\n", 0)
        assert node.run("")[2].endswith("none serves on this node, or it still imports\n")

    def test_a_rank_that_it_had_forked_ends_with_its_own_exit_code(self, node: Node) -> None:
        stub = self.impatient(node, "print(os.getpid(), flush=True); input(); sys.exit(9)", stdin=subprocess.PIPE)
        pid = int(stub.stdout.readline())
        node.server.send_signal(signal.SIGSTOP)
        stub.communicate(b"\n", timeout=60)
        assert stub.returncode == 9
        assert not is_running(pid)
        assert not list(node.folder.glob("*.socket"))


def test_a_stub_finds_the_server_of_its_node_which_signals_to_all_steps_leave(tmp_path: Path) -> None:
    with closing(Node(tmp_path)) as node:
        node.folder = tmp_path / ("a" * 120)  # longer than a socket's address may be
        node.folder.mkdir()
        server = node.serve(SLURMD_NODENAME="n7")
        for number in (signal.SIGUSR1, signal.SIGINT, signal.SIGHUP):
            server.send_signal(number)
        at = {"SLURMD_NODENAME": "n7", "PARLAY_FORK_SERVERS": str(node.folder)}
        assert node.run("print(os.getppid())", at, folder="-") == (0, f"{server.pid}\n", "")
        code, _, err = node.run("sys.exit(3)", at | {"SLURMD_NODENAME": "n8"}, folder="-")
        assert (code, "none serves" in err) == (3, True)
        assert node.run("print(os.environ.get('PARLAY_WARM'))", folder="-") == (0, "None\n", ""), "no folder"
