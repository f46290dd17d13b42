"""Section launcher.slurm: refusals with file, line, key, value, rule and fix; accepted values."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from orchestrator.config.loader import load_search_file
from orchestrator.config.spec import SearchSpec
from orchestrator.lifecycle.create import validate_space, with_environment_options
from search_spaces.errors import InputError, Problem
from slurm.client import SlurmClient
from slurm.interface import SubmitStatus
from slurm.option_checks import option_problems
from slurm.request import Container, JobOptions, JobRequest, Launch
from slurm.sandbox.sandbox import SlurmSandbox
from slurm.script import render_script

SEARCH = """\
name: small
model: gpt2-tiny
cluster: this-machine
global_batch_size: 16
space:
  tensor_parallel: [1, 2]
launcher:
  kind: slurm
  slurm:
"""
FIRST_LINE = SEARCH.count("\n") + 1


def loaded(folder: Path, *lines: str, section: str = SEARCH) -> SearchSpec:
    path = folder / "search.yaml"
    path.write_text(section + "".join(f"    {line}\n" for line in lines))
    return load_search_file(path)


def the_problem(folder: Path, *lines: str) -> Problem:
    with pytest.raises(InputError) as caught:
        loaded(folder, *lines)
    [problem] = caught.value.problems
    return problem


@pytest.mark.bad_input(23, 24, 25, 26, 28, 29, 30)
def test_what_does_not_belong_into_a_script_is_refused_in_the_words_of_its_rule(tmp_path):
    """One case for each kind of option; tests/slurm/test_option_checks.py has the whole table."""
    options = JobOptions(
        partition="gpu;reboot",
        gpus_per_node=4,
        gres="gpu:4",
        exclude=("n 1",),
        modules=("cuda/12.1", "$(id)"),
        env={"2ND": "x", "RANK": "0"},
        container=Container(command=("apptainer exec; id",)),
        launch=Launch(srun=("--ntasks=2",), node_folders={"A;B": "/tmp"}, address="node1"),
        directives=("--nice=5", "--output=x", "nice=5", "--uid=root"),
    )
    lines = {
        "partition": "'gpu;reboot'",
        "gpus_per_node": "4",
        "gres": "'gpu:4'",
        "exclude": "['n 1']",
        "modules": "[cuda/12.1, $(id)]",
        "env": "{2ND: x, RANK: '0'}",
        "container": "['apptainer exec; id']",
        "launch": "{srun: [--ntasks=2], node_folders: {A;B: /tmp}, address: node1}",
        "directives": "[--nice=5, --output=x, nice=5, --uid=root]",
    }
    with pytest.raises(InputError) as caught:
        loaded(tmp_path, *(f"{key}: {value}" for key, value in lines.items()))
    found = caught.value.problems
    assert [(p.code, p.key, p.value, p.rule, p.fix) for p in found] == [
        ("slurm_option", f"launcher.slurm.{p.key}", p.value, p.rule, p.fix) for p in option_problems(options)
    ]
    assert {p.file for p in found} == {str(tmp_path / "search.yaml")}
    names = [re.split(r"[.\[]", p.key.removeprefix("launcher.slurm."))[0] for p in found]
    assert [p.line for p in found] == [FIRST_LINE + list(lines).index(name) for name in names]
    assert set(names) == lines.keys() - {"gpus_per_node"}


@pytest.mark.bad_input(23, 26, 30)
@pytest.mark.parametrize(
    ("line", "key"),
    [
        ('qos: "a\\nb"', "qos"),
        ('env: {NCCL_DEBUG: "a\\nb"}', "env.NCCL_DEBUG"),
        ('env: {NCCL_DEBUG: "a\\0b"}', "env.NCCL_DEBUG"),
        ('container: [apptainer, "a\\nb"]', "container[1]"),
    ],
)
def test_a_line_break_or_nul_is_refused_by_the_file_already(tmp_path, line, key):
    problem = the_problem(tmp_path, "comment: mine", line)
    assert (problem.code, problem.key, problem.line) == ("control_character", f"launcher.slurm.{key}", FIRST_LINE + 1)


@pytest.mark.bad_input(27)
def test_what_looks_like_a_secret_is_refused(tmp_path):
    problem = the_problem(tmp_path, "env: {WANDB_API_KEY: 0123456789abcdef0123456789abcdef01234567}")
    assert problem.key == "launcher.slurm.env.WANDB_API_KEY"
    assert "0123456789" not in f"{problem}{problem.value}"


@pytest.mark.parametrize("key", ["time", "nodes", "requeue", "array", "ntasks"])
def test_what_follows_from_the_search_has_no_key_here(tmp_path, key):
    problem = the_problem(tmp_path, f"{key}: 1")
    assert problem.key == f"launcher.slurm.{key}"
    assert problem.code in ("refused_key", "unknown_key")


# -- options of the environment


CARRIED = {"SBATCH_ACCOUNT": "mine", "SBATCH_PARTITION": "main", "SBATCH_EXCLUSIVE": "", "SBATCH_GPUS_PER_NODE": "2"}


def test_options_of_the_environment_are_said_and_written_into_the_search(tmp_path, logged):
    spec = with_environment_options(loaded(tmp_path, "partition: gpu"), CARRIED | {"SBATCH_QOS": "debug"})
    section = spec.launcher.slurm
    assert (section.account, section.partition, section.qos, section.gpus_per_node) == ("mine", "gpu", "debug", 2)
    assert section.exclusive is True
    [line] = logged
    assert "launcher.slurm.account mine (SBATCH_ACCOUNT)" in line
    assert "partition" not in line
    written = json.loads(json.dumps(spec.to_json()))
    assert SearchSpec.from_json(written).launcher.slurm == section


@pytest.mark.parametrize(
    ("variable", "value", "key"),
    [
        ("SBATCH_ACCOUNT", "a b", "account"),
        ("SBATCH_GPUS_PER_NODE", "many", "gpus_per_node"),
        ("SBATCH_GPUS_PER_NODE", "99", "gpus_per_node"),
        ("SBATCH_GPUS_PER_NODE", "v100 x:2", "gres"),
        ("SBATCH_EXCLUSIVE", "1", "exclusive"),
    ],
)
def test_an_option_of_the_environment_that_may_not_stand_in_a_script_is_the_variables_fault(
    tmp_path, variable, value, key
):
    with pytest.raises(InputError) as caught:
        with_environment_options(loaded(tmp_path, "comment: x"), {variable: value})
    [problem] = caught.value.problems
    assert (problem.file, problem.line, problem.key) == (variable, None, f"launcher.slurm.{key}")
    assert problem.fix == f"correct or unset {variable}, or set launcher.slurm.{key} in the search file"


def test_whom_nodes_are_shared_with_and_gpus_of_a_kind_reach_the_script(tmp_path):
    environ = {"SBATCH_EXCLUSIVE": "user", "SBATCH_GPUS_PER_NODE": "v100:2"}
    section = with_environment_options(loaded(tmp_path, "comment: x"), environ).launcher.slurm
    script = render_script(JobRequest("a.t0001.a1", tmp_path, 1, 1, 60.0, ("true",), options=section.job_options()))
    assert "#SBATCH --exclusive=user\n" in script
    assert "#SBATCH --gres=gpu:v100:2\n" in script
    assert "gpus-per-node" not in script


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("line", ["gres: 'gpu:4'", "gpus_per_node: 4"])
def test_a_file_that_asks_for_gpus_is_not_contradicted_by_the_environment(tmp_path, line):
    environ = {"SBATCH_GPUS_PER_NODE": "2", "SBATCH_GRES": "gpu:2"}
    spec = loaded(tmp_path, line)
    assert with_environment_options(spec, environ) == spec


def test_whom_nodes_are_shared_with_may_stand_in_the_file(tmp_path):
    assert loaded(tmp_path, "exclusive: user").launcher.slurm.exclusive == "user"
    for bad in ("mine", "3", "[user]"):
        problem = the_problem(tmp_path, f"exclusive: {bad}")
        assert (problem.key, problem.line) == ("launcher.slurm.exclusive", FIRST_LINE)
        assert "user" in (problem.rule or "")
        assert problem.fix


@pytest.mark.parametrize(("line", "key"), [("exclude: 'n['", "exclude"), ("cpus_per_task: 0", "cpus_per_task")])
def test_what_is_no_list_or_too_small_comes_with_a_fix(tmp_path, line, key):
    problem = the_problem(tmp_path, line)
    assert (problem.key, problem.line) == (f"launcher.slurm.{key}", FIRST_LINE)
    assert problem.rule
    assert problem.fix


def test_a_setup_file_that_is_not_there_is_reported_before_anything_is_launched(tmp_path):
    with pytest.raises(InputError) as caught:
        validate_space(loaded(tmp_path, "comment: x", "setup_file: nosuch.sh"))
    [problem] = caught.value.problems
    assert (problem.code, problem.key, problem.line) == ("setup_file", "launcher.slurm.setup_file", FIRST_LINE + 1)
    assert problem.value == str(tmp_path / "nosuch.sh")
    assert problem.fix
    (tmp_path / "nosuch.sh").write_text("module purge\n")
    assert validate_space(loaded(tmp_path, "comment: x", "setup_file: nosuch.sh")).layouts


@pytest.mark.usefixtures("silent")
def test_other_launchers_carry_nothing(tmp_path):
    spec = loaded(tmp_path, section=SEARCH.replace("kind: slurm\n  slurm:\n", "kind: local\n"))
    assert with_environment_options(spec, CARRIED) == spec


@pytest.mark.processes
@pytest.mark.timeout(180)
def test_name_and_limit_of_a_job_are_its_scripts_whatever_the_shell_says(
    tmp_path, slurm_sandbox: SlurmSandbox, monkeypatch
):
    monkeypatch.setattr("slurm.client.CANCEL_TIMEOUT_S", 120.0)  # COMPLETING was seen to last 40 s
    variables = {"SBATCH_JOB_NAME": "other", "SBATCH_TIMELIMIT": "1", "SBATCH_PARTITION": "nosuch"}
    client = SlurmClient({**_environment(slurm_sandbox), **variables})
    request = JobRequest("carried-abcdef.t0001.a1", tmp_path, 1, 1, 420.0, ("sleep", "300"))
    request.script.write_text(render_script(request))
    submission = client.submit(request)
    assert submission.status is SubmitStatus.ACCEPTED, submission.message
    job = client.describe(str(submission.job_id))
    assert job is not None
    assert job.name == request.name
    shown = slurm_sandbox.ask("scontrol", "show", "job", str(submission.job_id)).stdout
    assert "TimeLimit=00:07:00" in shown
    assert "Partition=main" in shown
    assert client.cancel([job]) == set()


def _environment(sandbox: SlurmSandbox) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], **sandbox.environment}
