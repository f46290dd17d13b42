"""Lines 23 to 30 and 48: Slurm options, as refused by the command."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orchestrator.launchers import factory
from orchestrator.schema.launcher import LauncherSection
from slurm.interface import SlurmSettings
from slurm.option_checks import option_problems
from slurm.request import Container, JobOptions, Launch, Runtime
from tests.bad_inputs.cli import Cli, Refusal


def refused(cli: Cli, **section: Any) -> Refusal:
    """Refusal of this section launcher.slurm."""
    changes = [f"launcher.slurm.{key}={json.dumps(value)}" for key, value in section.items()]
    return cli.refused_run("launcher.kind=slurm", *changes)


@pytest.mark.bad_input(23, 24, 25, 26, 28, 29, 30)
@pytest.mark.security("no_shell", "directive_values")
def test_what_slurm_must_not_be_told_is_refused_in_the_words_of_its_rule(cli: Cli):
    """One case; tests/slurm/test_option_checks.py has the whole table."""
    given = {"account": "a b", "nodelist": ["n[1-"], "modules": ["gcc", "$(id)"], "env": {"2ND": "x", "RANK": "0"}}
    given |= {"directives": ["--nice=5", "--job-name=x", "--uid=0"]}
    container, launch = {"runtime": "pyxis", "image": "/x.sif; id"}, {"srun": ["--ntasks=2"]}
    options = JobOptions(
        **{key: tuple(value) if isinstance(value, list) else value for key, value in given.items()},
        container=Container(Runtime.PYXIS, "/x.sif; id"),
        launch=Launch(("--ntasks=2",)),
    )
    expected = [(f"launcher.slurm.{p.key}", p.value, p.rule, p.fix) for p in option_problems(options)]
    said = refused(cli, **given, container=container, launch=launch)
    assert [(p["key"], p["value"], p["rule"], p["fix"]) for p in said.problems] == expected
    assert len(expected) == 9


@pytest.mark.bad_input(23)
@pytest.mark.security("directive_values")
def test_a_value_of_two_lines_is_refused_and_shown_in_one(cli: Cli):
    problem = refused(cli, account="a\n#SBATCH --uid=0").about("launcher.slurm.account")
    assert problem["value"] == ascii("a\n#SBATCH --uid=0")
    assert "\n" not in problem["message"]


@pytest.mark.bad_input(30)
def test_a_container_whose_image_is_not_there_is_refused(cli: Cli):
    (cli.folder / "data").mkdir()
    container = {"runtime": "apptainer", "image": f"{cli.folder}/gone.sif", "mounts": [f"{cli.folder}/data:/data"]}
    assert refused(cli, container=container).about("launcher.slurm.container.image")["value"].endswith("/gone.sif")


@pytest.mark.bad_input(38)
@pytest.mark.security("setup_file")
def test_a_setup_file_that_no_shell_could_source_is_refused(cli: Cli):
    assert "is not a file" in refused(cli, setup_file="setup.sh").about("launcher.slurm.setup_file")["message"]
    (cli.folder / "setup.sh").write_bytes(b"module load x\r\n")
    assert "Windows line ends" in refused(cli, setup_file="setup.sh").about("launcher.slurm.setup_file")["message"]


@pytest.mark.bad_input(48)
def test_a_poll_interval_that_is_none_is_refused(cli: Cli):
    for value in ("0", "0s", "-1", "-1s", "soon"):
        assert refused(cli, poll_interval=value).about("launcher.slurm.poll_interval")["value"] == value


@pytest.mark.bad_input(48)
def test_a_poll_interval_below_the_floor_is_raised_and_that_is_said():
    section = LauncherSection.model_validate({"kind": "slurm", "slurm": {"poll_interval": "0.2s"}})
    floor_s, remark = factory.poll_interval_s(section.slurm.poll_interval_s, SlurmSettings())
    assert (floor_s, remark) == (1.0, "launcher.slurm.poll_interval 0.2 s is raised to 1 s")
