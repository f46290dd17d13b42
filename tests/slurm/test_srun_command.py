"""Command of each rank: containers, folders on the node, GPUs; and how bash reads it."""

from __future__ import annotations

import os
import shlex
import subprocess
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from slurm.option_checks import SRUN_KEYS, option_problems
from slurm.request import Container, JobOptions, JobRequest, Launch, Runtime
from slurm.script import render_script
from slurm.srun_command import Filled, command, joined, launch_environment, quoted, rank_command, srun_options
from tests.slurm.test_script import PLAIN

SEARCH, ATTEMPT = "/shared/gpt-abcdef", "/shared/gpt-abcdef/trials/t0001/a1"
REQUEST = replace(PLAIN, environment={"PYTHONPATH": f"{SEARCH}/code"}, folders=(SEARCH,))


def with_container(**changes) -> JobRequest:
    options = JobOptions(env={"NCCL_DEBUG": "INFO"}, container=Container(**changes))
    assert option_problems(options) == ()
    return replace(REQUEST, options=options)


def test_pyxis_is_told_by_options_of_srun_and_keeps_our_variables():
    request = with_container(
        runtime=Runtime.PYXIS, image="nvcr.io#nvidia/pytorch:24.01", mounts=("/data:/data:ro",), writable=True
    )
    assert srun_options(request) == [
        "--container-image=nvcr.io#nvidia/pytorch:24.01",
        f"--container-mounts=/data:/data:ro,{SEARCH}:{SEARCH}",
        f"--container-workdir={ATTEMPT}",
        "--container-writable",
        "--container-env=NCCL_DEBUG,PYTHONPATH",
    ]
    assert rank_command(request) == list(REQUEST.argv)


def test_apptainer_stands_before_the_program_and_the_image_sets_no_variable_of_ours():
    request = with_container(
        runtime=Runtime.APPTAINER, image="/images/torch.sif", mounts=("/data:/data:ro",), gpus="rocm", writable=True
    )
    assert srun_options(request) == []
    assert rank_command(request) == [
        *("apptainer", "exec", "--rocm", "--writable-tmpfs", "--bind=/data:/data:ro", f"--bind={SEARCH}:{SEARCH}"),
        *(f"--pwd={ATTEMPT}", "/images/torch.sif", *REQUEST.argv),
    ]
    assert launch_environment(request) == {
        "APPTAINERENV_NCCL_DEBUG": "INFO",
        "APPTAINERENV_PYTHONPATH": f"{SEARCH}/code",
    }
    request = with_container(runtime=Runtime.APPTAINER, image="x", mounts=(f"/elsewhere:{SEARCH}",))
    assert [word for word in rank_command(request) if "bind" in word] == [f"--bind=/elsewhere:{SEARCH}"]


def test_shifter_stands_before_the_program_and_is_told_our_variables():
    request = with_container(runtime=Runtime.SHIFTER, image="nersc/pytorch:ngc-23.07-v0", mounts=("/a:/b:ro",))
    assert rank_command(request) == [
        *("shifter", "--image=nersc/pytorch:ngc-23.07-v0", "--volume=/a:/b:ro", f"--workdir={ATTEMPT}"),
        *("--env=NCCL_DEBUG=INFO", f"--env=PYTHONPATH={SEARCH}/code", *REQUEST.argv),
    ]


plain = st.text("abc0._-", min_size=1, max_size=6).filter(lambda word: word[0] not in "-." and ".." not in word)
strange = st.text("a :,;$'\"`\\\n#=", min_size=1, max_size=3)
words = st.one_of(plain, plain, plain, st.builds(str.__add__, plain, strange))
launches = st.builds(
    Launch,
    srun=st.lists(st.builds("--{}={}".format, st.sampled_from(SRUN_KEYS), words), max_size=2).map(tuple),
    node_folders=st.dictionaries(st.sampled_from(["TMPDIR", "A"]), words.map(lambda word: f"/{word}"), max_size=1),
    address=st.none() | words.map(lambda word: f"{{host}}{word}"),
)
containers = st.builds(
    Container,
    runtime=st.sampled_from(Runtime),
    image=words,
    mounts=st.lists(st.builds("/{}:/{}".format, words, words), max_size=1).map(tuple),
)


@pytest.mark.slow
@pytest.mark.security("no_shell")
@given(launches, st.none() | containers)
def test_whatever_passes_the_allow_list_stays_one_word_of_the_line(launch, container):
    options = JobOptions(launch=launch, container=container)
    assume(option_problems(options) == ())
    request = replace(REQUEST, options=options)
    line = render_script(request).rstrip("\n").rpartition("\n")[2]
    words = shlex.split(line)
    assert words[-len(REQUEST.argv) :] == list(REQUEST.argv)
    assert [*srun_options(request), *rank_command(request)] == words[words.index("--open-mode=append") + 1 :]
    if container is not None and container.runtime is Runtime.PYXIS:
        [mounts] = [word for word in words if word.startswith("--container-mounts=")]
        assert len(mounts.split(",")) == len(container.mounts) + 1
        assert all(len(mount.split(":")) == 2 for mount in mounts.partition("=")[2].split(","))


def test_a_word_with_a_variable_is_filled_in_by_the_script_and_all_others_are_not():
    words = [Filled("$here/spec.json"), "$here", joined("--bind=", Filled("$here"), ":/x")]
    assert command(words) == '"$here/spec.json" \'$here\' "--bind=$here:/x"'
    assert quoted(joined("a", " b")) == "'a b'"


# -- what a rank's own shell makes of it


def run_rank(launch: Launch) -> subprocess.CompletedProcess[str]:
    """Run the rank command with `env` as the program, as srun would on a node."""
    request = replace(REQUEST, argv=("/usr/bin/env",), options=JobOptions(launch=launch))
    ranks = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0", "SLURM_LOCALID": "3"}
    return subprocess.run(rank_command(request), env=ranks, capture_output=True, text=True, timeout=20, check=False)


def test_each_rank_sees_its_own_gpu_and_folders_of_its_job(tmp_path):
    launch = Launch(
        visible_devices="ROCR_VISIBLE_DEVICES",
        node_folders={"TMPDIR": str(tmp_path), "MIOPEN_USER_DB_PATH": str(tmp_path)},
    )
    for _ in range(2):  # every rank of the node does so, and none is the first for certain
        done = run_rank(launch)
        assert done.returncode == 0, done.stderr
        seen = dict(line.split("=", 1) for line in done.stdout.splitlines())
        assert seen["ROCR_VISIBLE_DEVICES"] == "3"
        assert seen["TMPDIR"] == f"{tmp_path}/parlay-77.0/TMPDIR"
        assert seen["MIOPEN_USER_DB_PATH"] == f"{tmp_path}/parlay-77.0/MIOPEN_USER_DB_PATH"
    assert (tmp_path / "parlay-77.0").stat().st_mode & 0o777 == 0o700
    assert sorted(path.name for path in (tmp_path / "parlay-77.0").iterdir()) == ["MIOPEN_USER_DB_PATH", "TMPDIR"]


def test_a_folder_that_somebody_laid_there_before_ends_the_rank(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "parlay-77.0").symlink_to(tmp_path / "elsewhere")
    done = run_rank(Launch(node_folders={"TMPDIR": str(tmp_path)}))
    assert (done.returncode, done.stdout) == (1, "")
    assert "belongs to another user" in done.stderr
    assert list((tmp_path / "elsewhere").iterdir()) == []
