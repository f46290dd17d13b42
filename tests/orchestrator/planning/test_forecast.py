"""Forecasts on a synthetic machine with known truth: the models' own formulas with other constants and noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from orchestrator.planning.forecast import MIN_MEASURED, Forecast, ForecastInput, ForecastReport, Scaling, forecast
from orchestrator.planning.forecast_inputs import input_from_search, input_from_table
from orchestrator.planning.plan import Fits
from search_spaces.cost_model.memory import stage_memory
from search_spaces.cost_model.posterior import typical_constants
from search_spaces.cost_model.step_time import TERMS, StepTerms
from search_spaces.errors import InputError
from search_spaces.hardware.cluster import ACCELERATORS, Cluster
from search_spaces.hardware.links import Fabric, LinkDomain, Links
from search_spaces.layouts.layout import Layout
from search_spaces.layouts.table import LayoutTable
from search_spaces.tables.measured_table import Observation
from tests.kit import gpt
from tests.orchestrator import past_searches

pytestmark = pytest.mark.slow

MODEL = gpt(24, 2048, 16)
NODE = LinkDomain("node", 8, 235, 10.2)
CLUSTER = Cluster(ACCELERATORS["a100-80gb"], 8, 2, Links((NODE,), Fabric(nic_gb_per_s=50, latency_us=5)))
BATCH = 128
BOTH = [Scaling.WEAK, Scaling.STRONG]


def layouts_of(num_nodes: int) -> list[Layout]:
    ranks = 8 * num_nodes
    return [
        Layout(
            num_nodes=num_nodes,
            tensor_parallel=tensor,
            pipeline_parallel=stages,
            data_parallel=ranks // tensor // stages,
            micro_batch_size=size,
            grad_accum_steps=BATCH * tensor * stages // ranks // size,
            sequence_parallel=tensor > 1,
            precision="bf16",
            attention_kernel="flash",
        ).canonical()
        for tensor in (1, 2, 4)
        for stages in (1, 2)
        for size in (1, 2)
    ]


def truth(**factors: float) -> np.ndarray:
    """Typical constants, except these."""
    return typical_constants() * np.array([factors.get(term, 1.0) for term in TERMS])


def true_seconds(layouts: Sequence[Layout], constants: np.ndarray) -> np.ndarray:
    return StepTerms.of(MODEL, CLUSTER, LayoutTable.of(layouts)).seconds(constants)


def measured(num_nodes: int, constants: np.ndarray, noise: float = 0.02, seed: int = 1) -> list[Observation]:
    layouts = layouts_of(num_nodes)
    rng = np.random.default_rng(seed)
    seconds = true_seconds(layouts, constants) * np.exp(noise * rng.standard_normal(len(layouts)))
    return [row(layout, outcome="ok", step_time_s=s) for layout, s in zip(layouts, seconds.tolist(), strict=True)]


def row(layout: Layout, **found: object) -> Observation:
    cluster = replace(CLUSTER, num_nodes=layout.num_nodes, given_links=None)
    empty = Observation(f"{layout.num_nodes}-nodes", "made-up", "1.3B", MODEL, cluster, BATCH, layout, "failed")
    return replace(empty, **found)


def forecast_from(
    rows: Sequence[Observation],
    scalings: Sequence[Scaling] = BOTH,
    num_nodes: Sequence[int] | None = None,
    cluster: Cluster = CLUSTER,
) -> ForecastReport:
    return forecast(input_from_table(rows, [], cluster), scalings, num_nodes)


def width(found: Forecast) -> float:
    return found.step_time_high_s / found.step_time_low_s


@pytest.mark.parametrize(
    "constants",
    [truth(), truth(matmul=1.2, data_parallel=2), truth(pipeline_latency=20, tensor=0.5), truth(launches=3)],
    ids=["as-expected", "slow-network", "slow-messages", "slow-host"],
)
def test_what_a_step_takes_there_lies_in_the_interval(constants):
    report = forecast_from(measured(1, constants) + measured(2, constants))
    assert [(f.scaling.value, f.speed.layout.num_nodes) for f in report.forecasts] == [
        (scaling, nodes) for scaling in ("weak", "strong") for nodes in (4, 8, 16)
    ]
    for found in report.forecasts:
        (seconds,) = true_seconds([found.speed.layout], constants)
        assert found.step_time_low_s < seconds < found.step_time_high_s
        assert found.step_time_low_s < found.speed.step_time_s < found.step_time_high_s


def test_the_layout_it_names_is_nearly_as_fast_as_the_best_of_all():
    constants = truth(data_parallel=3)
    tried = input_from_table(measured(1, constants) + measured(2, constants), [], CLUSTER)
    for found in forecast(tried, BOTH, [4, 8]).forecasts:
        layout = found.speed.layout
        seconds = true_seconds(tried.layouts_on(layout.num_nodes, layout.global_batch_size), constants)
        assert true_seconds([layout], constants)[0] < 1.1 * seconds.min()


def test_the_batch_grows_with_the_nodes_or_stays_and_numbers_agree():
    rows = measured(1, truth()) + measured(2, truth())
    report = forecast_from(rows, num_nodes=[3, 4])
    best = min(rows[len(rows) // 2 :], key=lambda r: r.step_time_s)
    assert (report.base.layout, report.base.step_time_s) == (best.layout, best.step_time_s)
    by_cell = {(f.scaling, f.speed.layout.num_nodes): f for f in report.forecasts}
    batches = {cell: found.speed.layout.global_batch_size for cell, found in by_cell.items()}
    # 24 ranks share no 128 sequences.
    assert batches == {(Scaling.WEAK, 3): 192, (Scaling.WEAK, 4): 256, (Scaling.STRONG, 4): 128}
    assert any("strong scaling has no layout on 3 nodes" in note for note in report.notes)
    for found in report.forecasts:
        data = found.to_json()
        assert data["tokens_per_sec"] * data["step_time_s"] == pytest.approx(data["global_batch_size"] * 2048)
        assert data["tokens_per_sec_per_gpu"] * 8 * data["num_nodes"] == pytest.approx(data["tokens_per_sec"])
        per_gpu = report.base.tokens_per_sec / 16
        assert data["efficiency"] == pytest.approx(data["tokens_per_sec_per_gpu"] / per_gpu)
        assert data["layout"]["num_nodes"] == data["num_nodes"]


def test_traffic_that_no_trial_had_widens_the_interval_and_is_named():
    constants = truth(data_parallel=2)
    inside, between = measured(1, constants), measured(2, constants)
    (from_one,) = forecast_from(inside, [Scaling.STRONG], [8]).forecasts
    (from_two,) = forecast_from(inside + between, [Scaling.STRONG], [8]).forecasts
    assert width(from_one) > 1.3 * width(from_two)
    assert ("data_parallel", True) in [(term.term, term.over_fabric) for term in from_one.uncertain_terms]
    assert "data_parallel" not in [term.term for term in from_two.uncertain_terms]


def test_the_interval_grows_with_every_doubling_of_the_nodes():
    rows = measured(1, truth(data_parallel=2)) + measured(2, truth(data_parallel=2))
    widths = [width(found) for found in forecast_from(rows, [Scaling.STRONG], [2, 4, 8, 16]).forecasts]
    assert widths == sorted(widths)
    assert widths[-1] > 1.3 * widths[0]


def test_a_fabric_is_said_to_stay_as_fast_beyond_what_was_measured():
    def notes(**fabric: object) -> str:
        links = Links((NODE,), replace(CLUSTER.links.fabric, **fabric))
        return "\n".join(forecast_from(measured(2, truth()), BOTH, cluster=replace(CLUSTER, given_links=links)).notes)

    assert "as fast with many as with two" in notes()
    assert "measured up to 8 nodes" in notes(by_nodes=((2, 45.0), (8, 40.0)))
    assert "at most" not in notes(by_nodes=((2, 45.0), (16, 40.0)))
    assumed = forecast(input_from_table(measured(2, truth()), []), BOTH).notes
    assert any("links are assumed" in note for note in assumed)


def test_links_without_a_fabric_are_refused():
    lone = Cluster(CLUSTER.accelerator, 8, 1, Links((NODE,)))
    with pytest.raises(InputError, match="no fabric for 8 nodes"):
        forecast_from(measured(1, truth()), cluster=lone)


def test_the_trials_tell_how_fast_a_machine_is_that_nobody_knows():
    on_cpu = [replace(r, cluster=Cluster(ACCELERATORS["cpu"], 8, 2)) for r in measured(2, 400 * truth())]
    report = forecast(input_from_table(on_cpu, []), [Scaling.WEAK], [4])
    base, found = report.base, report.forecasts[0]
    assert found.speed.step_time_s == pytest.approx(base.step_time_s, rel=0.5)
    assert found.fits is None
    assert any("ordinary network" in note for note in report.notes)


def test_what_ran_out_of_memory_does_not_fit_there_either():
    rows = measured(2, truth())
    peaks = stage_memory(MODEL, LayoutTable.of(r.layout for r in rows)).peak
    full = [
        replace(r, outcome="oom", step_time_s=None) if gib > np.median(peaks) else r
        for r, gib in zip(rows, peaks, strict=True)
    ]
    free, tight = (forecast_from(found, [Scaling.STRONG], [4]).forecasts[0] for found in (rows, full))
    assert free.fits is Fits.YES

    def likely_gib(found: Forecast) -> float:
        probabilities = [contender.probability for contender in found.contenders]
        gib = stage_memory(MODEL, LayoutTable.of(contender.layout for contender in found.contenders)).peak
        return float(np.average(gib, weights=probabilities))

    assert likely_gib(tight) < likely_gib(free)


def test_the_layouts_that_may_be_the_best_are_told_and_the_best_is_among_them():
    for found in forecast_from(measured(2, truth())).forecasts:
        probabilities = [contender.probability for contender in found.contenders]
        assert probabilities == sorted(probabilities, reverse=True)
        assert 0.95 <= sum(probabilities) <= 1 + 1e-9
        assert found.speed.layout in [contender.layout for contender in found.contenders]
        assert len(found.to_json(top=1)["contenders"]) == 1


def test_too_few_measured_layouts_are_refused():
    rows = measured(2, truth())[: MIN_MEASURED - 1]
    rows += [*rows, *(row(r.layout) for r in measured(1, truth()))]
    with pytest.raises(InputError, match="2 measured layouts of 14") as raised:
        forecast_from(rows)
    assert raised.value.problems[0].code == "no_measurement"


@pytest.mark.parametrize(
    ("problems", "words"),
    [(["3-nodes"], "no problem '3-nodes'"), ([], "2 models or kinds of node"), (["1-nodes", "other"], "2 models")],
)
def test_a_table_is_asked_for_problems_of_one_model_that_are_there(problems, words):
    other = [replace(r, problem="other", model=replace(MODEL, num_layers=12)) for r in measured(2, truth())]
    with pytest.raises(InputError, match=words):
        input_from_table(measured(1, truth()) + other, problems)


@pytest.mark.bad_input(53)
def test_rows_of_several_engines_are_refused_where_a_cpu_emulates_the_gpu_of_one():
    cpu = Cluster(ACCELERATORS["cpu"], 8, 2)
    rows = [replace(r, cluster=replace(cpu, num_nodes=r.layout.num_nodes)) for r in measured(1, truth())]
    theirs = [replace(r, layout=replace(r.layout, engine="megatron-lm")) for r in rows]
    with pytest.raises(InputError, match="compares megatron-lm and torch on cpu"):
        input_from_table(rows + theirs, [])
    assert "a CPU emulated the GPU of engine megatron-lm" in forecast_from(theirs, cluster=cpu).notes[0]


def test_a_tables_space_is_every_combination_of_what_its_rows_have():
    tried: ForecastInput = input_from_table(measured(1, truth()), [], CLUSTER)
    found = tried.layouts_on(4, 256)
    assert {layout.tensor_parallel for layout in found} == {1, 2, 4}
    assert {(layout.num_nodes, layout.global_batch_size) for layout in found} == {(4, 256)}
    assert (
        Layout(4, 4, 2, 4, 2, 32, precision="bf16", attention_kernel="flash", pipeline_schedule="1f1b") in found
    )  # with sequence parallelism in no row


def test_a_search_is_forecast_in_its_own_space_also_beyond_its_nodes(tmp_path):
    spec = past_searches.spec_in(tmp_path, "constraints.max_nodes=1")
    trials = [
        past_searches.measured(f"t{number:04d}", layout, step_time_s=0.4 + 0.1 * number)
        for number, layout in enumerate(past_searches.layouts(), start=1)
    ]
    tried = input_from_search(past_searches.past(spec, *trials), spec)
    found = tried.layouts_on(2, 16)
    assert {(layout.num_nodes, layout.num_gpus, layout.global_batch_size) for layout in found} == {(2, 4, 16)}
    assert {layout.micro_batch_size for layout in found} == {1, 2, 4, 8}
    assert input_from_search(past_searches.past(spec, *trials), spec, cluster=spec.cluster).task == tried.task
    with pytest.raises(InputError, match="nodes of 8 a100-80gb, but the trials ran on nodes of 2 cpu"):
        input_from_search(past_searches.past(spec, *trials), spec, cluster=CLUSTER)
    report = forecast(tried, BOTH)
    assert (report.base.layout, report.trials) == (trials[0].layout, 7)
    cells = {(f.scaling.value, f.speed.layout.num_nodes) for f in report.forecasts}
    assert cells == {(scaling, nodes) for scaling in ("weak", "strong") for nodes in (2, 4, 8)}
