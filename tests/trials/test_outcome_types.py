"""Metrics of an outcome, decoded and refused."""

from __future__ import annotations

import pytest

from tests.kit import MEASURED
from trials.outcome_types import MeasuredMetrics, ThroughputBound, measured_of


def test_metrics_and_bounds_are_decoded_as_they_were_written():
    for measured in (MeasuredMetrics(**MEASURED, time_s={"compute": 0.5}), ThroughputBound(300.0), None):
        assert measured_of({} if measured is None else measured.to_json()) == measured
    assert measured_of(MEASURED | {"mfu": None}) == MeasuredMetrics(**MEASURED)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"speed": 1.0}, "speed is not a metric"),
        ({"tokens_per_sec": 0}, "tokens_per_sec is 0, not a positive number"),
        ({"samples_per_sec": None}, "samples_per_sec is None, not a positive number"),
        ({"mfu": float("nan")}, "mfu is nan, not a finite number"),
        ({"loss_last": True}, "loss_last is True, not a finite number"),
        ({"warmup_steps": 3.5}, "warmup_steps is 3.5, not a whole number"),
        ({"time_s": {"compute": "1"}}, "time_s is {'compute': '1'}, not finite numbers by name"),
        ({"time_s": []}, "time_s is \\[\\], not finite numbers by name"),
        ({"startup_parts_s": {"\x1b[2J": 1.0}}, "startup_parts_s is"),
    ],
)
def test_what_is_no_metric_is_refused(change, fault):
    with pytest.raises(ValueError, match=fault):
        measured_of(MEASURED | change)
