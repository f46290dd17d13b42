from __future__ import annotations

import pytest

from trials.ranks.kernel_oom import count_oom_kills

OF_THE_MACHINE = {"proc/vmstat": "pgfault 12\noom_kill 7\n"}
OF_GROUPS = {
    "first": {
        "proc/self/cgroup": "9:name=systemd:/\n5:cpu,memory:/job_7\n",
        "sys/fs/cgroup/memory/job_7/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
    },
    "second": {
        "proc/self/cgroup": "0::/job_7\n",
        "sys/fs/cgroup/job_7/memory.events": "low 0\noom 4\noom_kill 3\n",
    },
}


@pytest.mark.parametrize(
    ("files", "kills"),
    [
        *((OF_THE_MACHINE | files, 3) for files in OF_GROUPS.values()),
        (OF_THE_MACHINE | {"proc/self/cgroup": "0::/gone\n"}, 7),
        (OF_THE_MACHINE, 7),
        ({}, 0),
    ],
)
def test_kills_are_counted_in_our_control_group_of_either_version_else_on_the_machine(tmp_path, files, kills):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert count_oom_kills(tmp_path / "proc", tmp_path / "sys/fs/cgroup") == kills
