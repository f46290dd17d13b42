"""Site profiles as defaults of the user's keys, and the job that results.

To store an intended change of a script: PARLAY_UPDATE_STORED=1 pytest tests/orchestrator/launchers/slurm/test_site.py
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.config.loader import load_search_file
from orchestrator.config.spec import SearchSpec
from orchestrator.launchers.factory import job_options
from orchestrator.launchers.slurm.site import load_profile, section_from_profile, site_remarks, with_site
from orchestrator.lifecycle.create import with_environment_options
from search_spaces.errors import InputError, Problem
from slurm.client import SlurmClient
from slurm.interface import SubmitStatus
from slurm.option_checks import SRUN_KEYS
from slurm.request import JobRequest
from slurm.sandbox.sandbox import SlurmSandbox
from slurm.script import render_script
from slurm.site_profile import site_names
from tests.slurm.sandbox.test_sandbox import eventually

STORED = Path(__file__).with_name("data")
MACHINES = {
    "frontier": ("mi250x-gcd-64gb", 8),
    "juwels-booster": ("a100-40gb", 4),
    "leonardo": ("a100-80gb", 4),
    "lumi": ("mi250x-gcd-64gb", 8),
    "perlmutter": ("a100-40gb", 4),
    "plain": ("h100-80gb", 8),
}
SEARCH = """\
name: small
model: gpt2-tiny
cluster: {{accelerator: {accelerator}, gpus_per_node: {gpus}, num_nodes: 2}}
global_batch_size: 16
space:
  tensor_parallel: [1, 2]
launcher:
  kind: slurm
  slurm:
"""
FIRST_LINE = SEARCH.count("\n") + 1


def loaded(folder: Path, *lines: str, accelerator: str = "cpu", gpus: int = 2) -> SearchSpec:
    path = folder / "search.yaml"
    text = SEARCH.format(accelerator=accelerator, gpus=gpus)
    path.write_text(text + "".join(f"    {line}\n" for line in lines))
    return load_search_file(path)


def problem_of(folder: Path, *lines: str, accelerator: str = "cpu", gpus: int = 2) -> Problem:
    with pytest.raises(InputError) as caught:
        loaded(folder, *lines, accelerator=accelerator, gpus=gpus)
    [problem] = caught.value.problems
    return problem


def script_of(spec: SearchSpec, argv: tuple[str, ...] = ("/opt/python3", "-m", "trials.train", "spec.json")) -> str:
    return render_script(request_of(spec, Path("/shared/small-abcdef/trials/t0001/a1"), argv))


def request_of(spec: SearchSpec, directory: Path, argv: tuple[str, ...]) -> JobRequest:
    options = job_options(spec.launcher, spec.cluster)
    return JobRequest("small-abcdef.t0001.a1", directory, 2, spec.cluster.gpus_per_node, 600.0, argv, options=options)


def profile(folder: Path, text: str, name: str = "ours.toml") -> Path:
    path = folder / name
    path.write_text(f'title = "Ours"\nsources = []\n{text}')
    return path


# -- the six


def test_there_is_a_machine_for_each_profile():
    assert sorted(MACHINES) == site_names()


@pytest.mark.parametrize("name", MACHINES)
def test_the_job_of_a_site_is_the_stored_one(tmp_path, name):
    accelerator, gpus = MACHINES[name]
    found = script_of(loaded(tmp_path, f"site: {name}", "account: project1", accelerator=accelerator, gpus=gpus))
    path = STORED / f"site-{name}.sh"
    if os.environ.get("PARLAY_UPDATE_STORED"):
        path.write_text(found)
    assert found == path.read_text(), __doc__


@pytest.mark.parametrize("name", MACHINES)
def test_a_site_asks_for_no_more_cpus_than_its_nodes_have_for_jobs(tmp_path, name):
    accelerator, gpus = MACHINES[name]
    slurm = loaded(tmp_path, f"site: {name}", accelerator=accelerator, gpus=gpus).launcher.slurm
    assert (slurm.cpus_per_task or 1) * gpus <= (slurm.usable_cpus or 4096)


# -- under the user's keys


def test_what_the_user_says_stands_and_the_profile_fills_in_the_rest(tmp_path):
    lines = ("site: lumi", "partition: dev-g", "env: {NCCL_NET_GDR_LEVEL: '3', MINE: x}", "launch: {address: '{ip}'}")
    slurm = loaded(tmp_path, *lines).launcher.slurm
    assert (slurm.site, slurm.partition, slurm.cpus_per_task) == ("lumi", "dev-g", 7)
    assert slurm.env == {"NCCL_SOCKET_IFNAME": "hsn0,hsn1,hsn2,hsn3", "NCCL_NET_GDR_LEVEL": "3", "MINE": "x"}
    assert (slurm.launch.address, slurm.launch.visible_devices) == ("{ip}", "ROCR_VISIBLE_DEVICES")


def test_a_key_set_to_null_takes_the_profiles_away(tmp_path):
    assert loaded(tmp_path, "site: lumi", "partition: null").launcher.slurm.partition is None


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ((), ["--gres=gpu:4"]),
        (("gpus_per_node: 2",), ["--gpus-per-node=2"]),
        (("gres: 'gpu:a100:4'",), ["--gres=gpu:a100:4"]),
        (("gres: 'nvme:1'",), ["--gres=gpu:4,nvme:1"]),
    ],
)
def test_gpus_are_asked_for_once_and_as_the_site_does(tmp_path, lines, expected):
    spec = loaded(tmp_path, "site: leonardo", *lines, accelerator="a100-80gb", gpus=4)
    directives = [line.removeprefix("#SBATCH ") for line in script_of(spec).splitlines()]
    assert [line for line in directives if line.startswith(("--gres", "--gpus"))] == expected


def test_a_search_that_was_written_down_keeps_what_the_profile_said_then(tmp_path):
    path = profile(tmp_path, '[slurm]\npartition = "gpu"\nusable_cpus = 8\n')
    spec = loaded(tmp_path, "site: ./ours.toml")
    written = json.loads(json.dumps(spec.to_json()))
    path.unlink()
    again = SearchSpec.from_json(written)
    assert again.launcher == spec.launcher
    assert (again.launcher.slurm.site, again.launcher.slurm.partition) == (str(path), "gpu")


def test_the_shells_own_variables_go_before_the_profile_and_after_the_file(tmp_path):
    spec = loaded(tmp_path, "site: lumi", "account: mine")
    environ = {"SBATCH_PARTITION": "dev-g", "SBATCH_ACCOUNT": "other"}
    slurm = with_environment_options(spec, environ).launcher.slurm
    assert (slurm.partition, slurm.account) == ("dev-g", "mine")


def test_files_of_a_profile_start_from_its_own_folder(tmp_path):
    (tmp_path / "sites").mkdir()
    profile(tmp_path / "sites", '[slurm]\nsetup_file = "setup.sh"\n')
    slurm = loaded(tmp_path, "site: sites/ours.toml").launcher.slurm
    assert slurm.setup_file == str(tmp_path / "sites" / "setup.sh")


def test_other_searches_know_nothing_of_sites(tmp_path):
    slurm = loaded(tmp_path, "comment: x").launcher.slurm
    assert with_site(slurm) is slurm
    assert site_remarks(slurm, 1, 60.0, 1) == []


# -- what is refused


@pytest.mark.parametrize(("site", "fix"), [("lummi", "did you mean lumi?"), ("ours", "./my-site.toml")])
def test_a_site_nobody_knows_is_refused_with_the_ones_that_are(tmp_path, site, fix):
    problem = problem_of(tmp_path, "comment: x", f"site: {site}")
    assert (problem.key, problem.line, problem.value) == ("launcher.slurm.site", FIRST_LINE + 1, site)
    assert "juwels-booster" in str(problem.rule)
    assert fix in str(problem.fix)


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("[slurm]\npartion = 'gpu'\n", "slurm.partion", "partion"),
        ("[slurm]\npartition = 'gpu; reboot'\n", "slurm.partition", "gpu; reboot"),
        ("[slurm]\ncpus_per_task = 'many'\n", "slurm.cpus_per_task", "many"),
        ("[slurm]\nsite = 'lumi'\n", "slurm.site", "lumi"),
        ("[slurm]\ntime = '1:00:00'\n", "slurm.time", None),
        ("[slurm.launch]\nsrun = ['--ntasks=2']\n", "slurm.launch.srun[0]", "--ntasks=2"),
        ("[slurm.env]\nRANK = '0'\n", "slurm.env.RANK", "0"),
        ("verified = true\n", "verified", True),
    ],
)
def test_what_is_wrong_in_a_profile_is_the_profiles_fault(tmp_path, text, key, value):
    path = profile(tmp_path, text)
    problem = problem_of(tmp_path, "comment: x", "site: ours.toml")
    assert (problem.file, problem.key, problem.value) == (str(path), key, value)
    assert problem.rule
    assert problem.fix


def test_what_does_not_go_together_is_reported_with_the_site(tmp_path):
    problem = problem_of(tmp_path, "site: lumi", "launch: {srun: [--gpus-per-task=1]}")
    assert (problem.key, problem.line) == ("launcher.slurm.launch.visible_devices", FIRST_LINE)
    assert "site lumi" in problem.message


def test_segments_are_what_jobs_have_of_a_link_domain(tmp_path):
    whole = loaded(tmp_path, "comment: x", accelerator="gb200-186gb", gpus=4).cluster
    parts = loaded(tmp_path, "segment: 16", accelerator="gb200-186gb", gpus=4).cluster
    anywhere = loaded(tmp_path, "segment: 0", accelerator="gb200-186gb", gpus=4).cluster
    assert [each.domain_nodes for each in (whole, parts, anywhere)] == [18, 16, 18]
    assert loaded(tmp_path, "segment: 16", accelerator="h100-80gb", gpus=8).cluster.domain_nodes == 1


def test_segments_larger_than_a_link_domain_are_refused(tmp_path):
    problem = problem_of(tmp_path, "segment: 19", accelerator="gb200-186gb", gpus=4)
    assert (problem.key, problem.value, problem.line) == ("launcher.slurm.segment", 19, FIRST_LINE)
    assert problem.message == "is 19, but a link domain of the cluster has 18 nodes"
    assert (problem.rule, bool(problem.fix)) == ("the nodes of a segment are in one link domain", True)


@pytest.mark.bad_input(22)
@pytest.mark.parametrize(("cpus", "gpus"), [(8, 8), (57, 1), (1, 64)])
def test_more_cpus_than_a_node_has_for_jobs_are_refused(tmp_path, cpus, gpus):
    problem = problem_of(tmp_path, "site: lumi", f"cpus_per_task: {cpus}", gpus=gpus)
    assert (problem.code, problem.key, problem.value) == ("usable_cpus", "launcher.slurm.cpus_per_task", cpus)
    assert problem.line == FIRST_LINE + 1
    assert f"{cpus} x {gpus} ranks of a node = {cpus * gpus} CPUs" in problem.message
    assert problem.rule == "jobs may use 56 CPUs of a node, by the profile of site lumi"
    assert problem.fix
    assert loaded(tmp_path, "site: lumi", "cpus_per_task: 7", gpus=8)


# -- what is said


def test_a_search_is_told_what_its_site_is_and_where_its_jobs_go_beyond_it(tmp_path):
    slurm = loaded(tmp_path, "site: lumi", "partition: dev-g").launcher.slurm
    first, *others = site_remarks(slurm, num_nodes=64, time_limit_s=600.0, jobs=4)
    assert first == "site lumi: LUMI-G (CSC): community profile, read 2026-11-22, not verified (docs/sites.md)"
    assert others[:3] == [
        "site lumi: dev-g allows 32 nodes per job, 64 requested",
        "site lumi: dev-g allows 1 running jobs per user, 4 requested",
        "site lumi: dev-g allows 2 running and pending jobs per user, 4 requested",
    ]
    assert others[3:] == [f"site lumi: {note}" for note in load_profile("lumi").notes]


@pytest.mark.parametrize("name", MACHINES)
def test_what_a_profile_says_is_a_section(name):
    assert section_from_profile(load_profile(name)).site is None


# -- docs/sites.md


PAGE = (Path(__file__).parents[4] / "docs" / "sites.md").read_text()


def test_the_page_shows_a_profile_and_containers_that_can_be_read(tmp_path):
    [text] = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "ada.toml").write_text(text)
    assert loaded(tmp_path, "site: ada.toml").launcher.slurm.launch.address == "{host}-ib"
    assert load_profile(str(tmp_path / "ada.toml")).limits["gpu"].max_running == 4
    containers = re.findall(r"```yaml\n(container:.*?)\n```", PAGE, re.DOTALL)
    assert [loaded(tmp_path, found).launcher.slurm.container is not None for found in containers] == [True, True]


def test_the_pages_table_says_what_the_profiles_say():
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in PAGE.splitlines() if line.startswith("| ")]
    table = {row[0]: row[1:] for row in rows}
    for place, name in enumerate(cell.strip("`") for cell in table[""]):
        found = section_from_profile(load_profile(name))
        told = {title: cells[place] for title, cells in table.items() if len(cells) == len(MACHINES)}
        asked = [one for one in (found.partition, found.qos, found.constraint) if one is not None]
        assert told["partition, QOS, constraint"] == ", ".join(asked)
        cpus = "" if found.cpus_per_task is None else f"{found.cpus_per_task}, {found.usable_cpus}"
        assert told["CPUs of a rank, of a node"].startswith(cpus)
        assert told["asked for by"].startswith("`--gres" if found.gpus_as == "gres" else "`--gpus-per-node")
        assert bool(told["MIOpen's caches"]) == ("MIOPEN_USER_DB_PATH" in found.launch.node_folders)
        assert (str(found.launch.visible_devices) in told["a rank sees"]) == (found.launch.visible_devices is not None)
        assert (told["rank 0 is met at"] == "its name") == (found.launch.address is None)


def test_the_page_knows_the_same_sites_and_options_of_srun():
    header = next(line for line in PAGE.splitlines() if line.startswith("| |"))
    assert sorted(re.findall(r"`(.+?)`", header)) == site_names()
    listed = next(line for line in PAGE.splitlines() if line.startswith("| `srun` |"))
    assert sorted(re.findall(r"--([a-z-]+)", listed)) == sorted(SRUN_KEYS)


# -- a real Slurm


def run(sandbox: SlurmSandbox, request: JobRequest) -> dict[int, dict[str, str]]:
    """Return what each rank of this job saw in its environment, by its number."""
    request.script.write_text(render_script(request))
    client = SlurmClient({"PATH": os.environ["PATH"], **sandbox.environment})
    submission = client.submit(request)
    assert submission.status is SubmitStatus.ACCEPTED, submission.message
    ranks = request.num_nodes * request.tasks_per_node
    logs = [request.directory / f"rank-{rank:05d}.log" for rank in range(ranks)]
    eventually(
        lambda: [log.read_text() if log.exists() else request.log.read_text() for log in logs if request.log.exists()],
        lambda texts: len(texts) == ranks and all("ENDED=1" in text for text in texts),
        timeout_s=180.0,
    )
    lines = [[line for line in log.read_text().splitlines() if "=" in line] for log in logs]
    return {rank: dict(line.split("=", 1) for line in found) for rank, found in enumerate(lines)}


@pytest.mark.processes
@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", MACHINES)
def test_a_real_slurm_understands_what_each_site_asks_for(tmp_path, slurm_sandbox: SlurmSandbox, name):
    here = ("partition: main", "qos: null", "constraint: null", "cpus_per_task: 1")
    spec = loaded(tmp_path, f"site: {name}", *here, accelerator=MACHINES[name][0], gpus=4)
    client = SlurmClient({"PATH": os.environ["PATH"], **slurm_sandbox.environment})
    submission = client.test(request_of(spec, tmp_path, ("true",)))
    assert submission.status is SubmitStatus.ACCEPTED, submission.message


@pytest.mark.processes
@pytest.mark.timeout(240)
def test_a_real_slurm_takes_the_plain_profile(tmp_path, slurm_sandbox: SlurmSandbox):
    spec = loaded(tmp_path, "site: plain", accelerator="h100-80gb", gpus=2)
    seen = run(slurm_sandbox, request_of(spec, tmp_path, ("/usr/bin/env", "ENDED=1")))
    assert [seen[rank]["SLURM_LOCALID"] for rank in range(4)] == ["0", "1", "0", "1"]
    assert {one["CUDA_VISIBLE_DEVICES"] for one in seen.values()} == {"0,1"}


@pytest.mark.processes
@pytest.mark.timeout(240)
def test_a_real_slurm_takes_a_profile_with_a_core_map_a_gpu_for_each_rank_and_folders_of_the_node(
    tmp_path, slurm_sandbox: SlurmSandbox
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
    spec = loaded(tmp_path, "site: ours.toml", "setup_file: mine.sh", accelerator="h100-80gb", gpus=2)
    request = request_of(spec, tmp_path, ("/usr/bin/env", "ENDED=1"))
    seen = run(slurm_sandbox, replace(request, environment={"PYTHONSAFEPATH": "1"}))
    assert [seen[rank]["CUDA_VISIBLE_DEVICES"] for rank in range(4)] == ["0", "1", "0", "1"]
    for one in seen.values():
        assert one["SLURM_CPUS_PER_TASK"] == "2"
        assert one["SLURM_CPU_BIND"].endswith("mask_cpu:3,c")
        assert one["PARLAY_ADDRESS"] == "{host}i"
        assert one["TMPDIR"] == f"{tmp_path}/parlay-{one['SLURM_JOB_ID']}.0/TMPDIR"
        assert (one["NCCL_SOCKET_IFNAME"], one["SOURCED"]) == ("lo", "yes")
