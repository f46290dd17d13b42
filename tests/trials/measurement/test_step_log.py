"""Files of steps and of nodes: written, read again, and damaged."""

from __future__ import annotations

import json

import pytest

from trials.files.folders import json_line, read_lines
from trials.measurement.node_metrics import MAX_BYTES, NodeSample
from trials.measurement.step_log import MetricsWriter, StepPhase, StepRecord

RECORD = StepRecord(1, StepPhase.WARMUP, "2026-11-20T12:00:00.000000Z", 0.5, 0.4, 5.5, 1.25, 16, host_memory_gib=0.3)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metrics.r0.jsonl"


def test_what_is_written_is_read_again_at_once_without_a_line_still_being_written(path):
    assert read_lines(StepRecord, path) == []
    writer = MetricsWriter(path)
    writer.write(RECORD)
    assert read_lines(StepRecord, path) == [RECORD]
    second = StepRecord(2, StepPhase.MEASURED, RECORD.time, 0.4, 0.4, 5.0, 1.0, 16, 1.5, 2.0, 0.3)
    writer.write(second)
    writer.close()
    with path.open("a") as stream:
        stream.write('{"step": 2, "phase": "meas')
    assert read_lines(StepRecord, path) == [RECORD, second]


def test_an_unknown_key_and_what_is_no_number_are_no_measurement(path):
    path.write_text(json.dumps(RECORD.to_json() | {"energy_j": 4.0}) + "\n")
    with pytest.raises(ValueError, match="is not one of"):
        read_lines(StepRecord, path)
    broken = StepRecord(1, StepPhase.WARMUP, RECORD.time, 0.5, 0.4, float("nan"), 1.0, 16)
    with pytest.raises(ValueError, match="not JSON compliant"):
        MetricsWriter(path).write(broken)


TIME = "2026-11-20T12:00:00.000000Z"
SAMPLE = NodeSample(TIME, {"cpu_utilization_percentage": 41.5, "gpu_15_power_usage_watts": 650.2})


def test_what_is_written_is_read_again_without_a_line_still_being_written(path):
    assert read_lines(NodeSample, path, MAX_BYTES) == []
    path.write_bytes(json_line(SAMPLE) + json_line(NodeSample(TIME)) + json_line(SAMPLE)[:20])
    assert read_lines(NodeSample, path, MAX_BYTES) == [SAMPLE, NodeSample(TIME)]


@pytest.mark.parametrize("name", ["gpu_0_fan_percentage", "gpu_100_utilization_percentage"])
def test_a_name_that_is_none_of_ours_is_an_error(path, name):
    path.write_text(json.dumps({"time": TIME, "values": {name: 1.0}}) + "\n")
    with pytest.raises(ValueError, match=f"{name}.*not a node's metric"):
        read_lines(NodeSample, path, MAX_BYTES)


def test_a_whole_line_that_is_no_sample_is_an_error_that_names_the_file(path):
    path.write_text(f'{{"time": "{TIME}", "values": {{"cpu_utilization_percentage": NaN}}}}\n')
    with pytest.raises(ValueError, match=r"metrics\.r0\.jsonl"):
        read_lines(NodeSample, path, MAX_BYTES)


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
