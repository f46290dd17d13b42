"""Step time from the baseline to the best layout, in seconds."""

from __future__ import annotations

import math

import pytest

from dashboards.report.data import report_data
from dashboards.report.figures.registry import report_figures
from search_spaces.hardware.cluster import ACCELERATORS, Cluster
from tests.dashboards.report.searches import BASELINE, FASTEST, spec
from tests.dashboards.searches import START, SearchUnderTest
from tests.kit import TINY

OF_BASELINE = {"compute": 0.6, "tensor": 0.3, "data_parallel": 0.1}
OF_BEST = {"compute": 0.52, "tensor": 0.1, "data_parallel": 0.1, "bubble": 0.05, "optimizer": 0.001}


def step_time(search: SearchUnderTest):
    return report_figures(report_data(search.record, START + 3600))["time"]


def measured(of_baseline=None, of_best=None, **more) -> SearchUnderTest:
    search = SearchUnderTest(spec(**more))
    search.measure(search.start(BASELINE), 1000.0, time_s=of_baseline)
    search.measure(search.start(FASTEST), 1250.0, time_s=of_best)
    return search


def test_the_bridge_leads_from_one_step_time_to_the_other():
    figure = step_time(measured(OF_BASELINE, OF_BEST))
    (bars,) = figure.plot["data"]
    assert bars["y"] == ["the baseline", "tensor", "compute", "bubble", "others", "unexplained", "t0002"]
    assert bars["x"] == pytest.approx([1.0, -0.2, -0.08, 0.05, 0.001, 0.029, 0.8])
    assert math.fsum(bars["x"][:-1]) == pytest.approx(bars["x"][-1])
    assert figure.summary == (
        "Measured: 1.00 s (the baseline) to 0.800 s (t0002). By part, as profiled: tensor"
        " \N{MINUS SIGN}0.200 s, compute \N{MINUS SIGN}0.0800 s, bubble +0.0500 s, others +0.00100 s, unexplained"
        " +0.0290 s."
    )


def test_profiled_and_predicted_seconds_are_not_mixed():
    cluster = Cluster(ACCELERATORS["a100-40gb"], 4, 2).to_json()
    figure = step_time(measured(None, OF_BEST, model=TINY.to_json(), cluster=cluster))
    assert "as predicted by the cost model, not measured" in figure.summary
    (bars,) = figure.plot["data"]
    assert (bars["y"][0], bars["y"][-2]) == ("the baseline", "unexplained")
    assert (bars["x"][0], bars["x"][-1]) == (1.0, 0.8)
    (bars,) = step_time(measured(None, OF_BEST)).plot["data"]
    assert bars["y"][0] == "compute"
