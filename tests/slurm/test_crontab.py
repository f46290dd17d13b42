"""Scripts and lines for cron, as a shell and cron read them."""

from __future__ import annotations

import subprocess
from pathlib import Path

from slurm.crontab import crontab_line, render_repeated, scrontab_lines
from slurm.request import JobOptions


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
