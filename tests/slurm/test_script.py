"""Batch scripts, line by line. To store an intended change: PARLAY_UPDATE_STORED=1 pytest tests/slurm/test_script.py"""

from __future__ import annotations

import os
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm.driver_script import (
    DriverJob,
    crontab_line,
    driver_options,
    render_driver_script,
    render_repeated,
    scrontab_lines,
)
from slurm.environment import RANK_NAMES
from slurm.request import Container, JobOptions, JobRequest, Placement
from slurm.script import last_run, render_script, restarts_in
from tests.slurm.test_option_checks import FULL

PLAIN = JobRequest(
    name="gpt-abcdef.t0001.a1",
    directory=Path("/shared/gpt-abcdef/trials/t0001/a1"),
    num_nodes=2,
    tasks_per_node=4,
    time_limit_s=600.0,
    argv=("/opt/python3", "-m", "trials.train", "/shared/gpt-abcdef/trials/t0001/a1/spec.json"),
    environment={"PYTHONPATH": "/shared/gpt-abcdef/code", "PYTHONSAFEPATH": "1"},
)
EVERYTHING = replace(
    PLAIN, num_nodes=64, tasks_per_node=8, time_limit_s=90_061.0, options=FULL, exclude=("n8", "n9", "n[10-11]")
)


@pytest.mark.security("directive_values")
def test_the_script_is_the_stored_one_with_its_directives_before_the_first_command():
    path, found = Path(__file__).with_name("everything.sh"), render_script(EVERYTHING)
    if os.environ.get("PARLAY_UPDATE_STORED"):
        path.write_text(found)
    assert found.split("\n") == path.read_text().split("\n"), __doc__
    lines = found.split("\n")
    last = max(number for number, line in enumerate(lines) if line.startswith("#SBATCH"))
    assert all(line.startswith("#") for line in lines[: last + 1])
    own = FULL.directives
    assert directives(EVERYTHING)[-len(own) :] == list(own), "sbatch believes the last"


def directives(request: JobRequest) -> list[str]:
    lines = render_script(request).split("\n")
    return [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH ")]


@pytest.mark.parametrize(
    ("seconds", "clock"),
    [(1.0, "00:01:00"), (60.0, "00:01:00"), (60.5, "00:02:00"), (3600.0, "01:00:00"), (172_800.0, "48:00:00")],
)
def test_the_time_limit_is_rounded_up_to_slurms_minutes(seconds, clock):
    assert f"--time={clock}" in directives(replace(PLAIN, time_limit_s=seconds))


@pytest.mark.parametrize(
    ("segment", "num_nodes", "expected"),
    [
        (0, 16, []),
        (16, 32, ["--segment=16"]),
        (18, 32, ["--segment=16"]),
        (16, 24, ["--segment=12"]),
        (16, 19, []),
        (16, 1, []),
    ],
)
def test_a_job_asks_for_the_largest_equal_parts_that_are_segments(segment, num_nodes, expected):
    request = replace(PLAIN, num_nodes=num_nodes, options=JobOptions(segment=segment))
    assert [line for line in directives(request) if line.startswith("--segment")] == expected


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"options": JobOptions(exclude=("n[1-3]", "x")), "exclude": ("n4", "n2")}, ["--exclude=x,n[1-4]"]),
        ({"options": JobOptions(gres="gpu:a100:4")}, ["--gres=gpu:a100:4"]),
        ({"options": JobOptions(dependency="afterok:1"), "is_first": True}, ["--dependency=afterok:1"]),
        ({"options": JobOptions(dependency="afterok:1")}, []),
    ],
)
def test_each_option_is_a_directive_of_its_own(changes, expected):
    plain = directives(PLAIN)
    asked = ("--nodes=2", "--ntasks-per-node=4", "--time=00:10:00", "--distribution=block", "--no-requeue")
    assert plain == [f"--job-name={PLAIN.name}", *asked, "--output=job.log", "--open-mode=append"]
    assert [line for line in directives(replace(PLAIN, **changes)) if line not in plain] == expected


SRUN = """#!/bin/bash
printf '%s\\n' "$@" > argv
env -0 > environment
exit 7
"""


def run_script(tmp_path: Path, request: JobRequest, **environment: str) -> tuple[int, list[str], dict[str, str], str]:
    """Return exit code, srun's arguments, its environment and the script's output; bash stops at unset names."""
    commands = tmp_path / "bin"
    commands.mkdir(exist_ok=True)
    (commands / "srun").write_text(SRUN)
    (commands / "srun").chmod(0o755)
    request = replace(request, directory=tmp_path)
    request.script.write_text(render_script(request))
    done = subprocess.run(
        ["/bin/bash", "-u", "job.sh"],
        cwd=tmp_path,
        env={"PATH": f"{commands}:/usr/bin:/bin", **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=20,
    )
    if not (tmp_path / "argv").exists():
        return done.returncode, [], {}, done.stdout
    seen = dict(pair.split("=", 1) for pair in (tmp_path / "environment").read_text().split("\0") if pair)
    return done.returncode, (tmp_path / "argv").read_text().split("\n")[:-1], seen, done.stdout


def test_the_scripts_exit_code_is_sruns_and_the_ranks_run_what_was_asked(tmp_path):
    container = ("apptainer", "exec", "image with blank.sif")
    code, argv, _, output = run_script(
        tmp_path, replace(PLAIN, options=JobOptions(container=Container(command=container)))
    )
    assert (code, output) == (7, "")
    ours = ("--export=ALL", "--kill-on-bad-exit=1", "--nodes=2", "--ntasks=8", "--output=rank-%5t.log")
    assert argv == [*ours, "--open-mode=append", *container, *PLAIN.argv]


def test_variables_arrive_as_they_were_given_and_what_told_other_ranks_their_place_does_not(tmp_path):
    nasty = "a 'b' \"c\" $HOME `id` \\ ; # ! *"
    options = JobOptions(env={"NASTY": nasty, "PYTHONPATH": "/users"}, cpus_per_task=7)
    _, _, seen, _ = run_script(tmp_path, replace(PLAIN, options=options))
    assert seen["NASTY"] == nasty
    assert seen["PYTHONPATH"] == PLAIN.environment["PYTHONPATH"]
    assert seen["SRUN_CPUS_PER_TASK"] == "7"
    request = replace(PLAIN, environment={"MASTER_PORT": "20000"})
    _, _, seen, _ = run_script(tmp_path, request, **dict.fromkeys(RANK_NAMES, "3"))
    assert {name: seen[name] for name in RANK_NAMES if name in seen} == {"MASTER_PORT": "20000"}


def test_modules_then_the_setup_file_then_the_variables(tmp_path):
    (tmp_path / "setup.sh").write_text('export ORDER="$ORDER setup"; export RANK=5; export KEPT=setup; false\n')
    module = '() {  export ORDER="$ORDER $1 $2"; }'
    options = JobOptions(modules=("gcc/12", "cuda"), setup_file="/home/me/my setup.sh", env={"KEPT": "env"})
    environment = {"ORDER": "begin", "BASH_FUNC_module%%": module}
    code, _, seen, output = run_script(tmp_path, replace(PLAIN, options=options), **environment)
    assert (code, output) == (7, "")
    assert seen["ORDER"] == "begin load gcc/12 load cuda setup"
    assert seen["KEPT"] == "env"
    assert "RANK" not in seen


def test_a_module_that_cannot_be_loaded_ends_the_job_with_its_words(tmp_path):
    module = '() {  echo "no module $2"; return 3; }'
    request = replace(PLAIN, options=JobOptions(modules=("nosuch",)))
    code, argv, _, output = run_script(tmp_path, request, **{"BASH_FUNC_module%%": module})
    assert (code, argv, output) == (3, [], "no module nosuch\n")


arguments = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
names = st.from_regex(r"V_[A-Z]{1,4}", fullmatch=True)


@pytest.mark.slow
@given(st.lists(arguments, min_size=1, max_size=4), st.dictionaries(names, arguments, max_size=3))
def test_no_argument_and_no_value_ends_its_own_word(argv, environment):
    script = render_script(replace(PLAIN, argv=tuple(argv), environment=environment))
    words = shlex.split(script.split("\n\n", 2)[2])
    exported = [f"{name}={value}" for name, value in environment.items()]
    assert words[-len(argv) :] == argv
    assert words[: 2 * len(exported)] == [word for pair in exported for word in ("export", pair)]


def test_a_run_after_a_requeue_begins_with_its_number_in_every_log(tmp_path):
    (tmp_path / "job.log").write_text("srun: error: n1: task 0: Terminated\n")
    (tmp_path / "rank-00000.log").write_text("Traceback\n")
    script = render_script(PLAIN).partition("\n\nexport ")[0]
    for restart in ({}, {"SLURM_RESTART_COUNT": "1"}, {"SLURM_RESTART_COUNT": "2"}):
        subprocess.run(["bash", "-c", script], cwd=tmp_path, env=restart, check=True)
    for log in ("job.log", "rank-00000.log"):
        text = (tmp_path / log).read_text()
        assert text.endswith("--- restart 1\n--- restart 2\n")
        assert (last_run(text), last_run(text + "srun: error\n")) == ("", "srun: error\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job.log", "rank-00000.log"]
    of_one_run = "srun: error\n--- restart\nx --- restart 1\n"
    assert (last_run(of_one_run), restarts_in(of_one_run)) == (of_one_run, 0)
    assert restarts_in(f"--- restart {'9' * 5000}\n") == 0


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (JobOptions(repeat_placement=Placement.ONE_SWITCH), ["--switches=1"]),
        (JobOptions(repeat_placement=Placement.ONE_SWITCH, switch_wait_s=1800.0), ["--switches=1@30"]),
        (JobOptions(repeat_placement=Placement.ONE_BLOCK, segment=2), ["--segment=4"]),
        (JobOptions(repeat_placement=Placement.CONTIGUOUS, segment=2), ["--contiguous", "--segment=2"]),
        (JobOptions(switch_wait_s=1800.0), []),
    ],
)
def test_only_a_repeat_on_several_nodes_has_the_placement(options, expected):
    def placed(**changes) -> list[str]:
        words = ("--switches", "--segment", "--contiguous")
        return [line for line in directives(replace(PLAIN, options=options, **changes)) if line.startswith(words)]

    assert placed(num_nodes=4, is_repeat=True) == expected
    assert "--switches=1" not in placed(num_nodes=4)
    assert placed(num_nodes=1, is_repeat=True) == []


JOB = DriverJob(
    name="tiny-abc234.driver",
    directory=Path("/data/runs/tiny-abc234"),
    num_nodes=1,
    tasks_per_node=1,
    time_limit_s=8 * 3600.0,
    argv=("/opt/my venv/bin/python", "-m", "orchestrator.cli.main", "resume", "/data/runs/tiny-abc234"),
    options=driver_options(FULL),
)

SCRIPT = """\
#!/bin/bash
#SBATCH --job-name=tiny-abc234.driver
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --time=08:00:00
#SBATCH --signal=B:USR1@120
#SBATCH --no-requeue
#SBATCH --output=driver.log
#SBATCH --open-mode=append
#SBATCH --account=project_465.x@y
#SBATCH --partition=boost_usr_prod,dev-g
#SBATCH --qos=boost_qos_dbg
#SBATCH --reservation=maint-1
#SBATCH --comment=tuning,gpt=7b

exec '/opt/my venv/bin/python' -m orchestrator.cli.main resume /data/runs/tiny-abc234
"""


def test_the_first_link_asks_for_one_task_and_the_next_waits_a_minute_for_the_end_of_the_one_before():
    assert render_driver_script(JOB) == SCRIPT
    assert (JOB.script, JOB.log) == (JOB.directory / "driver.sh", JOB.directory / "driver.log")
    lines = render_driver_script(replace(JOB, after="17")).splitlines()
    before = SCRIPT.splitlines()
    assert [line for line in lines if line not in before] == [
        "#SBATCH --dependency=afterany:17",
        "#SBATCH --begin=now+60",
    ]


def test_the_script_runs_with_its_variables_and_its_words_go_to_the_log(tmp_path):
    log, script = tmp_path / "it's a log", tmp_path / "cron.sh"
    argv = ("/bin/sh", "-c", 'echo "$1 $ABOUT"; echo oops >&2', "x", "two words")
    script.write_text(render_repeated(argv, log, {"ABOUT": "a $HOME; b"}))
    for _ in range(2):
        subprocess.run(["/bin/sh", script], env={}, cwd="/", check=True, timeout=10)
    assert log.read_text() == "two words a $HOME; b\noops\n" * 2


def test_scrontab_gets_the_account_and_one_task_and_cron_no_per_cent_for_the_end_of_the_line():
    options = JobOptions(account="physics", partition="serial")
    *directives, line = scrontab_lines(Path("/data/cron.sh"), "gpt-abc234.cron", options)
    assert line == "*/5 * * * * /bin/sh /data/cron.sh"
    assert {"#SCRON --account=physics", "#SCRON --partition=serial", "#SCRON --ntasks=1"} <= set(directives)
    assert all(directive.startswith("#SCRON --") for directive in directives)
    assert crontab_line(Path("/data/50% off/cron.sh")) == r"* * * * * /bin/sh '/data/50\% off/cron.sh'"
