"""The answer of `parlay plan`, and what a search costs: at most, as expected, and the training that pays it back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Literal

from dashboards.cost_text import describe_pay_back, format_cost
from orchestrator.config.answer import Answer, AnswerPart, plain_rows_of
from orchestrator.config.schema.setup_file import SetupFile
from orchestrator.config.spec import SearchSpec
from orchestrator.planning.explain import ExplainedLayout, FitCounts, count_fits, explain_layouts, time_saved_s
from orchestrator.planning.plan import ExpectedHours, Plan, PlannedLayout
from orchestrator.planning.plan_notes import plan_notes
from search_spaces.search_space import SearchSpace
from trials.analysis.search_cost import PayBack
from trials.files.text import plural

if TYPE_CHECKING:
    from orchestrator.config.spec import SearchSpec
    from search_spaces.search_space import SearchSpace


MAX_REJECTED_LISTED = 10_000


def cost_lines(plan: Plan, pay_back: PayBack | None) -> Iterator[str]:
    """Expected node-hours, and the training that pays them back; none where seconds are unknown."""
    if plan.expected.guided is not None:
        words = f"this search is expected to cost {format_cost(plan.expected.guided, None)}"
        if pay_back is not None:
            by = "with the first layout " if pay_back.hours is None else ""
            words += f", and {by}{describe_pay_back(pay_back, 'to pay', 'the first layout')}, as predicted"
        yield words


class Rejection(AnswerPart):
    """A layout that a rule rejects."""

    layout: Mapping[str, Any]
    """Its fields; derived ones may be absent."""
    rule: str
    message: str


class PlanAnswer(Answer):
    """Printed by plan."""

    schema_: Literal["parlay.plan/1"] = "parlay.plan/1"
    num_layouts: int
    rejected: Mapping[str, int]
    """Number of layouts by the rule that rejects them."""
    rejected_examples: Mapping[str, str]
    """The message of the first layout that each rule rejects."""
    rejected_layouts: list[Rejection] | None
    """With --rejected."""
    fits: FitCounts | None
    """Null where the memory is unknown."""
    explained: list[ExplainedLayout]
    """The first layout, and the baseline where it is another."""
    saved_s: Mapping[str, float] | None
    """Parts of the baseline's step less those of the first layout; null without both."""
    layouts: Annotated[list[dict[str, Any]], plain_rows_of(PlannedLayout)]
    """By expected speed and fit probability."""
    setup_file: SetupFile | None
    node_hours: float | None
    """Upper limit of the search."""
    expected_node_hours: ExpectedHours
    pay_back: PayBack | None
    """Pay-back by the first layout over the baseline, as predicted; null without a baseline, and where seconds are
    unknown."""
    notes: list[str]

    @classmethod
    def of(
        cls,
        plan: Plan,
        spec: SearchSpec,
        space: SearchSpace,
        pay_back: PayBack | None,
        top: int | None,
        list_rejected: bool,
    ) -> PlanAnswer:
        """The plan with `top` layouts."""
        rejected = [
            Rejection(layout=dict(r.fields), rule=r.problem.code, message=r.problem.message)
            for r in islice(space.rejected() if list_rejected else (), MAX_REJECTED_LISTED)
        ]
        return cls(
            num_layouts=len(space.layouts),
            rejected=space.rejected_by_rule,
            rejected_examples={rule: found.problem.message for rule, found in space.examples().items()},
            rejected_layouts=rejected if list_rejected else None,
            fits=count_fits(plan),
            explained=explain_layouts(plan, space.baseline),
            saved_s=time_saved_s(plan, space.baseline),
            layouts=plan.first(top),
            setup_file=SetupFile.of(spec.launcher),
            node_hours=_most_node_hours(spec, space),
            expected_node_hours=plan.expected,
            pay_back=pay_back,
            notes=plan_notes(plan),
        )


def describe_upper_limit(spec: SearchSpec, space: SearchSpace) -> str:
    """Upper limit of the search's cost, before it begins."""
    trials, repeats = _most_trials(spec, space)
    words = plural(trials, "trial") + (f" and {plural(repeats, 'repeat')}" if repeats else "")
    return f"{words}: upper limit {_most_node_hours(spec, space):.2f} node-hours, excluding retries"


def _most_node_hours(spec: SearchSpec, space: SearchSpace) -> float:
    """Node-hours if fabric check and every trial ran to their time limits, trials on the largest number of nodes, each
    alone in its pilot where there are pilots; the budget if that is less."""
    from orchestrator.search.node_hours import reservation_node_hours

    nodes = max(space.layouts.values("num_nodes"))
    trials, repeats = _most_trials(spec, space)
    trial_node_hours = reservation_node_hours(spec.measure, spec.launcher, nodes, spec.nodes_per_pilot)
    most = (trials + repeats) * trial_node_hours + _check_node_hours(spec)
    return min(most, spec.search.budget_node_hours or most)


def _check_node_hours(spec: SearchSpec) -> float:
    """Upper limit of the fabric check's cost; 0 without one."""
    if not spec.launcher.fabric_check:
        return 0.0
    from orchestrator.diagnostics.fabric import fabric_cluster
    from orchestrator.search.node_hours import CHECK_TIME_LIMIT_S, reservation_node_s

    nodes = fabric_cluster(spec).num_nodes
    return reservation_node_s(spec.launcher, CHECK_TIME_LIMIT_S, nodes, spec.nodes_per_pilot) / 3600


def _most_trials(spec: SearchSpec, space: SearchSpace) -> tuple[int, int]:
    """Upper limits: layouts to try, and repeats of the finalists and the baseline."""
    trials = min(spec.search.max_trials, len(space.layouts))
    finalists = min(spec.search.finalists, trials)
    if finalists:  # each number of nodes may have its own finalist
        finalists = min(finalists + len(space.layouts.values("num_nodes")) - 1, trials)
    baselines = 1 if finalists and finalists < trials and spec.baseline is not None else 0
    return trials, (finalists + baselines) * spec.search.finalist_repeats
