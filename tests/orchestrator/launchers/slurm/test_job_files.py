"""Files of the launcher: an attempt's before its job is submitted, its logs, and what a driver leaves to the next."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.config.schema.setup_file import MAX_SETUP_BYTES, setup_text
from orchestrator.launchers.slurm import handover
from orchestrator.launchers.slurm.handover import HandoverFile, HandoverState
from orchestrator.launchers.slurm.job_files import failure_excerpt, job_request, may_exist, with_launch, write_job_files
from orchestrator.launchers.slurm_pilot.step_status import step_job
from search_spaces.errors import ExternalError, InputError
from search_spaces.layouts.settings import Settings
from slurm.request import Container, JobOptions, Runtime
from slurm.script import render_script
from tests.orchestrator.launchers.attempts import attempt_request
from trials.files.folders import AttemptFolder, read_json, write_json


@pytest.mark.security("setup_file")
def test_what_a_job_sources_is_kept_beside_it_whatever_becomes_of_the_file(tmp_path):
    setup = tmp_path / "my setup.sh"
    setup.write_text("module purge\n")
    job = job_request(attempt_request(tmp_path), JobOptions(setup_file=str(setup)))
    write_job_files(job)
    setup.write_text("exit 1\n")
    kept = job.directory / "setup.sh"
    assert kept.read_text() == "module purge\n"
    assert kept.stat().st_mode & 0o777 == 0o600
    assert ". ./setup.sh" in job.script.read_text().splitlines()
    assert str(setup) not in job.script.read_text()


def test_a_setup_file_that_has_gone_stops_the_launch_and_nothing_is_written(tmp_path):
    job = job_request(attempt_request(tmp_path), JobOptions(setup_file=str(tmp_path / "gone.sh")))
    with pytest.raises(ExternalError, match=r"gone\.sh cannot be read: No such file") as caught:
        write_job_files(job)
    assert caught.value.fix
    assert not job.script.exists()


@pytest.mark.bad_input(38)
@pytest.mark.security("setup_file")
@pytest.mark.parametrize("content", [b"\xff\xfe", b"#" * (MAX_SETUP_BYTES + 1)])
def test_what_is_no_shell_file_is_refused(tmp_path, content):
    path = tmp_path / "setup.sh"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        setup_text(str(path))
    [problem] = caught.value.problems
    assert (problem.key, problem.value) == ("launcher.slurm.setup_file", str(path))
    assert problem.rule
    assert problem.fix


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "setup.sh")
    with pytest.raises(InputError, match="not a regular file"):
        setup_text(str(tmp_path / "setup.sh"))


def test_ranks_in_a_container_see_their_search_and_code_that_lies_elsewhere(tmp_path):
    request = attempt_request(tmp_path)
    search = request.folder.path.parents[2].absolute()
    inside = replace(request, code=str(search / "code"))
    assert job_request(inside, JobOptions()).folders == (str(search),)
    elsewhere = replace(request, code="/opt/code")
    assert job_request(elsewhere, JobOptions()).folders == (str(search), "/opt/code")


def test_the_other_image_of_an_experiment_replaces_that_of_the_search():
    options = JobOptions(container=Container(Runtime.PYXIS, "a.sqsh", mounts=("/data:/data",)))
    other = with_launch(options, Settings(software={"image": "b.sqsh"})).container
    assert other == Container(Runtime.PYXIS, "b.sqsh", mounts=("/data:/data",))
    assert with_launch(options, Settings()).container == options.container


SETTINGS = "-env.NCCL_ALGO env.OMP_NUM_THREADS=2 launch.cpu_bind=cores"


def test_a_trials_settings_are_on_its_launch_line(tmp_path):
    request = attempt_request(tmp_path)
    request = replace(request, spec=replace(request.spec, layout=replace(request.spec.layout, settings=SETTINGS)))
    container = Container(runtime=Runtime.APPTAINER, image="x.sif")
    job = job_request(request, JobOptions(env={"NCCL_ALGO": "Tree"}, container=container))
    line = next(line for line in render_script(job).splitlines() if " srun" in f" {line}")
    assert "--cpu-bind=cores" in line
    assert f"x.sif env -u NCCL_ALGO OMP_NUM_THREADS=2 {request.python} -m trials.train" in line
    step = step_job(request, JobOptions(), ("n1",), tmp_path / "number.sh")
    assert step.prefix == job.prefix
    assert "--cpu-bind=cores" in step.options.launch.srun


@pytest.mark.parametrize(("words", "log", "told"), [("a", "b", "a\nb"), ("a", "", "a"), ("", "b", "b"), ("", "", "")])
def test_an_excerpt_has_no_line_for_what_nobody_said(tmp_path, words, log, told):
    assert failure_excerpt(AttemptFolder(tmp_path), words, log) == told


def test_a_file_may_exist_where_its_file_system_does_not_say(tmp_path):
    (tmp_path / "there").touch()
    assert [may_exist(tmp_path / name) for name in ("there", "gone", "x" * 10_000)] == [True, False, True]


KEY = "rig-aaaaaa.t0001.a1"
WAITS = {"submitted_at": 900.0, "unconfirmed_since": 980.0}
KNOWN = HandoverState(**WAITS, cancelled=True, is_described=True, restart=1, started_at=5.0, duplicates={"7": 3.0})


def left(path: Path) -> Path:
    """Write the file of a driver that ended at 1000 s after the boot, and 5000 s by the clock that people set."""
    HandoverFile(path, lambda: 1000.0, lambda: 5000.0).save({KEY: KNOWN})
    return path


def found(path: Path, monotonic: float = 1040.0, utc: float = 5040.0) -> dict[str, HandoverState]:
    return HandoverFile(path, lambda: monotonic, lambda: utc).load()


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "launcher.json"


def test_waits_go_on_where_they_stood_whatever_becomes_of_the_clock_that_people_set_and_are_taken_once(path):
    """A killed driver leaves no file, so that no later driver uses outdated state."""
    assert found(left(path), utc=9999.0) == {KEY: KNOWN}
    assert not path.exists()
    assert found(path) == {}


@pytest.mark.parametrize(("utc", "waits"), [(5030.0, (-127.0, -47.0)), (10.0, (-97.0, -17.0))], ids=["on", "set back"])
def test_on_another_machine_only_the_clock_that_people_set_tells(path, monkeypatch, utc, waits):
    left(path)
    monkeypatch.setattr(handover, "boot_id", lambda: "another")
    [known] = found(path, monotonic=3.0, utc=utc).values()
    assert (known.submitted_at, known.unconfirmed_since, known.absent_since) == (*waits, None)


@pytest.mark.parametrize(
    "change",
    [
        {"schema": "parlay.launcher/2"},
        {"at": {"boot": "x"}},
        {"attempts": {KEY: {"unconfirmed_since": "long"}}},
        {"attempts": [KEY]},
        None,
    ],
)
def test_a_file_that_no_driver_wrote_is_nothing_remembered(path, change):
    if change is None:
        left(path).write_text('{"schema": "parlay.la')
    else:
        write_json(path, (read_json(left(path)) or {}) | change)
    assert found(path) == {}


def test_a_folder_that_cannot_be_written_ends_no_driver(tmp_path):
    assert found(left(tmp_path / "missing" / "launcher.json")) == {}
