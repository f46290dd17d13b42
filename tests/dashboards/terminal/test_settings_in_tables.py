"""Settings in the terminal's table, the report and MLflow: each variable is an axis of its own."""

from __future__ import annotations

from dataclasses import replace

from dashboards.mlflow.runs import _child_params
from dashboards.report.sentences import format_other_fields
from search_spaces.layouts.layout import Layout
from trials.trial import Trial

FIRST = Trial("t0001", Layout(settings="env.OMP_NUM_THREADS=2 launch.cpu_bind=cores"))
OTHERS = (
    replace(FIRST, layout=Layout(settings="-env.OMP_NUM_THREADS launch.cpu_bind=cores")),
    replace(FIRST, layout=Layout(settings="env.OMP_NUM_THREADS=1 launch.cpu_bind=cores", torch_compile=True)),
)


def test_sentences_name_a_variable_by_its_own_name():
    varying = ("torch_compile", "env.OMP_NUM_THREADS")
    assert format_other_fields(FIRST.layout, varying) == ["compiled off", "OMP_NUM_THREADS 2"]


def test_mlflow_has_a_parameter_for_each_variable():
    params = _child_params(FIRST)
    assert (params["env.OMP_NUM_THREADS"], params["launch.cpu_bind"]) == ("2", "cores")
    assert "env.OMP_NUM_THREADS" not in _child_params(OTHERS[0])
    assert "settings" not in params
