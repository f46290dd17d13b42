"""Batch script of the driver's job."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from slurm.driver_script import DriverJob, driver_options, render_driver_script
from slurm.request import Container, JobOptions

TRIALS = JobOptions(
    account="hpc-42",
    partition="batch,long",
    qos="normal",
    reservation="night",
    comment="gpt",
    constraint="a100",
    gpus_per_node=4,
    gres="gpu:4",
    cpus_per_task=8,
    mem="0",
    exclusive=True,
    nodelist=("n[1-4]",),
    licenses="scratch:1",
    signal="USR2@30",
    dependency="afterok:12345",
    modules=("cuda",),
    env={"A": "1"},
    setup_file="/opt/setup.sh",
    container=Container(command=("apptainer", "exec", "x.sif")),
    directives=("--mail-type=END",),
)
JOB = DriverJob(
    name="tiny-abc234.driver",
    directory=Path("/data/runs/tiny-abc234"),
    num_nodes=1,
    tasks_per_node=1,
    time_limit_s=8 * 3600.0,
    argv=("/opt/my venv/bin/python", "-m", "orchestrator.cli.main", "resume", "/data/runs/tiny-abc234"),
    options=driver_options(TRIALS),
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
#SBATCH --account=hpc-42
#SBATCH --partition=batch,long
#SBATCH --qos=normal
#SBATCH --reservation=night
#SBATCH --comment=gpt

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
