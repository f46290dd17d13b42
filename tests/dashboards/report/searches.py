"""Searches for the tests of the report."""

from __future__ import annotations

from typing import Any

from search_spaces.layout import Layout
from tests.dashboards.searches import SearchUnderTest
from trials.trial import FailureReason

TODAY = Layout(tensor_parallel=4, data_parallel=2, grad_accum_steps=4)
FASTEST = Layout(tensor_parallel=2, pipeline_parallel=2, data_parallel=2, grad_accum_steps=4, pipeline_schedule="1f1b")


def spec(**more: Any) -> dict[str, Any]:
    """As much of search.json as the report reads."""
    search = {"max_trials": 20, "budget_node_hours": 10.0}
    known = {"name": "tiny", "global_batch_size": 8, "baseline": TODAY.to_json(), "search": search}
    return known | {"cluster": {"gpus_per_node": 4, "accelerator": {"name": "cpu"}}} | more


def a_search(num_measured: int = 2, **more: Any) -> SearchUnderTest:
    """The baseline, a layout 1.5 times faster, and slower ones up to `num_measured`; one out of memory."""
    search = SearchUnderTest(spec(**more))
    search.measure(search.start(TODAY), 1000.0)
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
            layout = Layout(
                tensor_parallel=tensor,
                data_parallel=8 // micro_batch,
                micro_batch_size=micro_batch,
                activation_checkpointing="full",
            )
            yield layout, 900.0 / tensor
