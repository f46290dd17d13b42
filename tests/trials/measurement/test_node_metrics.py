from __future__ import annotations

import json

import pytest

from trials.measurement.node_metrics import MAX_BYTES, NodeSample, read_samples, sample_line

TIME = "2026-11-20T12:00:00.000000Z"
VALUES = {
    "cpu_utilization_percentage": 41.5,
    "system_memory_usage_megabytes": 1024.0,
    "network_receive_megabytes": 0.1,
    "gpu_0_utilization_percentage": 97.0,
    "gpu_15_power_usage_watts": 650.2,
}
SAMPLE = NodeSample(TIME, VALUES)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "system.n0.r0.jsonl"


def test_what_is_written_is_read_again(path):
    path.write_bytes(sample_line(SAMPLE) + sample_line(NodeSample(TIME)))
    assert read_samples(path) == [SAMPLE, NodeSample(TIME)]


def test_a_last_line_still_being_written_is_left_out(path):
    path.write_bytes(sample_line(SAMPLE) + sample_line(SAMPLE)[:20])
    assert read_samples(path) == [SAMPLE]


def test_a_node_that_was_not_sampled_has_no_samples(path):
    assert read_samples(path) == []


@pytest.mark.parametrize("name", ["gpu_0_fan_percentage", "gpu_100_utilization_percentage", "parlay.best"])
def test_a_name_that_is_none_of_ours_is_an_error(path, name):
    path.write_text(json.dumps(SAMPLE.to_json() | {name: 1.0}) + "\n")
    with pytest.raises(ValueError, match="with an unknown name"):
        read_samples(path)


@pytest.mark.parametrize(
    "line",
    [
        "nonsense",
        "[]",
        "[" * 100_000,
        "{}",
        '{"time": 5}',
        '{"time": "yesterday"}',
        f'{{"time": "{TIME}", "cpu_utilization_percentage": NaN}}',
        f'{{"time": "{TIME}", "cpu_utilization_percentage": "41"}}',
        f'{{"time": "{TIME}", "cpu_utilization_percentage": 1{"0" * 400}}}',
        "\0\0\0",
        b"\xff\xfe".decode("latin-1"),
    ],
    ids=["words", "list", "depth", "empty", "number-for-time", "no-time", "nan", "text", "no-float", "holes", "bytes"],
)
def test_a_whole_line_that_is_no_sample_is_an_error_that_names_the_file(path, line):
    path.write_text(line + "\n", encoding="latin-1")
    with pytest.raises(ValueError, match=r"system\.n0\.r0\.jsonl"):
        read_samples(path)


def test_a_file_without_an_end_and_a_link_are_not_read(path, tmp_path):
    (tmp_path / "elsewhere").write_bytes(sample_line(SAMPLE))
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="not a regular file"):
        read_samples(path)
    path.unlink()
    with path.open("wb") as stream:
        stream.truncate(MAX_BYTES + 1)
    with pytest.raises(ValueError, match="more than"):
        read_samples(path)
