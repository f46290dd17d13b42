"""Files of steps and of nodes: written, read again, and damaged."""

from __future__ import annotations

import json

import pytest

from trials.files.folders import json_line, read_lines
from trials.measurement.node_metrics import MAX_BYTES, NodeSample
from trials.measurement.step_log import MetricsWriter, StepPhase, StepRecord

RECORD = StepRecord(1, StepPhase.WARMUP, "2026-11-20T12:00:00.000000Z", 0.5, 0.4, 5.5, 1.25, 16, host_memory_gib=0.3)


TIME = RECORD.time
SAMPLE = NodeSample(1.7e9, {"cpu_utilization_percentage": 41.5, "gpu_15_power_usage_watts": 650.2})


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metrics.r0.jsonl"


@pytest.mark.parametrize(
    "written",
    [
        [RECORD, StepRecord(2, StepPhase.MEASURED, TIME, 0.4, 0.4, 5.0, 1.0, 16, 1.5, 2.0, 0.3)],
        [SAMPLE, NodeSample(1.7e9)],
    ],
)
def test_what_is_written_is_read_again_at_once_without_a_line_still_being_written(path, written):
    kind, writer = type(written[0]), MetricsWriter(path)
    assert read_lines(kind, path.with_name("none")) == []
    for number, one in enumerate(written, 1):
        writer.write(one)
        assert read_lines(kind, path) == written[:number]
    writer.close()
    with path.open("ab") as stream:
        stream.write(json_line(written[0])[:20])
    assert read_lines(kind, path) == written


@pytest.mark.parametrize(
    ("kind", "line", "words"),
    [
        (StepRecord, RECORD.to_json() | {"energy_j": 4.0}, "is not one of"),
        (NodeSample, {"time": TIME, "values": {"gpu_0_fan_percentage": 1.0}}, "fan_percentage.*not a node's metric"),
        (NodeSample, {"time": TIME, "values": {"gpu_100_utilization_percentage": 1.0}}, "not a node's metric"),
        (NodeSample, {"time": TIME, "values": {"cpu_utilization_percentage": float("nan")}}, "not a number"),
    ],
)
def test_a_whole_line_of_another_form_is_an_error_that_names_the_file(path, kind, line, words):
    path.write_text(json.dumps(line) + "\n")
    with pytest.raises(ValueError, match=rf"metrics\.r0\.jsonl: .*{words}"):
        read_lines(kind, path)


def test_what_is_no_number_is_no_measurement(path):
    broken = StepRecord(1, StepPhase.WARMUP, TIME, 0.5, 0.4, float("nan"), 1.0, 16)
    with pytest.raises(ValueError, match="not JSON compliant"):
        MetricsWriter(path).write(broken)


def test_a_file_without_an_end_and_a_link_are_not_read(tmp_path, path):
    (tmp_path / "elsewhere").write_bytes(json_line(SAMPLE))
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="not a regular file"):
        read_lines(NodeSample, path, MAX_BYTES)
    path.unlink()
    with path.open("wb") as stream:
        stream.truncate(MAX_BYTES + 1)
    with pytest.raises(ValueError, match="more than"):
        read_lines(NodeSample, path, MAX_BYTES)
