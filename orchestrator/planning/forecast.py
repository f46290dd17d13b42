"""Forecast for more nodes than were tried: step time, best layout and their uncertainty.

From trials on a few nodes, for weak scaling (the global batch grows with the nodes) and strong scaling (it stays). No
torch, no processes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self

import numpy as np

from orchestrator.config.answer import Answer, AnswerPart
from orchestrator.planning.plan import UNLIKELY, Fits
from orchestrator.planning.plan_notes import assumed_links_note
from orchestrator.planning.scaling_model import ScalingPosterior, UnmeasuredTerm
from orchestrator.search.samplers.cost_model_posterior import TuningTask, prior_score
from search_spaces.engines import is_emulated
from search_spaces.errors import InputError
from search_spaces.hardware.cluster import Cluster
from search_spaces.layouts.layout import Layout
from search_spaces.layouts.table import LayoutTable
from search_spaces.tables.benchmark_problem import problems_in
from search_spaces.tables.measured_table import Observation
from trials.files.text import plural
from trials.trial import LowerStrEnum

MIN_MEASURED = 3
"""Measured layouts; fewer do not determine a dozen constants."""
NODE_MULTIPLES = (2, 4, 8)
_NEARLY_ALL = 0.95
"""Probability that the best layout is among the contenders."""
_MAX_COMPARED = 200
"""Number of layouts, in the plan's order, among which the best is sought; the others are far behind."""


class Scaling(LowerStrEnum):
    """Scaling of the global batch with the nodes: it grows, or stays."""

    WEAK = "weak"
    STRONG = "strong"


@dataclass(frozen=True)
class ForecastInput:
    """Input of a forecast: measured trials of a training, and the layouts possible elsewhere.

    `rows` are of the task's model and kind of node. `layouts_on(num_nodes, global_batch_size)` returns the possible
    layouts, all of that batch (sequences per step); InputError if there are none. Rows of a batch other than
    `global_batch_size` teach, but cannot be the base; None is the batch of the fastest row.
    """

    task: TuningTask
    rows: tuple[Observation, ...]
    layouts_on: Callable[[int, int], Sequence[Layout]]
    global_batch_size: int | None = None
    seed: int = 0

    @classmethod
    def of(
        cls,
        task: TuningTask,
        rows: Iterable[Observation],
        layouts_on: Callable[[int, int], Sequence[Layout]],
        global_batch_size: int | None = None,
        seed: int = 0,
    ) -> ForecastInput:
        """Each layout once, at the median of its runs; InputError if fewer than MIN_MEASURED of them ran."""
        problems = problems_in(rows).values()
        once = tuple(row for problem in problems for row in problem.results.values())
        if (measured := sum(row.step_time_s is not None for row in once)) < MIN_MEASURED:
            raise InputError.of(
                "no_measurement",
                f"has {plural(measured, 'measured layout')} of {len(once)} tried",
                rule=f"a forecast needs at least {MIN_MEASURED} measured layouts",
                fix="repeat it after more trials have been measured",
            )
        return cls(task, once, layouts_on, global_batch_size, seed)

    @property
    def measured(self) -> tuple[Observation, ...]:
        return tuple(row for row in self.rows if row.step_time_s is not None)


class Contender(AnswerPart):
    """A layout that may be the fastest."""

    layout: Layout
    layout_key: str
    probability: float
    step_time_s: float
    fits: Fits | None


class Forecast(AnswerPart):
    """The predicted best layout on a number of nodes."""

    scaling: Scaling
    num_nodes: int
    global_batch_size: int
    layout: Layout
    layout_key: str
    step_time_s: float
    """Median."""
    step_time_low_s: float
    """Lower end of the 95 % interval."""
    step_time_high_s: float
    """Upper end of the 95 % interval."""
    tokens_per_sec: float
    tokens_per_sec_per_gpu: float
    efficiency: float
    """Throughput a GPU over that of the base."""
    fits: Fits | None
    contenders: list[Contender]
    """Layouts that contain the fastest with probability 95 %, the likeliest first."""
    uncertain_terms: list[UnmeasuredTerm]
    """Terms of the time model that no trial measures and that widen the interval most."""


class LayoutSpeed(AnswerPart):
    """Step time and throughput of a layout. Tokens are of all ranks together."""

    num_nodes: int
    layout: Layout
    layout_key: str
    step_time_s: float
    tokens_per_sec: float

    @classmethod
    def of(cls, layout: Layout, step_time_s: float, seq_length: int) -> Self:
        return cls(
            num_nodes=layout.num_nodes,
            layout=layout,
            layout_key=layout.key,
            step_time_s=step_time_s,
            tokens_per_sec=layout.global_batch_size * seq_length / step_time_s,
        )

    @property
    def tokens_per_sec_per_gpu(self) -> float:
        return self.tokens_per_sec / self.layout.num_gpus


class ForecastAnswer(Answer):
    """Printed by forecast: forecasts of one training, by scaling and nodes."""

    schema_: Literal["parlay.forecast/1"] = "parlay.forecast/1"
    search_id: str | None
    """Null where a table was given."""
    table: str | None
    """Null where a search was given."""
    problems: list[str]
    """`problem` of the table's rows."""
    base: LayoutSpeed
    """The fastest layout on the largest number of nodes that was tried."""
    trials: int
    """Number of measured layouts."""
    forecasts: list[Forecast]
    notes: list[str]
    """Assumptions behind the numbers, and numbers of nodes without a layout."""


def forecast(
    inputs: ForecastInput,
    scalings: Sequence[Scaling],
    num_nodes: Sequence[int] | None = None,
    search_id: str | None = None,
    table: str | None = None,
) -> ForecastAnswer:
    """Forecast for each of these numbers of nodes; by default for NODE_MULTIPLES of the base's. The trials are those of
    a search or of a table.

    InputError if the described links have no fabric, or if nothing of the global batch was measured.
    """
    base = _base_layout(inputs)
    asked = num_nodes or [times * base.layout.num_nodes for times in NODE_MULTIPLES]
    most = max(*asked, inputs.task.cluster.num_nodes, *(row.layout.num_nodes for row in inputs.rows))
    task = replace(inputs.task, cluster=_with_nodes(inputs.task.cluster, most))
    posterior = ScalingPosterior(task, inputs.rows, inputs.seed)
    found: list[Forecast] = []
    notes = [*_emulation_notes(base.layout, task.cluster), *_notes(task.cluster, base.layout.num_nodes, max(asked))]
    for scaling in scalings:
        for count in asked:
            try:
                layouts = _layouts(inputs, scaling, count, base.layout)
            except InputError as error:
                notes.append(f"{scaling} scaling has no layout on {plural(count, 'node')}: {error.problems[0].message}")
            else:
                found.append(fastest_forecast(posterior, task, layouts, scaling, base))
    return ForecastAnswer(
        search_id=search_id,
        table=table,
        problems=list(dict.fromkeys(row.problem for row in inputs.rows)),
        base=base,
        trials=len(inputs.measured),
        forecasts=found,
        notes=notes,
    )


def fastest_forecast(
    posterior: ScalingPosterior, task: TuningTask, layouts: Sequence[Layout], scaling: Scaling, base: LayoutSpeed
) -> Forecast:
    """Forecast of the first layout in the plan's order; the layouts agree in batch and nodes."""
    table = LayoutTable.of(layouts)
    fits = posterior.fits(table)
    scores = prior_score(-np.log(posterior.step_time_s(table)), fits)
    order = np.lexsort((-scores, fits <= UNLIKELY))[:_MAX_COMPARED]
    compared, fits = table.take(order), fits[order]
    logs = posterior.log_seconds(compared) + posterior.shared_residual(base.layout, base.step_time_s)
    low, median, high = np.exp(np.quantile(logs[:, 0] + posterior.error(), (0.025, 0.5, 0.975))).tolist()
    speed = LayoutSpeed.of(layouts[order[0]], median, task.model.seq_length)
    probabilities = _probabilities(prior_score(-(logs + posterior.layout_residual(len(order))), fits))
    seconds = np.exp(np.median(logs, axis=0))
    verdicts = Fits.of_each(task, fits)
    contenders = [
        Contender(
            layout=layouts[order[row]],
            layout_key=layouts[order[row]].key,
            probability=float(probabilities[row]),
            step_time_s=float(seconds[row]),
            fits=verdicts[row],
        )
        for row in _most_likely(probabilities)
    ]
    return Forecast(
        scaling=scaling,
        **dict(speed),
        global_batch_size=speed.layout.global_batch_size,
        tokens_per_sec_per_gpu=speed.tokens_per_sec_per_gpu,
        step_time_low_s=low,
        step_time_high_s=high,
        efficiency=speed.tokens_per_sec_per_gpu / base.tokens_per_sec_per_gpu,
        fits=verdicts[0],
        contenders=contenders,
        uncertain_terms=list(posterior.unmeasured_terms(compared.take(np.array([0])))),
    )


def _probabilities(scores: np.ndarray) -> np.ndarray:
    """Probability of each column to be the largest of its row."""
    return np.bincount(scores.argmax(axis=1), minlength=scores.shape[1]) / len(scores)


def _most_likely(probabilities: np.ndarray) -> list[int]:
    """The fewest columns with nearly all of the probability, the most probable first."""
    order = np.argsort(-probabilities, kind="stable")
    return order[: 1 + int(np.searchsorted(np.cumsum(probabilities[order]), _NEARLY_ALL))].tolist()


def _base_layout(inputs: ForecastInput) -> LayoutSpeed:
    speeds = [
        LayoutSpeed.of(row.layout, row.step_time_s, inputs.task.model.seq_length)
        for row in inputs.measured
        if row.step_time_s is not None and inputs.global_batch_size in (None, row.layout.global_batch_size)
    ]
    if not speeds:
        raise InputError.of(
            "no_measurement",
            f"no layout of global batch {inputs.global_batch_size} was measured",
            rule="a forecast is compared with a measured layout of the search's own global batch",
            fix="repeat it after such a trial has been measured",
        )
    return max(speeds, key=lambda speed: (speed.num_nodes, speed.tokens_per_sec))


def _with_nodes(cluster: Cluster, num_nodes: int) -> Cluster:
    has_no_fabric = cluster.given_links is not None and cluster.given_links.fabric is None
    if has_no_fabric and num_nodes > cluster.domain_nodes:
        raise InputError.of(
            "links",
            f"the described links have no fabric for {num_nodes} nodes",
            rule="a forecast for several nodes needs the fabric between them",
            fix="describe the cluster with links.fabric (docs/clusters.md), and name it: --cluster FILE",
            key="--cluster",
        )
    return replace(cluster, num_nodes=num_nodes)


def _layouts(inputs: ForecastInput, scaling: Scaling, num_nodes: int, base: Layout) -> Sequence[Layout]:
    """Layouts possible on `num_nodes`; InputError if there are none."""
    batch = base.global_batch_size
    if scaling is Scaling.WEAK:
        batch, left = divmod(batch * num_nodes, base.num_nodes)
        if left:
            step = base.num_nodes // math.gcd(base.global_batch_size, base.num_nodes)
            raise InputError.of(
                "batch",
                f"{base.global_batch_size} x {num_nodes} / {base.num_nodes} sequences are not a whole number,"
                f" which they are on each multiple of {plural(step, 'node')}",
                rule="weak scaling keeps the number of sequences per node",
            )
    return inputs.layouts_on(num_nodes, batch)


def _emulation_notes(layout: Layout, cluster: Cluster) -> Iterator[str]:
    if is_emulated(layout.engine, cluster.accelerator.name):
        yield f"a CPU emulated the GPU of engine {layout.engine}: the forecast is one of that emulation"


def _notes(cluster: Cluster, tried_nodes: int, most_nodes: int) -> list[str]:
    """Assumptions about the machine on more nodes than were tried."""
    links = cluster.links
    if links is None:
        notes = [f"the links between {cluster.accelerator.name} nodes are unknown: an ordinary network is assumed"]
    else:
        notes = [assumed_links_note(cluster)] if cluster.links_are_assumed else []
    by_nodes = links.fabric.by_nodes if links is not None and links.fabric is not None else ()
    if by_nodes and most_nodes > by_nodes[-1].num_nodes:
        notes.append(
            f"the fabric was measured up to {by_nodes[-1].num_nodes} nodes; it is assumed to be as fast with more"
        )
    elif not by_nodes and most_nodes > 2:
        notes.append(
            "the fabric was not measured by number of nodes: it is assumed to be as fast with many as with two"
        )
    if most_nodes > tried_nodes:
        notes.append(
            f"nothing was measured on more than {plural(tried_nodes, 'node')}: traffic over the fabric becomes less"
            " certain with every doubling"
        )
    return notes
