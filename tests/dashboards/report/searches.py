"""Searches for the tests of the report."""

from __future__ import annotations

from typing import Any

from search_spaces.layouts.layout import Layout
from tests.dashboards.searches import SearchUnderTest
from tests.kit import TINY
from trials.trial import FailureReason

HOSTILE = "</pre></script><script>alert(1)</script><img src=x onerror=alert(2)>\x1b[31m\x00{{ 7 * 7 }}"
"""A name, or what a trial wrote, that would be something else than text."""

BASELINE = Layout(tensor_parallel=4, data_parallel=2, grad_accum_steps=4)
FASTEST = Layout(tensor_parallel=2, pipeline_parallel=2, data_parallel=2, grad_accum_steps=4, pipeline_schedule="1f1b")


def spec(**more: Any) -> dict[str, Any]:
    """Part of search.json that the report reads."""
    search = {"max_trials": 20, "budget_node_hours": 10.0}
    known = {"name": "tiny", "global_batch_size": 8, "baseline": BASELINE.to_json(), "search": search}
    return known | {"cluster": {"gpus_per_node": 4, "accelerator": {"name": "cpu"}}} | more


def a_search(num_measured: int = 2, **more: Any) -> SearchUnderTest:
    """The baseline, a layout 1.5 times faster, and slower ones up to `num_measured`; one out of memory."""
    search = SearchUnderTest(spec(**more))
    search.measure(search.start(BASELINE), 1000.0)
    search.fail(search.start(Layout(data_parallel=8)), FailureReason.GPU_OOM, excerpt="torch.OutOfMemoryError")
    best = search.start(FASTEST)
    search.measure(best, 1500.0, peak_memory_gib=3.0)
    search.best(best)
    for layout, speed in list(_slower())[: num_measured - 2]:
        search.measure(search.start(layout), speed)
    return search


def _slower() -> Any:
    """Halved by each doubling of the tensor size, whatever the micro-batch."""
    for micro_batch in (1, 2, 4, 8):
        for tensor in (1, 2, 4, 8):
            sizes = {"tensor_parallel": tensor, "data_parallel": 8 // micro_batch, "micro_batch_size": micro_batch}
            yield Layout(**sizes, activation_checkpointing="full"), 900.0 / tensor


def a_full_search() -> SearchUnderTest:
    """An ended search that has something for every part of the report: predictions, a profile, failures with logs, one
    that was pruned, a tie, and finalists; its name and a log are hostile."""
    search = SearchUnderTest(spec(name=HOSTILE))
    search.measure(search.start(BASELINE, prediction=_prediction(1.1, 1.4)), 1000.0)
    search.fail(search.start(Layout(data_parallel=8)), FailureReason.GPU_OOM, excerpt="torch.OutOfMemoryError: CUDA")
    search.fail(search.start(Layout(data_parallel=4)), FailureReason.SCRIPT_ERROR, excerpt=f"ValueError: {HOSTILE}")
    profile = {"compute": 0.5, "tensor": 0.08, "pipeline": 0.04, "bubble": 0.05}
    best = search.start(FASTEST, prediction=_prediction(0.6, 2.8))
    search.measure(best, 1500.0, peak_memory_gib=3.0, time_s=profile)
    search.best(best)
    search.prune(search.start(Layout(tensor_parallel=8)), 300.0)
    for layout, speed in list(_slower())[:12]:
        search.measure(
            search.start(layout, prediction=_prediction(900 / speed, 1.6)), speed, peak_memory_gib=1500 / speed
        )
    tie = Layout(tensor_parallel=2, data_parallel=4, grad_accum_steps=2, zero_stage=1)
    search.measure(search.start(tie, prediction=_prediction(0.7, 2.0)), 1495.0, peak_memory_gib=3.2, time_s=profile)
    for layout, speed in ((FASTEST, 1490.0), (tie, 1485.0), (BASELINE, 1010.0)):
        search.measure(search.start(layout, kind="repeat"), speed, peak_memory_gib=3.0)
    search.end()
    return search


def _prediction(step_time_s: float, peak_memory_gib: float) -> dict[str, float]:
    return {"step_time_s": step_time_s, "peak_memory_gib": peak_memory_gib}


def _known() -> dict[str, Any]:
    cluster = {"gpus_per_node": 4, "num_nodes": 2, "accelerator": {"name": "a100-40gb"}}
    return {"model": TINY.to_json(), "cluster": cluster, "trainer": {"kind": "parlay"}}


def all_failed() -> SearchUnderTest:
    """Six layouts out of memory, two crashed."""
    search = SearchUnderTest(spec(**_known()))
    for micro_batch in (1, 2, 4, 8):
        for tensor in (1, 2):
            layout = Layout(tensor_parallel=tensor, data_parallel=8 // tensor, micro_batch_size=micro_batch)
            if micro_batch > 1:
                search.fail(search.start(layout), FailureReason.GPU_OOM, excerpt="rank 0\nOutOfMemoryError: 2.00 GiB")
            else:
                search.fail(search.start(layout), FailureReason.SCRIPT_ERROR, excerpt="ValueError: no")
    search.end("failed", "no_feasible_layout")
    return search


def refused() -> SearchUnderTest:
    """The cluster rejected the first job."""
    search = SearchUnderTest(spec(**_known()))
    search.end("completed", "submission_rejected", "sbatch: error: Invalid account")
    return search


def cancelled() -> SearchUnderTest:
    """Cancelled in its first trial."""
    search = SearchUnderTest(spec(**_known()))
    search.fail(search.start(BASELINE), FailureReason.CANCELLED_BY_USER)
    search.end("cancelled", "cancelled_by_user")
    return search


def only_baseline() -> SearchUnderTest:
    """The baseline was measured, and three layouts ran out of memory."""
    search = SearchUnderTest(spec(**_known()))
    search.measure(search.start(BASELINE), 1000.0)
    for micro_batch in (2, 4, 8):
        layout = Layout(data_parallel=8 // micro_batch, micro_batch_size=micro_batch)
        search.fail(search.start(layout), FailureReason.GPU_OOM, excerpt="OutOfMemoryError: CUDA out of memory")
    search.end()
    return search


def one_trial() -> SearchUnderTest:
    """One layout and no baseline."""
    search = SearchUnderTest(spec(baseline=None, **_known()))
    search.measure(search.start(FASTEST), 1500.0)
    search.end(end_reason="space_exhausted")
    return search


def nothing_yet() -> SearchUnderTest:
    """Its first trial runs."""
    search = SearchUnderTest(spec(**_known()))
    search.start(BASELINE)
    return search


STATES = {search.__name__: search for search in (all_failed, refused, cancelled, only_baseline, one_trial, nothing_yet)}
"""Searches without a comparison, by state."""
