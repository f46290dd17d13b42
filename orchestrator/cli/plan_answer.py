"""The answer of `parlay plan`, with the search's cost: as Slurm bills it, the training that pays it back, and the
preemption of its jobs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Literal

from dashboards.cost_text import describe_pay_back, format_cost
from dashboards.trial_text import format_number
from orchestrator.cli.upper_limit import most_node_hours
from orchestrator.config.answer import Answer, AnswerPart, plain_rows_of
from orchestrator.config.schema.setup_file import SetupFile
from orchestrator.planning.explain import ExplainedLayout, FitCounts, count_fits, explain_layouts, time_saved_s
from orchestrator.planning.pay_back import expected_pay_back
from orchestrator.planning.plan import ExpectedHours, Plan, PlannedLayout
from slurm.preemption import Preemption
from trials.analysis.search_cost import PayBack

if TYPE_CHECKING:
    from orchestrator.config.spec import SearchSpec
    from orchestrator.diagnostics.preflight.job_terms import JobTerms
    from search_spaces.search_space import SearchSpace

MAX_REJECTED_LISTED = 10_000


class PlannedCost(AnswerPart):
    """Cost of a search as Slurm bills it, and its pay-back. Null or empty without Slurm, and where it does not
    answer."""

    partitions: list[str]
    billed_per_node_hour: float | None
    """Billing hours of a node-hour of the largest jobs."""
    usage_factor: float | None
    """The QOS's, which the billing hours contain."""
    billed_hours: float | None
    """Billing hours of `expected_node_hours.guided`."""
    most_billed_hours: float | None
    """Billing hours of `node_hours`, the upper limit."""
    pay_back: PayBack | None
    """Pay-back by the first layout over the baseline, as predicted; null without a baseline, and where seconds are
    unknown."""
    preemption: Preemption | None
    """Null where no other job takes the nodes of the search's jobs."""
    unknown_because: str | None = None
    """Reason why Slurm's terms are unknown."""

    @classmethod
    def of(cls, plan: Plan, spec: SearchSpec, space: SearchSpace) -> PlannedCost:
        """The cost; queries Slurm where the search's jobs would run under it."""
        terms, unknown_because = None, None
        if spec.launcher.uses_slurm:
            from orchestrator.diagnostics.preflight.job_terms import job_terms
            from slurm.interface import SlurmUnreachable

            try:
                terms = job_terms(spec, space)
            except SlurmUnreachable as error:
                unknown_because = str(error).splitlines()[-1]
        most, pay_back = most_node_hours(spec, space), expected_pay_back(plan, space.baseline)
        return cls.by(terms, plan.expected.guided, most, pay_back, unknown_because)

    @classmethod
    def by(
        cls,
        terms: JobTerms | None,
        node_hours: float | None,
        most_node_hours: float,
        pay_back: PayBack | None = None,
        unknown_because: str | None = None,
    ) -> PlannedCost:
        """By these terms; None without Slurm. `node_hours` are those expected of a guided search, None where seconds
        are unknown."""
        return cls(
            partitions=[] if terms is None else list(terms.partitions),
            billed_per_node_hour=None if terms is None else terms.billed_per_node_hour,
            usage_factor=None if terms is None else terms.usage_factor,
            billed_hours=None if terms is None else terms.billed_hours(node_hours),
            most_billed_hours=None if terms is None else terms.billed_hours(most_node_hours),
            pay_back=pay_back,
            preemption=None if terms is None else terms.preemption,
            unknown_because=unknown_because,
        )

    def lines(self, node_hours: float | None) -> Iterator[str]:
        """Lines of the plan's text."""
        if node_hours is not None:
            words = f"this search is expected to cost {format_cost(node_hours, self.billed_hours)}"
            if self.pay_back is not None:
                by = "with the first layout " if self.pay_back.hours is None else ""
                words += f", and {by}{describe_pay_back(self.pay_back, 'to pay', 'the first layout')}, as predicted"
            yield words
        if self.partitions:
            yield self._billing()
        elif self.unknown_because is not None:
            yield f"billing hours are unknown, since Slurm does not answer here: {self.unknown_because}"
        if self.preemption is not None:
            from orchestrator.diagnostics.preflight.job_terms import describe_preemption

            yield describe_preemption(self.preemption, self.partitions)

    def _billing(self) -> str:
        names, rate = ",".join(self.partitions), self.billed_per_node_hour
        if rate is None:
            return f"billing hours are unknown: Slurm does not tell which QOS the jobs in {names} have"
        factor = "" if self.usage_factor in (None, 1) else f", with the usage factor {self.usage_factor:g} of the QOS"
        return (
            f"Slurm bills {format_number(rate)} billing hours for a node-hour in {names}{factor}:"
            f" upper limit {format_number(self.most_billed_hours)} billing hours"
        )


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
    cost: PlannedCost
    notes: list[str]

    @classmethod
    def of(
        cls, plan: Plan, spec: SearchSpec, space: SearchSpace, cost: PlannedCost, top: int | None, list_rejected: bool
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
            node_hours=most_node_hours(spec, space),
            expected_node_hours=plan.expected,
            cost=cost,
            notes=plan.notes(),
        )
