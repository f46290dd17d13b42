"""Site profiles as defaults of the user's keys, and the job that results.

To store an intended change of a script: PARLAY_UPDATE_STORED=1 pytest tests/orchestrator/config/test_site.py
"""

from __future__ import annotations

import difflib
import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from orchestrator.config.site import MAX_BYTES, SITES, load_profile, site_names, site_remarks
from orchestrator.config.spec import SearchSpec
from orchestrator.launchers.factory import job_options
from orchestrator.lifecycle.create import with_environment_options
from search_spaces.errors import Problem
from slurm.client import SlurmClient
from slurm.interface import SubmitStatus
from slurm.request import JobRequest
from slurm.sandbox.sandbox import SlurmSandbox
from slurm.script import render_script
from tests import kit

STORED = Path(__file__).with_name("data")
PAGE = (Path(__file__).parents[3] / "docs" / "sites.md").read_text()
MACHINES = {
    "frontier": ("mi250x-gcd-64gb", 8),
    "juwels-booster": ("a100-40gb", 4),
    "leonardo": ("a100-80gb", 4),
    "lumi": ("mi250x-gcd-64gb", 8),
    "perlmutter": ("a100-40gb", 4),
    "plain": ("h100-80gb", 8),
}


def changes(slurm: dict[str, object], accelerator: str = "cpu", gpus: int = 2) -> dict[str, object]:
    """Changes of a search file: these keys of launcher.slurm, on two nodes of such accelerators."""
    cluster = {"accelerator": accelerator, "gpus_per_node": gpus, "num_nodes": 2}
    return {"cluster": cluster, "launcher": {"kind": "slurm", "slurm": slurm}}


def loaded(folder: Path, machine: tuple[str, int] = ("cpu", 2), /, **slurm: object) -> SearchSpec:
    return kit.loaded(folder, **changes(slurm, *machine))


def problem_of(folder: Path, machine: tuple[str, int] = ("cpu", 2), /, **slurm: object) -> Problem:
    return kit.refusal(folder, **changes(slurm, *machine))


def request_of(
    spec: SearchSpec,
    directory: Path = Path("/shared/small-abcdef/trials/t0001/a1"),
    argv: tuple[str, ...] = ("/opt/python3", "-m", "trials.train", "spec.json"),
) -> JobRequest:
    options = job_options(spec.launcher, spec.cluster)
    return JobRequest("small-abcdef.t0001.a1", directory, 2, spec.cluster.gpus_per_node, 600.0, argv, options=options)


def profile(folder: Path, text: str) -> Path:
    path = folder / "ours.toml"
    path.write_text(f'title = "Ours"\nsources = []\n{text}')
    return path


# -- the six


def test_profiles_that_come_with_parlay_say_where_each_word_of_them_is_from():
    assert site_names() == sorted(MACHINES)
    for name in site_names():
        found = load_profile(name)
        assert (bool(found.title), found.slurm.account, len(found.sources) >= 2) == (True, None, True)
        assert all(source.url.startswith("https://") for source in found.sources)
        assert (SITES / f"{name}.toml").read_text().startswith("# Community knowledge, verified by nobody")


@pytest.mark.parametrize("name", site_names())
def test_the_job_of_a_site_is_the_stored_one_and_asks_for_no_more_cpus_than_its_nodes_have(tmp_path, name):
    spec = loaded(tmp_path, MACHINES[name], site=name, account="project1")
    found, path, plain = render_script(request_of(spec)), STORED / f"site-{name}.diff", STORED / "site-plain.sh"
    if name == "plain":
        path = plain
    else:
        lines = difflib.ndiff(plain.read_text().splitlines(True), found.splitlines(True))
        found = "".join(line for line in lines if line.startswith(("+ ", "- ")))
    if os.environ.get("PARLAY_UPDATE_STORED"):
        path.write_text(found)
    assert found == path.read_text(), __doc__
    slurm = spec.launcher.slurm
    assert (slurm.cpus_per_task or 1) * MACHINES[name][1] <= (slurm.usable_cpus or 4096)


# -- under the user's keys


def test_what_the_user_says_stands_and_the_profile_fills_in_the_rest(tmp_path):
    said = {"partition": "dev-g", "env": {"NCCL_NET_GDR_LEVEL": "3", "MINE": "x"}, "launch": {"address": "{ip}"}}
    slurm = loaded(tmp_path, site="lumi", **said).launcher.slurm
    assert (slurm.site, slurm.partition, slurm.cpus_per_task) == ("lumi", "dev-g", 7)
    assert slurm.env == {"NCCL_SOCKET_IFNAME": "hsn0,hsn1,hsn2,hsn3", "NCCL_NET_GDR_LEVEL": "3", "MINE": "x"}
    assert (slurm.launch.address, slurm.launch.visible_devices) == ("{ip}", "ROCR_VISIBLE_DEVICES")
    assert loaded(tmp_path, site="lumi", partition=None).launcher.slurm.partition is None, "null takes it away"


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({}, ["--gres=gpu:4"]),
        ({"gpus_per_node": 2}, ["--gpus-per-node=2"]),
        ({"gres": "gpu:a100:4"}, ["--gres=gpu:a100:4"]),
        ({"gres": "nvme:1"}, ["--gres=gpu:4,nvme:1"]),
    ],
)
def test_gpus_are_asked_for_once_and_as_the_site_does(tmp_path, said, expected):
    spec = loaded(tmp_path, MACHINES["leonardo"], site="leonardo", **said)
    directives = [line.removeprefix("#SBATCH ") for line in render_script(request_of(spec)).splitlines()]
    assert [line for line in directives if line.startswith(("--gres", "--gpus"))] == expected


def test_a_search_that_was_written_down_keeps_what_the_profile_said_then_whose_files_start_from_its_own_folder(
    tmp_path,
):
    (tmp_path / "sites").mkdir()
    path = profile(tmp_path / "sites", '[slurm]\npartition = "gpu"\nusable_cpus = 8\nsetup_file = "setup.sh"\n')
    spec = loaded(tmp_path, site="./sites/ours.toml")
    written = json.loads(json.dumps(spec.to_json()))
    path.unlink()
    again = SearchSpec.from_json(written)
    assert again.launcher == spec.launcher
    slurm = again.launcher.slurm
    assert (slurm.site, slurm.partition, slurm.setup_file) == (str(path), "gpu", str(path.parent / "setup.sh"))


def test_the_shells_own_variables_go_before_the_profile_and_after_the_file(tmp_path):
    spec = loaded(tmp_path, site="lumi", account="mine")
    environ = {"SBATCH_PARTITION": "dev-g", "SBATCH_ACCOUNT": "other"}
    slurm = with_environment_options(spec, environ).launcher.slurm
    assert (slurm.partition, slurm.account) == ("dev-g", "mine")


# -- what is refused


@pytest.mark.parametrize(("site", "fix"), [("lummi", "did you mean lumi?"), ("ours", "./my-site.toml")])
def test_a_site_nobody_knows_is_refused_with_the_ones_that_are(tmp_path, site, fix):
    problem = problem_of(tmp_path, site=site)
    assert (problem.key, problem.value) == ("launcher.slurm.site", site)
    assert "juwels-booster" in str(problem.rule)
    assert fix in str(problem.fix)


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("[slurm]\npartion = 'gpu'\n", "slurm.partion", "partion"),
        ("[slurm]\npartition = 'gpu; reboot'\n", "slurm.partition", "gpu; reboot"),
        ("[slurm]\nsite = 'lumi'\n", "slurm.site", "lumi"),
        ("[slurm]\ntime = '1:00:00'\n", "slurm.time", None),
        ("[slurm.launch]\nsrun = ['--ntasks=2']\n", "slurm.launch.srun[0]", "--ntasks=2"),
        ("verified = true\n", "verified", "verified"),
        ("slurm = 'gpu'\n", "slurm", "gpu"),
        ("notes = 'ask Ada'\n", "notes", "ask Ada"),
        ("[limits.gpu]\nmax_hours = 4\n", "limits.gpu.max_hours", "max_hours"),
        ("[limits.gpu]\nmax_nodes = 0\n", "limits.gpu.max_nodes", 0),
    ],
)
def test_what_is_wrong_in_a_profile_is_the_profiles_fault(tmp_path, text, key, value):
    path = profile(tmp_path, text)
    problem = problem_of(tmp_path, site="ours.toml")
    assert (problem.file, problem.key, problem.value) == (str(path), key, value)
    assert problem.fix


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("sources = []\n", "title"),
        ("title = 'Ours'\n", "sources"),
        ("title = 'Ours'\nsources = [{url = 'https://ours', read = 'last week'}]\n", "sources[0].read"),
    ],
)
def test_a_profile_has_a_title_and_sources_with_the_day_on_which_they_were_read(tmp_path, text, key):
    (tmp_path / "ours.toml").write_text(text)
    assert problem_of(tmp_path, site="ours.toml").key == key


def test_what_is_no_file_no_toml_or_too_large_is_refused_and_no_pipe_is_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.toml")
    (tmp_path / "other.toml").write_text("[[more]\n")
    profile(tmp_path, f"notes = ['{'x' * MAX_BYTES}']\n")
    for name in ("none.toml", "pipe.toml", "other.toml", "ours.toml"):
        assert problem_of(tmp_path, site=name).file == str(tmp_path / name)


def test_what_does_not_go_together_is_reported_with_the_site(tmp_path):
    problem = problem_of(tmp_path, site="lumi", launch={"srun": ["--gpus-per-task=1"]})
    assert problem.key == "launcher.slurm.launch.visible_devices"
    assert "site lumi" in problem.message


def test_segments_are_what_jobs_have_of_a_link_domain_and_larger_ones_are_refused(tmp_path):
    gb200, h100 = ("gb200-186gb", 4), ("h100-80gb", 8)
    for machine, said, nodes in ((gb200, {}, 18), (gb200, {"segment": 16}, 16), (gb200, {"segment": 0}, 18)):
        assert loaded(tmp_path, machine, comment="x", **said).cluster.domain_nodes == nodes, said
    assert loaded(tmp_path, h100, segment=16).cluster.domain_nodes == 1
    problem = problem_of(tmp_path, gb200, segment=19)
    assert (problem.key, problem.value) == ("launcher.slurm.segment", 19)
    assert "18 nodes" in problem.message
    assert problem.fix


@pytest.mark.bad_input(22)
@pytest.mark.parametrize(("cpus", "gpus"), [(8, 8), (57, 1), (1, 64)])
def test_more_cpus_than_a_node_has_for_jobs_are_refused(tmp_path, cpus, gpus):
    problem = problem_of(tmp_path, ("cpu", gpus), site="lumi", cpus_per_task=cpus)
    assert (problem.code, problem.key, problem.value) == ("usable_cpus", "launcher.slurm.cpus_per_task", cpus)
    assert f"{cpus} x {gpus} ranks of a node = {cpus * gpus} CPUs" in problem.message
    assert "56 CPUs" in problem.rule
    assert problem.fix
    assert loaded(tmp_path, ("cpu", 8), site="lumi", cpus_per_task=7)


# -- what is said


def test_a_search_is_told_what_its_site_is_and_where_its_jobs_go_beyond_it(tmp_path):
    slurm = loaded(tmp_path, site="lumi", partition="dev-g").launcher.slurm
    first, *others = site_remarks(slurm, num_nodes=64, time_limit_s=600.0, jobs=4)
    assert "not verified" in first
    beyond = ("32 nodes per job, 64 requested", "1 running jobs per user, 4 requested", "2 running and pending jobs")
    assert all(words in told for words, told in zip(beyond, others[:3], strict=True))
    assert others[3:] == [f"site lumi: {note}" for note in load_profile("lumi").notes]


def test_the_page_knows_the_same_sites_and_shows_a_profile_and_containers_that_can_be_read(tmp_path):
    [text] = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "ada.toml").write_text(text)
    assert loaded(tmp_path, site="ada.toml").launcher.slurm.launch.address == "{host}-ib"
    assert load_profile(str(tmp_path / "ada.toml")).limits["gpu"].max_running == 4
    containers = [yaml.safe_load(found) for found in re.findall(r"```yaml\n(container:.*?)\n```", PAGE, re.DOTALL)]
    assert [loaded(tmp_path, **found).launcher.slurm.container is not None for found in containers] == [True, True]
    header = next(line for line in PAGE.splitlines() if line.startswith("| |"))
    assert sorted(re.findall(r"`(.+?)`", header)) == site_names()


# -- a real Slurm


def client_of(sandbox: SlurmSandbox) -> SlurmClient:
    return SlurmClient({"PATH": os.environ["PATH"], **sandbox.environment})


@pytest.mark.processes
@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", site_names())
def test_a_real_slurm_understands_what_each_site_asks_for(tmp_path, slurm_sandbox, name):
    here = {"partition": "main", "qos": None, "constraint": None, "cpus_per_task": 1}
    spec = loaded(tmp_path, (MACHINES[name][0], 4), site=name, **here)
    submission = client_of(slurm_sandbox).test(request_of(spec, tmp_path, ("true",)))
    assert submission.status is SubmitStatus.ACCEPTED, submission.message


@pytest.mark.processes
@pytest.mark.timeout(240)
def test_a_real_slurm_takes_a_profile_with_a_core_map_a_gpu_for_each_rank_and_folders_of_the_node(
    tmp_path, slurm_sandbox
):
    profile(
        tmp_path,
        f"""
        [slurm]
        partition = "main"
        gpus_as = "gres"
        cpus_per_task = 2
        threads_per_core = 1
        usable_cpus = 4
        exclusive = true
        [slurm.env]
        NCCL_SOCKET_IFNAME = "lo"
        [slurm.launch]
        srun = ["--cpu-bind=mask_cpu:3,c", "--threads-per-core=1"]
        visible_devices = "CUDA_VISIBLE_DEVICES"
        address = "{{host}}i"
        [slurm.launch.node_folders]
        TMPDIR = "{tmp_path}"
        """,
    )
    (tmp_path / "setup.sh").write_text("export SOURCED=yes\n")
    spec = loaded(tmp_path, ("h100-80gb", 2), site="ours.toml", setup_file="setup.sh")
    job = replace(request_of(spec, tmp_path, ("/usr/bin/env", "ENDED=1")), environment={"PYTHONSAFEPATH": "1"})
    job.script.write_text(render_script(job))
    submission = client_of(slurm_sandbox).submit(job)
    assert submission.status is SubmitStatus.ACCEPTED, submission.message
    logs = [tmp_path / f"rank-{rank:05d}.log" for rank in range(4)]
    kit.until(
        lambda: [log.read_text() if log.exists() else job.log.read_text() for log in logs if job.log.exists()],
        lambda texts: len(texts) == 4 and all("ENDED=1" in text for text in texts),
        timeout_s=180.0,
    )
    seen = [dict(line.split("=", 1) for line in log.read_text().splitlines() if "=" in line) for log in logs]
    assert [one["CUDA_VISIBLE_DEVICES"] for one in seen] == ["0", "1", "0", "1"]
    for one in seen:
        assert one["SLURM_CPUS_PER_TASK"] == "2"
        assert one["SLURM_CPU_BIND"].endswith("mask_cpu:3,c")
        assert one["PARLAY_ADDRESS"] == "{host}i"
        assert one["TMPDIR"] == f"{tmp_path}/parlay-{one['SLURM_JOB_ID']}.0/TMPDIR"
        assert (one["NCCL_SOCKET_IFNAME"], one["SOURCED"]) == ("lo", "yes")
