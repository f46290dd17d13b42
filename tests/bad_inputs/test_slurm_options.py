"""Lines 23 to 30 and 48: what a user may tell Slurm of a job, as the command says it."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.launchers import factory
from orchestrator.launchers.schema import LauncherSection
from slurm.interface import SlurmSettings
from slurm.options import option_problems
from slurm.request import JobOptions
from slurm.shell import exports
from tests.bad_inputs.desk import Desk, Refusal

SMUGGLED = ("a b", "a;b", "a#b", "$HOME", "`id`", "a'b", 'a"b', "-Aroot", "a>b", "a\\b", "")


def refused(desk: Desk, **section: Any) -> Refusal:
    """What is said to this section launcher.slurm."""
    changes = [f"launcher.slurm.{key}={json.dumps(value)}" for key, value in section.items()]
    return desk.refused_run("launcher.kind=slurm", *changes)


@pytest.mark.bad_input(23)
@pytest.mark.security("directive_values")
@pytest.mark.parametrize("key", ["account", "partition", "qos", "reservation", "constraint", "gres", "mem", "network"])
@pytest.mark.parametrize("value", SMUGGLED)
def test_a_value_that_could_end_or_hide_a_directive_is_refused(desk: Desk, key, value):
    assert refused(desk, **{key: value}).about(f"launcher.slurm.{key}")["value"] == value


@pytest.mark.bad_input(23)
@pytest.mark.security("directive_values")
@pytest.mark.parametrize("key", ["account", "comment", "licenses"])
def test_a_value_of_two_lines_is_refused_and_shown_in_one(desk: Desk, key):
    problem = refused(desk, **{key: "a\n#SBATCH --uid=0"}).about(f"launcher.slurm.{key}")
    assert "\n" not in problem["message"] + problem["value"]


@pytest.mark.bad_input(24)
@pytest.mark.parametrize("key", ["job-name", "output", "array", "parsable", "wrap", "export", "exp", "partition"])
def test_a_directive_that_sets_what_parlay_sets_is_refused(desk: Desk, key):
    problem = refused(desk, directives=["--nice=5", f"--{key}=1"]).about("launcher.slurm.directives[1]")
    assert problem["value"] == f"--{key}=1"


@pytest.mark.bad_input(25)
@pytest.mark.parametrize("directive", ["nice=5", "-N 4", "-N4", "--uid=0", "--gid=0", "--get-user-env=L", "--nice=$0"])
def test_a_directive_that_is_none_or_runs_as_somebody_else_is_refused(desk: Desk, directive):
    assert refused(desk, directives=[directive]).about("launcher.slurm.directives[0]")["value"] == directive


@pytest.mark.bad_input(26)
@pytest.mark.parametrize("name", ["2ND", "A-B", "A=B", "\u00c4", "SLURM_NTASKS", "SBATCH_QOS", "MASTER_ADDR", "RANK"])
def test_a_variable_that_no_shell_takes_or_that_is_not_the_users_is_refused(desk: Desk, name):
    desk.write("{kind: local}", f"{{kind: slurm, slurm: {{env: {{{json.dumps(name)}: x}}}}}}")
    assert desk.refused_run().about(f"launcher.slurm.env.{name}")["value"] in (name, "x")


@pytest.mark.bad_input(26)
@pytest.mark.parametrize("value", ["a\nb", "a\0b"])
def test_a_variable_of_several_lines_is_refused(desk: Desk, value):
    desk.write("{kind: local}", f"{{kind: slurm, slurm: {{env: {{A: {json.dumps(value)}}}}}}}")
    assert desk.refused_run().about("launcher.slurm.env.A")["value"] == ascii(value)


@pytest.mark.bad_input(28)
@pytest.mark.parametrize("module", ["a b", "a; rm -rf x", "$(id)", "../x", "-x"])
def test_a_module_with_shell_characters_is_refused(desk: Desk, module):
    assert refused(desk, modules=["cuda/12.1", module]).about("launcher.slurm.modules[1]")["value"] == module


@pytest.mark.bad_input(29)
@pytest.mark.parametrize("key", ["nodelist", "exclude"])
@pytest.mark.parametrize("nodes", ["n[1-", "n 1", "n[0-999999]", "n[1-99999999999999]", "-n1", "$(hostname)"])
def test_what_is_no_list_of_nodes_is_refused(desk: Desk, key, nodes):
    assert refused(desk, **{key: [nodes]}).about(f"launcher.slurm.{key}[0]")["value"] == nodes


@pytest.mark.bad_input(30)
@pytest.mark.parametrize(
    ("container", "key"),
    [
        (["apptainer exec; id"], "[0]"),
        ({"runtime": "apptainer"}, ".image"),
        ({"runtime": "apptainer", "image": "/x.sif; id"}, ".image"),
        ({"runtime": "apptainer", "image": "/x.sif", "mounts": ["/a:/b:ro,/etc:/etc"]}, ".mounts[0]"),
        ({"runtime": "pyxis", "image": "/x.sqsh", "mounts": ["/a"]}, ".mounts[0]"),
        ({"runtime": "pyxis", "image": "/x.sqsh", "mounts": ["/a:/b:/c"]}, ".mounts[0]"),
        ({"runtime": "pyxis", "image": "/x.sqsh", "mounts": ["/a/../etc:/b"]}, ".mounts[0]"),
    ],
)
def test_a_container_that_smuggles_is_refused(desk: Desk, container, key):
    refused(desk, container=container).about(f"launcher.slurm.container{key}")


@pytest.mark.bad_input(26)
@pytest.mark.security("no_shell")
@pytest.mark.parametrize(
    ("launch", "key"),
    [
        ({"srun": ["--cpu-bind=cores; id"]}, "srun[0]"),
        ({"srun": ["--job-name=x"]}, "srun[0]"),
        ({"visible_devices": "X=$(id)"}, "visible_devices"),
        ({"node_folders": {"TMPDIR": "/tmp;id"}}, "node_folders.TMPDIR"),
        ({"node_folders": {"TMPDIR": "/tmp/$X"}}, "node_folders.TMPDIR"),
        ({"node_folders": {"A;B": "/tmp"}}, "node_folders.A;B"),
        ({"address": "{fqdn};id"}, "address"),
    ],
)
def test_a_line_of_srun_that_smuggles_is_refused(desk: Desk, launch, key):
    refused(desk, launch=launch).about(f"launcher.slurm.launch.{key}")


@pytest.mark.bad_input(30)
def test_a_container_whose_image_is_not_there_is_refused(desk: Desk):
    (desk.folder / "data").mkdir()
    container = {"runtime": "apptainer", "image": f"{desk.folder}/gone.sif", "mounts": [f"{desk.folder}/data:/data"]}
    assert refused(desk, container=container).about("launcher.slurm.container.image")["value"].endswith("/gone.sif")


@pytest.mark.bad_input(38)
@pytest.mark.security("setup_file")
@pytest.mark.parametrize(("content", "words"), [(None, "is not a file"), (b"module load x\r\n", "Windows line ends")])
def test_a_setup_file_that_no_shell_could_source_is_refused(desk: Desk, content, words):
    if content is not None:
        (desk.folder / "setup.sh").write_bytes(content)
    assert words in refused(desk, setup_file="setup.sh").about("launcher.slurm.setup_file")["message"]


@pytest.mark.bad_input(48)
@pytest.mark.parametrize("value", ["0", "0s", "-1", "-1s", "soon"])
def test_a_poll_interval_that_is_none_is_refused(desk: Desk, value):
    assert refused(desk, poll_interval=value).about("launcher.slurm.poll_interval")["value"] == value


@pytest.mark.bad_input(48)
def test_a_poll_interval_below_the_floor_is_raised_and_that_is_said():
    section = LauncherSection.model_validate({"kind": "slurm", "slurm": {"poll_interval": "0.2s"}})
    floor_s, remark = factory.poll_interval_s(section.slurm.poll_interval_s, SlurmSettings())
    assert (floor_s, remark) == (1.0, "launcher.slurm.poll_interval 0.2 s is raised to 1 s")


@pytest.mark.bad_input(23)
@pytest.mark.security("directive_values")
@settings(deadline=None)
@given(st.sampled_from(["account", "partition", "qos", "constraint", "gres", "mem", "comment", "signal"]), st.text())
def test_whatever_passes_is_one_word_that_no_shell_reads(key, value):
    if not option_problems(JobOptions(**{key: value})):
        assert value.isascii()
        assert value.isprintable()
        assert not set(value) & set(" \t\"'`$;#\\<>\n")
        assert value[0] != "-"


@pytest.mark.bad_input(26)
@pytest.mark.security("no_shell")
@settings(deadline=None)
@given(st.text().filter(lambda text: "\n" not in text and "\0" not in text))
def test_a_variable_arrives_in_a_script_as_it_was_given_whatever_it_holds(value):
    assert not option_problems(JobOptions(env={"A": value}))
    [line] = exports({"A": value})
    assert shlex.split(line) == ["export", f"A={value}"]
