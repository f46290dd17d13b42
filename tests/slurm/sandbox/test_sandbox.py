"""Sandbox: started, damaged, restarted and stopped without leftovers."""

from __future__ import annotations

import json
import signal
from dataclasses import asdict
from functools import partial
from pathlib import Path

import psutil
import pytest

from slurm.sandbox.config_files import (
    CloudNodes,
    Ports,
    SandboxPaths,
    Shape,
    choose_ports,
    render_files,
)
from slurm.sandbox.daemons import SandboxFailed, port_answers
from slurm.sandbox.sandbox import SANDBOX_SCHEMA, SLURMCTLD, PackagesMissing, SlurmSandbox
from tests import kit
from tests.slurm.sandboxes import require_slurm, sandbox, short_folder


def submit(cluster: SlurmSandbox, body: str, *options: str) -> str:
    folder = cluster.paths.folder
    done = cluster.ask("sbatch", "--parsable", f"--output={folder}/job-%j.out", *options, f"--wrap={body}")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def state_of(cluster: SlurmSandbox, job: str) -> str:
    return cluster.ask("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T").stdout.strip()


def until(cluster: SlurmSandbox, job: str, *states: str) -> str:
    return kit.until(lambda: state_of(cluster, job), lambda state: state in states)


def processes_of(cluster: SlurmSandbox) -> set[str]:
    """Return command lines of processes with this sandbox's path in them, or as working directory."""
    own = str(cluster.paths.folder)
    found = (process.info for process in psutil.process_iter(["cmdline", "cwd"]))
    commands = ((" ".join(about["cmdline"] or ()), about["cwd"] or "") for about in found)
    return {command for command, place in commands if own in command or place.startswith(own)}


def ports_of(cluster: SlurmSandbox) -> list[int]:
    conf = cluster.paths.slurm_conf.read_text()
    nodes = [int(line.rpartition("Port=")[2]) for line in conf.splitlines() if line.startswith("NodeName=n")]
    return [*range(nodes[0] - 2, nodes[0]), *nodes]


PATHS = SandboxPaths(Path("/tmp/sandbox"))


def rendered(shape: Shape) -> list[str]:
    return render_files(PATHS, shape, Ports(12_000), "ada")["slurm.conf"].splitlines()


def test_a_setting_given_replaces_the_sandboxs_own_whatever_its_case():
    lines = rendered(Shape(extra=("slurmdtimeout=5", "PartitionName=tiny Nodes=ALL")))
    assert [line for line in lines if line.lower().startswith("slurmdtimeout")] == ["slurmdtimeout=5"]
    assert [line.split()[0] for line in lines if line.startswith("Part")] == [
        "PartitionName=main",
        "PartitionName=tiny",
    ]


def test_gpus_are_on_every_node_and_nodes_that_are_not_there_have_partitions_of_their_own():
    shape = Shape(nodes=2, gpus_per_node=1, cloud=(CloudNodes("big", nodes=300, gpus_per_node=8, cpus_per_node=64),))
    lines = rendered(shape)
    assert [line for line in lines if line.startswith(("NodeName=big", "NodeName=DEFAULT", "PartitionName"))] == [
        "NodeName=big-[1-300] CPUs=64 RealMemory=512000 Gres=gpu:8 State=CLOUD",
        "NodeName=DEFAULT CPUs=4 RealMemory=4000 State=UNKNOWN Gres=gpu:1",
        "PartitionName=main Nodes=n[1-2] Default=YES MaxTime=UNLIMITED State=UP",
        "PartitionName=big Nodes=big-[1-300] MaxTime=UNLIMITED State=UP",
    ]
    assert "SuspendExcParts=main" in lines
    gpus = render_files(PATHS, shape, Ports(12_000), "ada")["gres.conf"]
    assert gpus == "NodeName=n[1-2] Name=gpu File=/tmp/sandbox/dev/nvidia[0-0]\n"
    assert shape.num_ports == Shape(nodes=2).num_ports
    assert "AccountingStorageTRES=gres/gpu" in rendered(Shape(gpus_per_node=2, accounting=True))
    with short_folder() as folder:
        about = {"schema": SANDBOX_SCHEMA, "port": 12_000, **asdict(shape)}
        (folder / PATHS.about.name).write_text(json.dumps(about))
        assert SlurmSandbox.found_in(folder).shape == shape


@pytest.mark.parametrize(
    ("made", "words"),
    [
        *(
            (partial(CloudNodes, name, 1, 0), "partition of cloud nodes")
            for name in ("main", "a,b", "", "-a", "a" * 64)
        ),
        (partial(Shape, nodes=0), r"nodes is 0: \d to \d+ are allowed"),
        (partial(Shape, cpus_per_node=0), "cpus_per_node is 0"),
        *((partial(SandboxPaths, Path(f"/tmp/{name}")), "only letters") for name in ("with space", "50%", "a,b", "#1")),
        (partial(SandboxPaths, Path("/" + "x" * 120)), r"at most \d+ characters"),
    ],
)
def test_what_slurm_cannot_have_is_refused(made, words):
    with pytest.raises(ValueError, match=words):
        made()


def test_a_folder_keeps_its_ports_and_gives_way_where_they_are_taken():
    first = choose_ports(Path("/tmp/one"), 4, lambda port: True)
    assert first == choose_ports(Path("/tmp/one"), 4, lambda port: True)
    taken = first.slurmd(1)
    second = choose_ports(Path("/tmp/one"), 4, lambda port: port != taken)
    assert taken not in range(second.base, second.base + 4)
    assert choose_ports(Path("/tmp/one"), 4, lambda port: False) is None


def test_without_programs_nothing_is_made_and_stopping_what_never_started_is_no_error(tmp_path, monkeypatch):
    SlurmSandbox(tmp_path / "s", Shape()).stop()
    monkeypatch.setenv("PATH", "")
    with pytest.raises(PackagesMissing, match="slurm-client"):
        SlurmSandbox(tmp_path / "s", Shape()).start()
    assert not (tmp_path / "s").exists()


def test_a_folder_of_something_else_is_left_alone():
    require_slurm(accounting=False)
    with short_folder() as folder:
        (folder / "thesis.tex").write_text("all of it")
        with pytest.raises(ValueError, match="neither empty nor the folder of a sandbox"):
            SlurmSandbox(folder, Shape()).start()
        assert [path.name for path in folder.iterdir()] == ["thesis.tex"]


@pytest.mark.processes
@pytest.mark.timeout(180)
def test_a_daemon_that_does_not_come_up_is_reported_in_its_own_words_and_the_rest_is_ended():
    require_slurm(accounting=False)
    with short_folder() as folder:
        broken = SlurmSandbox(folder, Shape(extra=("SchedulerType=sched/nosuch",)))
        with pytest.raises(SandboxFailed, match=r"(?s)slurmctld has ended:.*sched/nosuch"):
            broken.start()
        assert not processes_of(broken)


@pytest.mark.processes
@pytest.mark.timeout(180)
class TestShared:
    """Tests on the session's sandbox, which each leaves unchanged."""

    def test_a_job_runs_over_two_nodes_with_its_gpus(self, slurm_sandbox):
        folder = slurm_sandbox.paths.folder
        task = f"srun sh -c 'echo $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES >> {folder}/gpus'; exit 3"
        job = submit(slurm_sandbox, task, "--nodes=2", "--ntasks-per-node=2", "--gpus-per-node=4")
        until(slurm_sandbox, job, "FAILED")
        ranks = [line.split() for line in (folder / "gpus").read_text().splitlines()]
        assert (len(ranks), len({node for node, _ in ranks})) == (4, 2)
        assert {devices for _, devices in ranks} == {"0,1,2,3"}

    def test_every_listener_is_on_the_loopback(self, slurm_sandbox):
        listening = {f"{port:04X}" for port in ports_of(slurm_sandbox)}
        addresses = {
            fields[1].split(":")[0]
            for table in ("/proc/net/tcp", "/proc/net/tcp6")
            for fields in map(str.split, Path(table).read_text().splitlines()[1:])
            if fields[1].split(":")[1] in listening and fields[3] == "0A"
        }
        assert addresses == {"0100007F"}


@pytest.mark.walks
@pytest.mark.processes
@pytest.mark.timeout(300)
def test_two_at_once_a_node_that_dies_and_an_end_without_a_trace():
    with sandbox(accounting=False, nodes=2) as one, sandbox(accounting=False, nodes=2) as other:
        assert not set(ports_of(one)) & set(ports_of(other))
        jobs = [submit(cluster, "sleep 1000", "--nodes=2", "--no-requeue") for cluster in (one, other)]
        assert jobs == ["1", "1"]
        until(one, "1", "RUNNING")
        until(other, "1", "RUNNING")

        one.kill("n2")
        one.ask("scontrol", "update", "nodename=n2", "state=down", "reason=killed")  # Slurm itself sees it in 9 s
        until(one, "1", "NODE_FAIL")
        one.start_daemon("n2")
        kit.until(lambda: one.ask("sinfo", "-hN", "-pmain", "-o%T").stdout.split(), lambda t: t == ["idle"] * 2)

        left_running = submit(one, "srun sleep 1000", "--nodes=2")
        until(one, left_running, "RUNNING")
        kit.until(lambda: processes_of(one), lambda found: any("slurmstepd" in command for command in found))
        for node in ("n1", "n2"):
            one.kill(node)
        one.kill(SLURMCTLD, signal.SIGTERM)  # it saves what it knows
        one.stop()
        assert not processes_of(one), "orphaned steps are ended too"
        assert not [port for port in ports_of(one) if port_answers(port)]
        assert state_of(other, "1") == "RUNNING"

        other.kill("n2")
        other.start()
        assert other.running(), "starting again starts what has died"
        assert state_of(other, "1") == "RUNNING"

        one.start()
        assert one.running()
        assert state_of(one, "1") == "NODE_FAIL", "what is over stays known"
        found = SlurmSandbox.found_in(one.paths.folder)
        assert found is not None
        assert found.shape == one.shape
        with pytest.raises(SandboxFailed, match="another shape"):
            SlurmSandbox(one.paths.folder, Shape(nodes=3)).start()
        assert one.running()
