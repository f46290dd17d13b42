"""Containers in a search file: reading, saving, refusals, and the ranks' commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.config.loader import load_search_file
from orchestrator.config.spec import SearchSpec
from orchestrator.launchers.factory import job_options
from orchestrator.lifecycle.create import validate_space
from orchestrator.lifecycle.drive import attempt_factory_of
from search_spaces.errors import InputError, Problem
from slurm.request import Container, Runtime
from trials.files.folders import SearchFolder

SEARCH = """\
name: small
model: gpt2-tiny
cluster: {{accelerator: {accelerator}, gpus_per_node: 2, num_nodes: 1}}
global_batch_size: 16
space:
  tensor_parallel: [1, 2]
work_dir: {folder}/runs
launcher:
  kind: slurm
  slurm:
    container: """
LINE = SEARCH.count("\n") + 1


def loaded(folder: Path, container: str, accelerator: str = "cpu", **changes: str) -> SearchSpec:
    text = SEARCH.format(accelerator=accelerator, folder=folder) + container + "\n"
    for old, new in changes.items():
        text = text.replace(old, new)
    path = folder / "search.yaml"
    path.write_text(text)
    return load_search_file(path)


def problem_of(folder: Path, container: str) -> Problem:
    with pytest.raises(InputError) as caught:
        validate_space(loaded(folder, container))
    [problem] = caught.value.problems
    assert problem.line == LINE
    assert problem.rule
    assert problem.fix
    return problem


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("[]", None),
        ("null", None),
        ("[apptainer, exec, x.sif]", Container(command=("apptainer", "exec", "x.sif"))),
        (
            "{runtime: pyxis, image: 'nvcr.io#nvidia/pytorch:24.01'}",
            Container(Runtime.PYXIS, "nvcr.io#nvidia/pytorch:24.01"),
        ),
        (
            "{runtime: shifter, image: 'docker:nersc/pytorch:1', mounts: ['/tmp:/data:ro']}",
            Container(Runtime.SHIFTER, "docker:nersc/pytorch:1", ("/tmp:/data:ro",)),
        ),
    ],
)
def test_a_container_is_read_and_written_down(tmp_path, given, read):
    spec = loaded(tmp_path, given)
    assert spec.launcher.slurm.job_options().container == read
    again = SearchSpec.from_json(json.loads(json.dumps(spec.to_json())))
    assert again.launcher == spec.launcher


def test_an_image_that_is_a_path_starts_from_the_files_folder(tmp_path):
    for image in ("torch.sif", "./torch.sif"):
        container = loaded(tmp_path, f"{{runtime: apptainer, image: {image}}}").launcher.slurm.job_options().container
        assert container is not None
        assert container.image == str(tmp_path / "torch.sif")


@pytest.mark.parametrize(("accelerator", "gpus"), [("h100-80gb", "nv"), ("mi250x-gcd-64gb", "rocm"), ("cpu", None)])
def test_apptainer_brings_in_the_accelerators_driver(tmp_path, accelerator, gpus):
    spec = loaded(tmp_path, "{runtime: apptainer, image: 'docker://torch'}", accelerator)
    container = job_options(spec.launcher, spec.cluster).container
    assert container is not None
    assert container.gpus == gpus


def test_ranks_in_an_image_take_its_python_unless_they_are_told_of_another(tmp_path):
    folder = SearchFolder(tmp_path / "small-abcdef")
    image = "{runtime: pyxis, image: torch}"
    assert attempt_factory_of(folder, loaded(tmp_path, image)).python == "python3"
    told = loaded(tmp_path, image, **{"global_batch_size: 16": "global_batch_size: 16\ntrainer: {python: /opt/py}"})
    assert attempt_factory_of(folder, told).python == "/opt/py"
    assert attempt_factory_of(folder, loaded(tmp_path, "[apptainer, exec, x.sif]")).python != "python3"


@pytest.mark.bad_input(30)
@pytest.mark.parametrize(
    ("container", "key"),
    [
        ("{image: x}", "container.runtime"),
        ("{}", "container.runtime"),
        ("{runtime: docker, image: x}", "container.runtime"),
        ("{runtime: pyxis}", "container.image"),
        ("{runtime: pyxis, image: x, mount: ['/a:/b']}", "container.mount"),
        ("{runtime: pyxis, image: x, mounts: ['/a:/b,/etc:/etc']}", "container.mounts[0]"),
        ("{runtime: pyxis, image: x, mounts: ['/a:/b:/c']}", "container.mounts[0]"),
        ("{runtime: apptainer, image: x, gpus: cuda}", "container.gpus"),
        ("image.sif", "container"),
        ("[1]", "container.command"),
    ],
)
def test_what_is_no_container_is_refused(tmp_path, container, key):
    assert problem_of(tmp_path, container).key == f"launcher.slurm.{key}"


@pytest.mark.bad_input(30)
@pytest.mark.parametrize(
    ("container", "key", "value"),
    [
        ("{{runtime: apptainer, image: {folder}/none.sif}}", "image", "{folder}/none.sif"),
        ("{{runtime: apptainer, image: none.sif}}", "image", "{folder}/none.sif"),
        ("{{runtime: pyxis, image: x, mounts: ['/tmp:/tmp', '{folder}/none:/data']}}", "mounts[1]", "{folder}/none"),
    ],
)
def test_an_image_or_mount_that_is_not_there_is_refused_before_anything_is_launched(tmp_path, container, key, value):
    problem = problem_of(tmp_path, container.format(folder=tmp_path))
    assert (problem.code, problem.key) == ("container", f"launcher.slurm.container.{key}")
    assert problem.value == value.format(folder=tmp_path)


def test_an_image_that_is_there_or_that_only_the_runtime_knows_is_taken(tmp_path):
    (tmp_path / "torch.sif").touch()
    assert validate_space(loaded(tmp_path, "{runtime: apptainer, image: torch.sif, mounts: ['/tmp:/data']}")).layouts
    assert validate_space(loaded(tmp_path, "{runtime: pyxis, image: 'nvcr.io#nvidia/pytorch:24.01'}")).layouts


@pytest.mark.bad_input(30, 32)
@pytest.mark.parametrize("name", ["a:b", "a,b", "a b"])
def test_a_work_dir_that_would_end_a_mount_is_refused(tmp_path, name):
    changes = {f"work_dir: {tmp_path}/runs": f'work_dir: "{tmp_path}/{name}"'}
    with pytest.raises(InputError) as caught:
        validate_space(loaded(tmp_path, "{runtime: pyxis, image: x}", **changes))
    [problem] = caught.value.problems
    assert (problem.code, problem.key) == ("work_dir", "work_dir")
    assert validate_space(loaded(tmp_path, "[enroot, x]", **changes)).layouts
