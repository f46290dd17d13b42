from __future__ import annotations

import json

import pytest

from trials.measurement.step_log import MetricsWriter, StepPhase, StepRecord, read_metrics

RECORD = StepRecord(1, StepPhase.WARMUP, "2026-11-20T12:00:00.000000Z", 0.5, 0.4, 5.5, 1.25, 16, host_memory_gib=0.3)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metrics.r0.jsonl"


def test_what_is_written_is_read_again(path):
    writer = MetricsWriter(path)
    second = StepRecord(2, StepPhase.MEASURED, RECORD.time, 0.4, 0.4, 5.0, 1.0, 16, 1.5, 2.0, 0.3)
    for record in (RECORD, second):
        writer.write(record)
    assert read_metrics(path) == [RECORD, second]


def test_a_line_has_the_contracts_names_in_order(path):
    MetricsWriter(path).write(RECORD)
    times = ["step_time_s", "fastest_rank_step_time_s"]
    memory = ["memory_allocated_gib", "memory_reserved_gib", "memory_device_gib", "host_memory_gib"]
    rest = ["data_wait_s", "gpu_utilization", "document_length"]
    names = ["step", "phase", "time", *times, "loss", "grad_norm", "samples", *memory, *rest]
    assert list(json.loads(path.read_text())) == names


def test_a_step_can_be_read_as_soon_as_it_is_written(path):
    writer = MetricsWriter(path)
    writer.write(RECORD)
    assert read_metrics(path) == [RECORD]
    writer.close()


def test_a_last_line_still_being_written_is_left_out(path):
    MetricsWriter(path).write(RECORD)
    with path.open("a") as stream:
        stream.write('{"step": 2, "phase": "meas')
    assert read_metrics(path) == [RECORD]


def test_before_the_first_step_there_are_no_records(path):
    assert read_metrics(path) == []


UNKNOWN_NAME = json.dumps(RECORD.to_json() | {"energy_j": 4.0})


@pytest.mark.parametrize("line", ['{"step": 1}', '{"phase": "resting", "step": 1}', "[]", UNKNOWN_NAME])
def test_a_whole_line_that_is_no_record_is_an_error(path, line):
    path.write_text(line + "\n")
    with pytest.raises(ValueError, match=r"is missing|phase is|not an object|is not one of"):
        read_metrics(path)


def test_not_a_number_is_no_measurement(path):
    broken = StepRecord(1, StepPhase.WARMUP, RECORD.time, 0.5, 0.4, float("nan"), 1.0, 16)
    with pytest.raises(ValueError, match="not JSON compliant"):
        MetricsWriter(path).write(broken)
