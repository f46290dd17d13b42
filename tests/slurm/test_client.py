"""Slurm client against stub commands on PATH: their arguments, and bad answers."""

import os
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from slurm.client import SlurmClient
from slurm.interface import SlurmSettings, SlurmUnreachable, Submission, SubmitStatus
from slurm.job_state import JobSnapshot, JobState
from slurm.request import JobOptions, JobRequest
from tests.kit import until

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]

CONFIG = "echo 'ClusterName = big'; echo 'AccountingStorageType = accounting_storage/slurmdbd'"
HANGS = "touch $HERE/hangs"
HANG = f"trap '' TERM INT HUP; sleep 1000 & echo $! > $HERE/child; {HANGS}; while :; do wait; done"
NAME = "gpt-abcdef.t0001.a1"
SUBMITTED = 1795262400.0


class Commands:
    """Stubs of Slurm's commands, each a line of shell with its folder as $HERE, which record their calls."""

    def __init__(self, folder: Path):
        self.folder = folder
        folder.mkdir()

    def write(self, **lines: str) -> None:
        for command, line in lines.items():
            path = self.folder / command
            path.write_text(
                f'#!/bin/bash\nHERE={self.folder}\necho "$*" >> $HERE/{command}.calls\n'
                f"env -0 > $HERE/{command}.environment\npwd > $HERE/{command}.directory\n{line}\n"
            )
            path.chmod(0o755)

    def calls(self, command: str) -> list[str]:
        path = self.folder / f"{command}.calls"
        return path.read_text().splitlines() if path.exists() else []

    def environment(self, command: str) -> dict[str, str]:
        text = (self.folder / f"{command}.environment").read_text()
        return dict(pair.split("=", 1) for pair in text.split("\0") if pair)

    def child(self) -> int:
        """The pid that a command left behind."""
        return int((self.folder / "child").read_text())

    def client(self, **environment: str) -> SlurmClient:
        return SlurmClient({"PATH": f"{self.folder}:/usr/bin:/bin", **environment}, 20.0)


@pytest.fixture
def commands(tmp_path, monkeypatch):
    """Stub commands; a timeout passes once a stub says that it hangs, however slow the machine is."""
    hangs = tmp_path / "bin" / "hangs"

    class Child(subprocess.Popen):
        def communicate(self, given=None, timeout=None):
            while not hangs.exists():
                with suppress(subprocess.TimeoutExpired):
                    return super().communicate(given, 0.05)
                given = None  # it has been sent
            return super().communicate(given, 0.1)

    monkeypatch.setattr("slurm.client.subprocess", SimpleNamespace(**vars(subprocess) | {"Popen": Child}))
    return Commands(tmp_path / "bin")


@pytest.fixture
def slept(monkeypatch) -> list[float]:
    """Seconds that the client waited between queries, without real waiting."""
    seconds: list[float] = []
    quick = SimpleNamespace(**vars(time) | {"sleep": seconds.append, "monotonic": lambda: sum(seconds)})
    monkeypatch.setattr("slurm.client.time", quick)
    return seconds


@pytest.fixture
def request_(tmp_path):
    (tmp_path / "a1").mkdir()
    return JobRequest(NAME, tmp_path / "a1", 1, 1, 60.0, ("true",))


def row(job_id: str, state: str = "RUNNING", name: str = NAME, user: str | None = None) -> str:
    owner = user or SlurmClient({}).user
    return f"{job_id}|{owner}|{state}|None|n1|2026-11-21T12:00:00|2026-11-21T12:00:00|N/A|{name}"


def job(job_id: str, name: str = NAME) -> JobSnapshot:
    return JobSnapshot(job_id, name, SlurmClient({}).user, JobState.RUNNING, "RUNNING")


def has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.mark.security("environment")
def test_a_job_is_submitted_from_its_own_directory_in_an_environment_of_its_own(commands, request_):
    commands.write(sbatch="echo 12; echo 'sbatch: warning: low budget' >&2")
    client = commands.client(SBATCH_PARTITION="other", SLURM_JOB_ID="5", RANK="3", TZ="Asia/Tokyo", MINE="kept")
    submission = client.submit(request_)
    assert (submission.status, submission.job_id) == (SubmitStatus.ACCEPTED, "12")
    assert submission.message == "sbatch: warning: low budget"
    assert commands.calls("sbatch") == ["--parsable ./job.sh"]
    assert (commands.folder / "sbatch.directory").read_text().strip() == str(request_.directory)
    environment = commands.environment("sbatch")
    assert not {"SBATCH_PARTITION", "SLURM_JOB_ID", "RANK"} & set(environment)
    assert (environment["MINE"], environment["TZ"]) == ("kept", "Asia/Tokyo")


def test_what_hangs_ends_at_its_time_limit_and_leaves_no_process(commands, request_):
    commands.write(sbatch=f"echo 'sbatch: sleeping and retrying' >&2; {HANG}")
    submission = commands.client().submit(request_)
    assert (submission.status, submission.job_id) == (SubmitStatus.UNCONFIRMED, None)
    assert "sleeping and retrying" in submission.message
    left = [commands.child()]
    (commands.folder / "hangs").unlink()
    commands.write(squeue=f"echo '{row('12')}'; {HANG}")
    with pytest.raises(SlurmUnreachable, match="did not answer within 20 s"):
        commands.client().jobs()
    left.append(commands.child())
    until(lambda: all(map(has_ended, left)))


@pytest.mark.parametrize(
    ("sbatch", "folder", "status", "words"),
    [
        (b"#!/bin/sh\nkill -9 $$", "a1", SubmitStatus.UNCONFIRMED, ""),
        (None, "a1", SubmitStatus.BUSY, "sbatch is not on PATH"),
        (b"\x7fELF no program", "a1", SubmitStatus.BUSY, ""),
        (b"#!/bin/sh\necho 12", "gone", SubmitStatus.BUSY, ""),
    ],
    ids=["killed", "no commands", "no program", "no folder"],
)
def test_an_sbatch_that_does_not_answer_or_start_ends_no_search(commands, request_, sbatch, folder, status, words):
    """A search that is resumed on the wrong machine, or without the commands' file system, does not end."""
    if sbatch is not None:
        commands.write(sbatch="")
        (commands.folder / "sbatch").write_bytes(sbatch)
    client = SlurmClient({"PATH": str(commands.folder)})
    submission = client.submit(replace(request_, directory=request_.directory.with_name(folder)))
    assert submission.status is status
    assert words in submission.message
    with pytest.raises(SlurmUnreachable, match="squeue is not on PATH"):
        client.jobs()


TESTED = "sbatch: Job 2 to start at 2026-11-21T14:32:48 using 4 processors on nodes n1 in partition short"
STARTS = f"cat > $HERE/script; echo '{TESTED}' >&2"
PARTITIONS = "echo 'PartitionName=main MaxTime=UNLIMITED'; echo 'PartitionName=short MaxTime=00:10:00 MinNodes=0'"


def scontrol(config: str) -> str:
    return f'if [ "$2" = config ]; then {config}; else {PARTITIONS}; fi'


def test_a_refusal_is_slurms_own_words_and_an_odd_one_is_left_to_the_submission(commands, request_):
    commands.write(sbatch="echo 'allocation failure: Invalid account or account/partition combination' >&2; exit 1")
    words = "allocation failure: Invalid account or account/partition combination"
    assert commands.client().test(request_) == Submission(SubmitStatus.REFUSED, message=words)
    commands.write(
        sbatch="echo 'allocation failure: Job violates accounting/QOS policy' >&2; exit 1", scontrol=scontrol("true")
    )
    assert commands.client().test(request_).status is SubmitStatus.BUSY
    commands.write(sbatch="echo 'test-only is not supported by our wrapper' >&2; exit 1")
    assert commands.client().test(request_).status is SubmitStatus.ACCEPTED


def test_a_refusal_for_want_of_nodes_that_are_away_is_a_wait(commands, request_):
    refusal = "allocation failure: Requested node configuration is not available"
    for state, status in (("down*", SubmitStatus.BUSY), ("idle", SubmitStatus.REFUSED)):
        rows = [f"n{number}|{each}|4|4000|(null)|main*|(null)" for number, each in enumerate(("drained", state))]
        lines = "; ".join(f"echo '{row_}'" for row_ in ["CLUSTER: big", *rows, "n9|idle|4|4000|(null)|other"])
        commands.write(sbatch=f"echo '{refusal}' >&2; exit 1", sinfo=lines)
        tested = commands.client().test(request_)
        waits = "n[0-1] of the 2 nodes that could run it: down* or drained"
        assert (tested.status, tested.message) == (status, waits if status is SubmitStatus.BUSY else refusal)


@pytest.mark.parametrize(
    ("minutes", "options", "config", "is_refused"),
    [
        (11, JobOptions(), "true", True),
        (10, JobOptions(), "true", False),
        (11, JobOptions(partition="short,main"), "true", False),
        (11, JobOptions(qos="long"), "true", False),  # it may lift the partition's limit
        (11, JobOptions(), "echo 'EnforcePartLimits = ALL'", False),  # Slurm has looked itself
    ],
)
def test_a_job_that_its_partition_never_starts_is_refused(commands, request_, minutes, options, config, is_refused):
    commands.write(sbatch=STARTS, scontrol=scontrol(config))
    tested = commands.client().test(replace(request_, time_limit_s=minutes * 60.0, options=options))
    assert tested.status is (SubmitStatus.REFUSED if is_refused else SubmitStatus.ACCEPTED)
    assert ("PartitionTimeLimit" in tested.message) is is_refused
    assert ("partition short allows at most 10 minutes" in tested.message) is is_refused


def test_all_jobs_of_the_user_are_one_question_and_no_jobs_are_an_answer(commands):
    commands.write(squeue=f"echo '{row('12')}'; echo '{row('13', 'PENDING')}'")
    client = commands.client(TZ="Asia/Tokyo", SQUEUE_FORMAT="%i", SLURM_CONF="/etc/big.conf")
    assert [(j.job_id, j.state) for j in client.jobs()] == [("12", JobState.RUNNING), ("13", JobState.PENDING)]
    [call] = commands.calls("squeue")
    assert {"--all", "--states=all", f"--user={os.geteuid()}"} <= set(call.split())
    environment = commands.environment("squeue")
    assert (environment["TZ"], environment["SLURM_TIME_FORMAT"]) == ("UTC", "standard")
    assert environment["SLURM_CONF"] == "/etc/big.conf"
    assert "SQUEUE_FORMAT" not in environment
    for line in ("true", "echo", "echo 'CLUSTER: big'"):
        commands.write(squeue=line)
        assert commands.client().jobs() == ()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1", "connect"),
        ("echo 'slurm_load_jobs error: odd' >&2", "odd"),  # exits 0 all the same
        ("echo 'down for maintenance'", "maintenance"),
        ("head -c 100000 /dev/urandom", "other than a list of jobs"),
        (f"echo '{row('12')}'; kill -9 $$", "squeue"),
    ],
)
def test_unreachable_is_not_gone(commands, line, words):
    commands.write(squeue=line)
    with pytest.raises(SlurmUnreachable, match=words):
        commands.client().jobs()


def test_a_process_that_escapes_with_the_pipe_does_not_hold_the_client(commands):
    escape = "echo $$ > $0/child; touch $0/hangs; exec sleep 1000"
    commands.write(squeue=f"setsid bash -c '{escape}' $HERE & exit 0")
    with pytest.raises(SlurmUnreachable):
        commands.client().jobs()
    assert not has_ended(commands.child())
    os.kill(commands.child(), signal.SIGKILL)


def test_an_unknown_job_is_none_and_a_silent_controller_is_not(commands):
    commands.write(scontrol="echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    assert commands.client().describe("12") is None
    assert commands.calls("scontrol") == ["--all --oneliner show job 12"]
    commands.write(scontrol="echo 'slurm_load_jobs error: Socket timed out on send/recv operation' >&2; exit 1")
    with pytest.raises(SlurmUnreachable, match="timed out"):
        commands.client().describe("12")


def test_the_configuration_is_asked_for_until_it_is_there_and_that_of_the_partitions_with_it(commands):
    commands.write(scontrol="exit 1")
    client = commands.client()
    with pytest.raises(SlurmUnreachable):
        client.settings()
    commands.write(scontrol=f"{CONFIG}\necho 'PartitionName=over Default=YES OverTimeLimit=5 State=UP'")
    wanted = SlurmSettings("big", has_accounting=True, default_partition="over", partition_over_times_s={"over": 300.0})
    assert client.settings() == client.settings() == wanted
    assert commands.calls("scontrol")[-2:] == ["show config", "--all --oneliner show partition"]


def sacct_row(job_id: str, name: str = NAME, submitted: str = "2026-11-21T12:00:00") -> str:
    times = f"{submitted}|2026-11-21T12:00:00|2026-11-21T12:00:01"
    return f"{job_id}|me|COMPLETED|0:0|{times}|n1|billing=4,cpu=4,node=1|normal|{name}"


def test_accounting_is_asked_by_name_in_utc_and_for_many_names_in_several_calls(commands):
    rows = (sacct_row("12"), sacct_row("11", submitted="2026-11-21T11:00:00"), sacct_row("13", name="stranger"))
    commands.write(scontrol=CONFIG, sacct=f"cat <<'END'\n{chr(10).join(rows)}\nEND")
    found = commands.client(TZ="Asia/Tokyo").accounted_jobs([NAME], SUBMITTED + 0.7)
    assert found is not None
    assert [j.job_id for j in found] == ["12"]
    [call] = commands.calls("sacct")
    assert {f"--name={NAME}", "--starttime=2026-11-21T12:00:00", "--allocations"} <= set(call.split())
    assert commands.environment("sacct")["TZ"] == "UTC"
    commands.write(scontrol=CONFIG, sacct="true")
    names = [f"gpt-abcdef.t{number:04}.a1" for number in range(450)]
    assert commands.client().accounted_jobs(names, SUBMITTED) == ()
    asked = [call.split("--name=")[1].split()[0].split(",") for call in commands.calls("sacct")[1:]]
    assert [name for names_ in asked for name in names_] == names
    assert len(asked) == 3


@pytest.mark.parametrize(
    ("config", "sacct", "words"),
    [
        ("echo 'AccountingStorageType = (null)'", "exit 1", None),
        (CONFIG, "echo 'Slurm accounting storage is disabled' >&2; exit 1", None),
        (CONFIG, "echo 'sacct: error: Problem talking to the database: Connection refused' >&2; exit 1", "database"),
    ],
)
def test_accounting_that_is_disabled_is_not_there_and_one_that_is_down_is_unreachable(commands, config, sacct, words):
    commands.write(scontrol=config, sacct=sacct)
    if words is None:
        assert commands.client().accounted_jobs([NAME], SUBMITTED) is None
        assert len(commands.calls("sacct")) == (config == CONFIG)
    else:
        with pytest.raises(SlurmUnreachable, match=words):
            commands.client().accounted_jobs([NAME], SUBMITTED)


SQUEUE = "cat $HERE/jobs 2>/dev/null || true"


@pytest.mark.security("cancel")
def test_only_jobs_that_still_have_id_name_and_user_are_cancelled_in_one_call(commands):
    jobs = [row("12"), row("13", name="another"), row("14", user="stranger"), row("15", "COMPLETED"), row("9")]
    commands.write(squeue=SQUEUE, scancel="rm $HERE/jobs")
    (commands.folder / "jobs").write_text("\n".join(jobs))
    left = commands.client().cancel([job(number) for number in ("12", "13", "14", "15", "9", "99")])
    assert left == set()
    assert commands.calls("scancel") == ["9 12"]


@pytest.mark.parametrize(
    ("jobs", "squeue", "calls"), [([], "exit 1", 0), ([job("12")], SQUEUE, 1)], ids=["no jobs", "none of ours"]
)
def test_where_nothing_is_to_be_cancelled_nothing_is(commands, jobs, squeue, calls):
    commands.write(squeue=squeue, scancel="exit 1")
    assert commands.client().cancel(jobs) == set()
    assert (len(commands.calls("squeue")), commands.calls("scancel")) == (calls, [])


def test_a_scancel_that_hangs_is_not_repeated_for_the_other_jobs(commands, monkeypatch):
    monkeypatch.setattr("slurm.client._IDS_A_CALL", 1)
    monkeypatch.setattr("slurm.client.CANCEL_TIMEOUT_S", 0.0)
    rows = "; ".join(f"echo '{row(number)}'" for number in ("12", "13"))
    commands.write(squeue=rows, scancel=f"{HANGS}; exec sleep 1000")
    assert commands.client().cancel([job("12"), job("13")]) == {"12", "13"}
    assert len(commands.calls("scancel")) == 1


def test_whoever_waits_for_the_commands_is_told_before_each_of_them(commands):
    told: list[None] = []
    commands.write(
        squeue=f"echo '{row('12')}'",
        scancel="rm $HERE/squeue; printf '#!/bin/sh\\n' > $HERE/squeue; chmod +x $HERE/squeue",
    )
    path = f"{commands.folder}:/usr/bin:/bin"
    client = SlurmClient({"PATH": path}, 20.0, lambda: told.append(None))
    assert client.cancel([job("12")]) == set()
    assert len(told) == 3, "squeue, scancel, squeue"


@pytest.mark.parametrize("scancel", ["exit 0", "echo 'Access/permission denied' >&2; exit 210", "kill -9 $$"])
def test_jobs_that_do_not_end_are_named_after_six_looks_in_fifteen_seconds(commands, slept, scancel):
    commands.write(squeue=f"{SQUEUE}; echo '{row('13', 'COMPLETING')}'", scancel=scancel)
    (commands.folder / "jobs").write_text(row("12", "COMPLETED") + "\n")
    assert commands.client().cancel([job("12"), job("13")]) == {"13"}
    assert slept == [0.5, 1.0, 2.0, 4.0, 7.5]
    assert len(commands.calls("squeue")) == 6


def test_a_controller_that_falls_silent_leaves_them_named_and_a_silent_one_cancels_nothing(commands, slept):
    commands.write(squeue="test -e $HERE/down && exit 1; " + f"echo '{row('12')}'", scancel="touch $HERE/down; exit 1")
    assert commands.client().cancel([job("12")]) == {"12"}
    assert len(slept) == 1
    with pytest.raises(SlurmUnreachable):
        commands.client().cancel([job("12")])
    assert len(commands.calls("scancel")) == 1
