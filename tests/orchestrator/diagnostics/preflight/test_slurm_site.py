"""Checks of a new search against its Slurm cluster, before anything is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.config.spec import SearchSpec
from orchestrator.diagnostics.preflight.slurm_site import require_site, slurm_unreachable_error
from orchestrator.launchers.slurm_pilot.sizing import min_pilot_s
from orchestrator.planning.candidates import candidates_of, require_pilot_room
from search_spaces.errors import ExternalError, InputError, Problem
from slurm.interface import SlurmUnreachable, Submission, SubmitStatus
from slurm.partitions import PartitionSnapshot
from slurm.request import JobRequest
from slurm.sandbox.sandbox import SlurmSandbox
from tests import kit
from tests.fake_slurm.client import FakeSlurm
from tests.orchestrator.cli.parlay import Answer, parlay_here
from tests.orchestrator.slurm_searches import ids_of_jobs
from tests.rig import four_nodes

SEARCH = {
    "cluster": {"accelerator": "cpu", "gpus_per_node": 4, "num_nodes": 4},
    "global_batch_size": 64,
    "space": {"num_nodes": [1, 2, 4]},
    "measure": {"time_limit": "10m"},
    "launcher": {"kind": "slurm", "slurm": {"partition": "main"}},
}


@pytest.fixture
def slurm() -> FakeSlurm:
    return FakeSlurm(four_nodes())


@pytest.fixture
def asked(slurm, monkeypatch) -> list[JobRequest]:
    """The jobs that Slurm is asked about."""
    test, requests = slurm.test, []

    def noted(request: JobRequest) -> Submission:
        requests.append(request)
        return test(request)

    monkeypatch.setattr(slurm, "test", noted)
    return requests


def loaded(folder: Path, *overrides: str) -> SearchSpec:
    return kit.loaded(folder, kit.MINIMAL, *overrides, **SEARCH)


def refused(slurm: FakeSlurm, spec: SearchSpec) -> tuple[Problem, ...]:
    with pytest.raises(InputError) as caught:
        require_site(spec, candidates_of(spec), slurm)
    return caught.value.problems


@pytest.mark.usefixtures("silent")
def test_a_search_that_the_cluster_can_run_is_asked_for_twice_and_submits_nothing(tmp_path, slurm, asked):
    spec = loaded(tmp_path, "launcher.slurm.cpus_per_task=1", "launcher.slurm.comment=mine")
    require_site(spec, candidates_of(spec), slurm)
    assert [(request.num_nodes, request.tasks_per_node) for request in asked] == [(1, 4), (4, 4)]
    assert {request.time_limit_min for request in asked} == {11}  # with the launcher's grace, in whole minutes
    assert {(r.options.partition, r.options.cpus_per_task, r.options.comment) for r in asked} == {("main", 1, "mine")}
    assert {request.options.gpus_per_node for request in asked} == {None}, "ranks on CPUs"
    assert slurm.cluster.jobs() == []
    assert list(tmp_path.iterdir()) == [tmp_path / "search.yaml"]


@pytest.mark.bad_input(26)
def test_a_variable_that_decides_what_every_rank_runs_is_said(tmp_path, slurm, logged):
    spec = loaded(tmp_path, "launcher.slurm.env={LD_PRELOAD: /secret.so}")
    require_site(spec, candidates_of(spec), slurm)
    [words] = logged
    assert words.startswith("launcher.slurm.env.LD_PRELOAD replaces what the modules and the setup file have set")
    assert words.endswith("extend it in setup_file instead, if the rest of it is still needed")


@pytest.mark.usefixtures("silent")
def test_of_pilots_the_shortest_that_a_trial_can_run_in_is_asked_for(tmp_path, slurm, asked):
    spec = loaded(tmp_path, "launcher.kind=slurm_pilot", "search.parallel_trials=1")
    require_site(spec, candidates_of(spec), slurm)
    assert [(job.num_nodes, job.tasks_per_node, job.time_limit_s) for job in asked] == [(4, 4, min_pilot_s(630.0))]
    too_large = loaded(tmp_path, "launcher.kind=slurm_pilot", "search.parallel_trials=2")
    assert [problem.code for problem in refused(slurm, too_large)] == ["submission_rejected"]


@pytest.mark.usefixtures("silent")
def test_on_a_partition_of_half_an_hour_there_are_pilots_for_short_trials_and_others_are_refused_with_the_numbers(
    tmp_path, slurm
):
    slurm.partition_limits["main"] = PartitionSnapshot("main", is_default=True, max_time_s=1800.0, num_nodes=4)
    pilot = ("launcher.kind=slurm_pilot", "search.parallel_trials=1")
    short = loaded(tmp_path, *pilot, "measure.time_limit=23m")
    require_site(short, candidates_of(short), slurm)
    [problem] = refused(slurm, loaded(tmp_path, *pilot, "measure.time_limit=24m"))
    assert (problem.key, problem.value) == ("measure.time_limit", 1440.0)
    assert "for 31 minutes: PartitionTimeLimit" in problem.message
    assert "the shortest pilot takes measure.time_limit 1440 s + 30, 300 until its agent serves" in (problem.rule or "")
    assert "or launcher.kind slurm" in (problem.fix or "")


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("kind", ["slurm", "slurm_pilot"])
def test_a_placement_of_repeats_that_the_cluster_refuses_is_said_before_anything_runs(
    tmp_path, slurm, monkeypatch, kind
):
    """At the first repeat it would end a search that has paid for all its trials."""
    unknown = Submission(SubmitStatus.REFUSED, message="sbatch: unrecognized option '--segment=4'")
    test, asked = slurm.test, []

    def without_blocks(request: JobRequest) -> Submission:
        asked.append(request)
        return unknown if request.is_repeat else test(request)

    monkeypatch.setattr(slurm, "test", without_blocks)
    of_kind = (f"launcher.kind={kind}", "search.parallel_trials=1")
    [problem] = refused(slurm, loaded(tmp_path, *of_kind, "launcher.slurm.repeat_placement=one_block"))
    assert (problem.key, problem.value) == ("launcher.slurm.repeat_placement", "one_block")
    assert problem.message.startswith("Slurm refuses a repeat's job of 4 nodes x 4 ranks")
    assert {request.num_nodes for request in asked if request.is_repeat} == {4}, "one node lies anywhere"
    anywhere = loaded(tmp_path, *of_kind)
    require_site(anywhere, candidates_of(anywhere), slurm)


def test_a_pilot_has_the_nodes_of_the_largest_layout(tmp_path):
    spec = loaded(tmp_path, "launcher.kind=slurm_pilot", "launcher.slurm.pilot_nodes=3")
    with pytest.raises(InputError) as caught:
        require_pilot_room(spec, candidates_of(spec))
    [problem] = caught.value.problems
    assert (problem.key, problem.value, problem.code) == ("launcher.slurm.pilot_nodes", 3, "pilot_nodes")
    enough = loaded(tmp_path, "launcher.kind=slurm_pilot", "launcher.slurm.pilot_nodes=4")
    require_pilot_room(enough, candidates_of(enough))


@pytest.mark.bad_input(23)
def test_a_partition_that_is_not_there_is_reported_with_slurms_words_and_its_line(tmp_path, slurm):
    problems = refused(slurm, loaded(tmp_path, "launcher.slurm.partition=nosuch"))
    assert {(p.code, p.key, p.value, p.file) for p in problems} == {
        ("submission_rejected", "launcher.slurm.partition", "nosuch", "--set")
    }
    assert "Invalid partition name specified" in problems[0].message
    assert all(p.rule and p.fix for p in problems)
    slurm.cluster.partitions = ("gpu",)
    assert [(p.value, p.line) for p in refused(slurm, loaded(tmp_path))] == [("main", 21)] * 2


@pytest.mark.bad_input(20)
@pytest.mark.parametrize(
    ("limits", "key", "words"),
    [
        ({"max_time_s": 600.0}, "measure.time_limit", "PartitionTimeLimit"),
        ({"max_nodes": 0}, "constraints.max_nodes", "PartitionNodeLimit"),
    ],
)
def test_a_job_beyond_its_partition_is_refused_also_where_slurm_takes_it_and_lets_it_wait(
    tmp_path, slurm, limits, key, words
):
    assert not slurm.settings().enforces_limits
    slurm.partition_limits["main"] = PartitionSnapshot("main", is_default=True, **limits)
    problems = refused(slurm, loaded(tmp_path))
    assert {problem.key for problem in problems} == {key}
    assert words in problems[0].message


@pytest.mark.bad_input(20)
@pytest.mark.parametrize(
    ("words", "key", "line"),
    [
        ("Requested time limit is invalid (missing or exceeds some limit)", "measure.time_limit", 17),
        ("QOSMaxWallDurationPerJobLimit\nJob violates accounting/QOS policy", "measure.time_limit", 17),
        ("Invalid account or account/partition combination specified", "launcher.slurm.account", 20),
        ("User's group not permitted to use this partition", "launcher.slurm.partition", 21),
        ("Invalid feature specification", "launcher.slurm.constraint", 20),
        ("Invalid node name specified", "launcher.slurm", 20),
        ("job_submit/lua: only on Tuesdays\nUnspecified error", "launcher.slurm", 20),
    ],
)
def test_slurms_words_name_the_key_they_are_about(tmp_path, slurm, words, key, line):
    slurm.submissions_refused(f"allocation failure: {words}")
    problem = refused(slurm, loaded(tmp_path))[0]
    assert (problem.key, problem.line) == (key, line)
    assert words in problem.message
    assert problem.fix


@pytest.mark.usefixtures("silent")
def test_a_limit_of_the_queue_is_no_refusal(tmp_path, slurm):
    slurm.submissions_busy()
    spec = loaded(tmp_path)
    require_site(spec, candidates_of(spec), slurm)


@pytest.mark.usefixtures("silent")
def test_no_controller_is_the_outsides_refusal_with_what_to_do(tmp_path, slurm, monkeypatch):
    spec = loaded(tmp_path)
    slurm.cluster.controller_down(3600.0)
    monkeypatch.setenv("SLURM_CONF", "/etc/big.conf")
    with pytest.raises(
        ExternalError, match=r"Slurm is not available: Unable to contact slurm controller.*big\.conf"
    ) as caught:
        require_site(spec, candidates_of(spec), slurm)
    assert "scontrol ping" in (caught.value.fix or "")


def test_a_slurm_that_finds_no_configuration_is_told_about_slurm_conf():
    fatal = "sbatch: fatal: Could not establish a configuration source"
    assert "set SLURM_CONF" in (slurm_unreachable_error(SlurmUnreachable(fatal)).fix or "")


def test_nodes_that_are_away_are_waited_for_and_said(tmp_path, slurm, logged):
    """A job that has to wait is accepted, as by sbatch."""
    for name in ("n1", "n2"):
        slurm.cluster.drain_node(name)
    spec = loaded(tmp_path)
    require_site(spec, candidates_of(spec), slurm)
    [note] = logged
    assert "a job of 4 nodes x 4 ranks for 11 minutes would have to wait: " in note
    assert "n[1-2] of the 4 nodes that could run it: drained" in note
    slurm.cluster.drain_node("n3")
    slurm.cluster.drain_node("n4")
    require_site(spec, candidates_of(spec), slurm)
    assert "a job of 1 node x 4 ranks" in logged[1]
    problems = refused(slurm, loaded(tmp_path, "launcher.slurm.cpus_per_task=2"))
    assert {p.code for p in problems} == {"submission_rejected"}, "of a job that no node could run"


@pytest.mark.usefixtures("silent")
def test_other_launchers_ask_no_slurm(tmp_path, slurm):
    slurm.cluster.controller_down(3600.0)
    for kind in ("local", "ray"):
        spec = loaded(tmp_path, f"launcher.kind={kind}")
        require_site(spec, candidates_of(spec), slurm)


# -- the command, and a real Slurm


def run(folder: Path, sandbox: SlurmSandbox, *words: str, **variables: str) -> Answer:
    """Run one command against the sandbox, with these environment variables."""
    return parlay_here(*words, cwd=folder, variables=sandbox.environment | variables)


@pytest.mark.processes
@pytest.mark.timeout(120)
@pytest.mark.parametrize("verb", [("run",), ("submit",), ("run", "--dry-run")])
def test_what_a_real_slurm_refuses_is_bad_input_and_leaves_nothing(tmp_path, slurm_sandbox, verb):
    kit.search_file(tmp_path, **SEARCH)
    before = ids_of_jobs(slurm_sandbox)
    answer = run(tmp_path, slurm_sandbox, *verb, "search.yaml", "--set", "launcher.slurm.partition=nosuch", "--json")
    error = answer.json["error"]
    assert (answer.code, error["code"], error["key"], error["value"], error["file"]) == (
        2,
        "submission_rejected",
        "launcher.slurm.partition",
        "nosuch",
        "--set",
    )
    assert "Invalid partition name specified" in error["message"]
    assert [path.name for path in tmp_path.iterdir()] == ["search.yaml"]
    assert ids_of_jobs(slurm_sandbox) <= before  # of jobs that ended before Slurm forgets some meanwhile


@pytest.mark.processes
@pytest.mark.timeout(120)
@pytest.mark.parametrize("verb", [("run",), ("submit",), ("run", "--dry-run")])
def test_without_slurm_a_new_search_is_exit_code_6_and_leaves_nothing(tmp_path, monkeypatch, verb):
    kit.search_file(tmp_path, **SEARCH)
    monkeypatch.setenv("PATH", str(tmp_path))
    answer = parlay_here(*verb, "search.yaml", "--json", cwd=tmp_path)
    assert answer.code == 6
    assert "Slurm's commands are not installed on this machine" in answer.json["error"]["message"]
    assert "parlay slurm-sandbox start" in answer.json["error"]["fix"]
    assert [path.name for path in tmp_path.iterdir()] == ["search.yaml"]


@pytest.mark.processes
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("variable", "message"),
    [
        ({"SBATCH_PARTITION": "nosuch"}, "Invalid partition name specified"),
        ({"SBATCH_PARTITION": "no such"}, "is 'no such'"),
    ],
)
def test_an_option_carried_from_the_environment_is_checked_like_one_of_the_file(
    tmp_path, slurm_sandbox, variable, message
):
    kit.search_file(tmp_path, **SEARCH | {"launcher": {"kind": "slurm", "slurm": {"comment": "mine"}}})
    answer = run(tmp_path, slurm_sandbox, "run", "search.yaml", "--dry-run", "--json", **variable)
    error = answer.json["error"]
    assert answer.code == 2
    assert message in error["message"]
    assert error["key"] == "launcher.slurm" or error["file"] == "SBATCH_PARTITION"
    assert f"({next(iter(variable))})" in answer.err or error["file"] == "SBATCH_PARTITION"
