from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from search_spaces.layouts.layout import Layout
from tests.trials.train.trial_processes import make_spec
from trials.files.folders import AttemptFolder
from trials.measurement.node_metrics import MAX_BYTES, MAX_NODES, NodeSample, read_samples, sample_line
from trials.ranks import node_sampler
from trials.ranks.environment import RankEnvironment
from trials.ranks.node_sampler import Node, NodeSampler, pause_after, sample_node

SPEC = replace(make_spec(Layout()), num_gpus=80, gpus_per_node=4)


class Enough(Exception):
    """Ends a sampler once a test has seen enough."""


def write_proc(proc: Path, busy: int, idle: int, available_kib: int = 750, received: int = 0, sent: int = 0) -> Path:
    (proc / "net").mkdir(parents=True, exist_ok=True)
    # user nice system idle iowait irq softirq steal guest guest_nice: guests are part of user
    (proc / "stat").write_text(f"cpu  {busy} 0 0 {idle - 5} 5 0 0 0 {busy} 0\ncpu0 1 2 3 4\n")
    (proc / "meminfo").write_text(f"MemTotal: 1000 kB\nMemFree: 10 kB\nMemAvailable: {available_kib} kB\n")
    heading = "Inter-|   Receive |  Transmit\n face |bytes packets | bytes packets\n"
    lines = [f"  {name}: {received} 1 0 0 0 0 0 0 {sent} 1 0 0 0 0 0 0\n" for name in ("lo", "ib0")]
    (proc / "net/dev").write_text(heading + "".join(lines))
    return proc


def test_a_look_says_what_changed_since_the_last_one(tmp_path):
    node = Node(proc=write_proc(tmp_path, busy=100, idle=100, received=10**6))
    write_proc(tmp_path, busy=130, idle=170, received=2 * 10**6, sent=5 * 10**6)
    assert "cpu_utilization_percentage" not in Node(proc=tmp_path).look(), "within one tick"
    assert node.look() == {
        "cpu_utilization_percentage": 30.0,
        "system_memory_usage_megabytes": 0.3,  # 250 KiB
        "system_memory_usage_percentage": 25.0,
        "network_receive_megabytes": 2.0,
        "network_transmit_megabytes": 10.0,
    }
    write_proc(tmp_path, busy=140, idle=170, received=2 * 10**6, sent=5 * 10**6)
    second = node.look()
    assert (second["cpu_utilization_percentage"], second["network_receive_megabytes"]) == (100.0, 2.0)


def sampled(monkeypatch, path: Path, looks: int) -> list[float]:
    """Run a sampler for this many samples; returns the pauses it made."""
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        if len(pauses) == looks:
            raise Enough
        pauses.append(seconds)

    monkeypatch.setattr(node_sampler.time, "sleep", sleep)
    monkeypatch.setattr(node_sampler.time, "monotonic", lambda: sum(pauses))
    NodeSampler(path, has_gpus=False).run()
    return pauses


def test_samples_are_whole_lines_a_few_seconds_apart(monkeypatch, tmp_path):
    path = tmp_path / "system.n0.r0.jsonl"
    assert sampled(monkeypatch, path, looks=3) == [0.05, 1.0, 5.0]
    assert len(read_samples(path)) == 3


def test_a_week_of_samples_of_eight_gpus_can_be_read():
    values = [f"gpu_{gpu}_{name}" for gpu in range(8) for name in ("utilization_percentage", "power_usage_percentage")]
    values += [f"gpu_{gpu}_memory_usage_{unit}" for gpu in range(8) for unit in ("megabytes", "percentage")]
    line = len(sample_line(NodeSample("2026-11-20T12:00:00.000000Z", dict.fromkeys(values, 123456.7)))) + 8 * 40
    age_s, lines = 0.0, 0
    while age_s < 7 * 24 * 3600:
        age_s += pause_after(age_s)
        lines += 1
    assert lines < 1000
    assert lines * line < MAX_BYTES / 2


def test_what_fails_ends_the_sampling_and_nothing_else(monkeypatch, tmp_path):
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    NodeSampler(tmp_path / "no such folder" / "system", has_gpus=False).run()
    NodeSampler(tmp_path / "system", has_gpus=False, proc=tmp_path / "none").run()
    monkeypatch.setattr(threading.Thread, "start", refuse)
    sample_node(SPEC, AttemptFolder(tmp_path), RankEnvironment(0, 80, 0))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("rank", "restart", "expected"),
    [
        (0, 0, ["system.n0.r0.jsonl"]),
        (3, 0, []),
        (4, 2, ["system.n1.r2.jsonl"]),
        (4 * (MAX_NODES - 1), 0, ["system.n15.r0.jsonl"]),
        (4 * MAX_NODES, 0, []),
    ],
)
def test_the_first_rank_of_each_of_the_first_nodes_samples(monkeypatch, tmp_path, rank, restart, expected):
    started: list[str] = []
    monkeypatch.setattr(NodeSampler, "start", lambda self: started.append(self._path.name))
    sample_node(SPEC, AttemptFolder(tmp_path), RankEnvironment(rank, 80, rank % 4, restart))
    assert started == expected
