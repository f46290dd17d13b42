"""Replays with shared jobs on a simulated Slurm: the runs of a session are steps of one job."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.launchers.slurm_pilot.sizing import RemainingWork
from orchestrator.recipe.read import LoadedRecipe, read_recipe
from orchestrator.recipe.write import write_recipe
from orchestrator.replay.replay import ReplayResult, ReplayRules, launcher_section, replay
from orchestrator.replay.runs import ReplayCallbacks
from slurm.job_state import JobState
from tests.orchestrator.recipe.builders import LAYOUT, measured_trial, source_of
from tests.orchestrator.scripted import Script
from tests.orchestrator.search.on_slurm.test_shared_jobs import SharedJobsRig
from trials.files.folders import SearchFolder
from trials.pilot.files import PilotFolder, StepFileKind

RULES = ReplayRules(repeats=3, sessions=3)


@pytest.fixture
def loaded(tmp_path: Path) -> LoadedRecipe:
    (tmp_path / "code").mkdir()
    source = source_of(measured_trial("t0001", LAYOUT, 0.1))
    return read_recipe(write_recipe(tmp_path / "recipe", source, tmp_path / "code"))


def replayed(loaded: LoadedRecipe, rig: SharedJobsRig, callbacks: ReplayCallbacks | None = None) -> ReplayResult:
    work = RemainingWork(RULES.repeats, 1, num_nodes=LAYOUT.num_nodes)
    launcher = rig.new_launcher(lambda: work)
    try:
        folder = SearchFolder(rig.path / "quickstart-replay")
        return replay(loaded, launcher, folder, python="python3", rules=RULES, callbacks=callbacks)
    finally:
        launcher.close()


def test_the_runs_of_a_session_are_steps_of_one_job_and_no_nodes_are_held_between_sessions(loaded, tmp_path):
    rig = SharedJobsRig("jobs", tmp_path, settings={"min_job_age_s": 86400.0})
    rig.script = lambda spec, restart: Script(duration_s=60.0, tokens_per_sec=10.0)  # slower: takes three sessions
    result = replayed(loaded, rig)
    rig.cluster.advance(10.0)
    assert len(result.runs) == 9
    jobs = rig.cluster.jobs()
    assert [job.request.name for job in jobs] == [f"quickstart-replay.p000{number}" for number in (1, 2, 3)]
    steps = [PilotFolder(job.request.directory).step_files() for job in jobs]
    assert [[StepFileKind.ENDED in kinds for kinds in of.values()] for of in steps] == [[True] * 3] * 3
    assert {job.state for job in jobs} == {JobState.COMPLETED}
    assert all(job.ended_at - job.started_at < 3 * 60.0 + 30.0 for job in jobs)


def test_a_replay_that_is_stopped_leaves_no_job(loaded, tmp_path):
    rig = SharedJobsRig("jobs", tmp_path, settings={"min_job_age_s": 86400.0})
    rig.script = lambda spec, restart: Script(duration_s=60.0)
    began = rig.cluster.time
    callbacks = ReplayCallbacks(lambda: rig.cluster.time > began + 30.0)
    with pytest.raises(KeyboardInterrupt):
        replayed(loaded, rig, callbacks)
    rig.cluster.advance(10.0)
    assert [job.state.is_ended for job in rig.cluster.jobs()] == [True]


def test_a_recipe_of_shared_jobs_is_replayed_by_any_launcher(loaded):
    shared = {"kind": "slurm", "slurm": {"shared_jobs": True, "partition": "gpu"}}
    recipe = replace(loaded.recipe, launcher=shared)
    assert launcher_section(recipe, None).shares_jobs
    assert launcher_section(recipe, "slurm").shares_jobs
    local = launcher_section(recipe, "local")
    assert (local.kind, local.slurm.shared_jobs, local.slurm.partition) == ("local", False, "gpu")
