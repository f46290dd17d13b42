"""Environment variables, launch options and routing of a search file."""

from __future__ import annotations

import pytest
import yaml

from orchestrator.config.setting_problems import candidate_problems
from orchestrator.config.spec import SearchSpec
from orchestrator.planning.candidates import candidates_of
from orchestrator.schema.search_file import SearchFile
from search_spaces.layouts.layout import Layout
from tests.kit import MINIMAL, loaded
from tests.orchestrator.config.test_refusals import COMMAND, EXPERTS

LOCAL = "launcher.kind=local"


def test_every_combination_is_a_candidate_and_survives_search_json(tmp_path):
    spec = loaded(
        tmp_path,
        MINIMAL,
        LOCAL,
        "space.env={OMP_NUM_THREADS: [1, 2], X: [null, a b]}",
        "space.launch={cpu_bind: [null, cores]}",
    )
    texts = {layout.settings for layout in candidates_of(spec).layouts}
    assert len(texts) == 8
    assert "-env.X env.OMP_NUM_THREADS=1" not in texts  # the text is sorted by name
    assert "env.OMP_NUM_THREADS=2 'env.X=a b' launch.cpu_bind=cores" in texts
    assert candidates_of(SearchSpec.from_json(spec.to_json())) == candidates_of(spec)


@pytest.mark.parametrize(
    ("baseline", "text"),
    [
        ("{tensor_parallel: 1}", "-env.OMP_NUM_THREADS env.Y=1"),
        (
            "{tensor_parallel: 1, env: {OMP_NUM_THREADS: 4}, launch: {cpu_bind: cores}}",
            "env.OMP_NUM_THREADS=4 env.Y=1 launch.cpu_bind=cores",
        ),
    ],
)
def test_the_baseline_has_its_own_values_else_the_only_ones(tmp_path, baseline, text):
    spec = loaded(tmp_path, MINIMAL, LOCAL, "space.env={OMP_NUM_THREADS: [1, 2], Y: 1}", f"baseline={baseline}")
    assert spec.baseline.settings == text


@pytest.mark.parametrize(
    "settings", ["software.python=/tmp/python", "-env.RANK", "env.DB_PASSWORD=hunter2", "launch.cpu_bind=sockets"]
)
def test_settings_of_a_table_have_the_same_rules(settings):
    file = SearchFile.model_validate({**yaml.safe_load(MINIMAL), "launcher": {"kind": "local"}})
    layouts = [Layout(), Layout(settings=settings)]
    [problem] = candidate_problems(layouts, file)
    assert (problem.key, bool(problem.rule), bool(problem.fix)) == ("space.candidates", True, True)
    assert "hunter2" not in str(problem)


def test_a_table_that_is_simulated_starts_nothing():
    launcher = {"kind": "simulated", "table": "table.csv"}
    file = SearchFile.model_validate({**yaml.safe_load(MINIMAL), "launcher": launcher})
    assert not list(candidate_problems([Layout(settings="software.python=/tmp/python")], file))
    [problem] = candidate_problems([Layout(settings="env.DB_PASS=hunter2")], file)  # its pages would show it
    assert "looks like a secret" in problem.message


@pytest.mark.parametrize(
    ("changes", "routing"),
    [
        ([], None),
        ([EXPERTS], "balanced"),
        ([EXPERTS, "measure.routing=skewed(2.50)"], "skewed(2.5)"),
        ([EXPERTS, COMMAND], "learned"),
    ],
)
def test_routing_is_balanced_where_it_can_be_forced_and_none_without_experts(tmp_path, changes, routing):
    assert loaded(tmp_path, MINIMAL, *changes).measure.routing == routing


@pytest.mark.parametrize(("text", "value"), [("auto", None), ("true", True), ("false", False)])
def test_a_warm_start_is_auto_true_or_false(tmp_path, text, value):
    assert loaded(tmp_path).measure.warm_start is None
    assert loaded(tmp_path, MINIMAL, f"measure.warm_start={text}").measure.warm_start is value
