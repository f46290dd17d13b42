"""Cost of a planned search: as Slurm bills it, the training that pays it back, and preemption of its jobs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dashboards.cost_text import describe_pay_back, format_cost
from dashboards.trial_text import format_number
from orchestrator.planning.pay_back import expected_pay_back
from orchestrator.planning.plan import Plan
from trials.analysis.search_cost import PayBack

if TYPE_CHECKING:
    from orchestrator.config.spec import SearchSpec
    from orchestrator.preflight.job_terms import JobTerms
    from search_spaces.search_space import SearchSpace
    from slurm.preemption import Preemption


@dataclass(frozen=True)
class PlannedCost:
    """Cost of a search before it begins.

    `node_hours` are those expected of a guided search, None where seconds are unknown; `most_node_hours` the upper
    limit. `terms` are None without Slurm, and where it does not answer (`unknown_because`).
    """

    node_hours: float | None
    most_node_hours: float
    pay_back: PayBack | None
    terms: JobTerms | None = None
    unknown_because: str | None = None

    @classmethod
    def of(cls, plan: Plan, spec: SearchSpec, space: SearchSpace) -> PlannedCost:
        """The cost; queries Slurm where the search's jobs would run under it."""
        from orchestrator.cli.upper_limit import most_node_hours

        terms, unknown_because = None, None
        if spec.launcher.uses_slurm:
            from orchestrator.preflight.job_terms import job_terms
            from slurm.interface import SlurmUnreachable

            try:
                terms = job_terms(spec, space)
            except SlurmUnreachable as error:
                unknown_because = str(error).splitlines()[-1]
        pay_back = expected_pay_back(plan, space.baseline)
        return cls(plan.expected.guided, most_node_hours(spec, space), pay_back, terms, unknown_because)

    def to_json(self) -> dict[str, Any]:
        """The contract's `cost` of a plan."""
        terms = self.terms
        return {
            "partitions": [] if terms is None else list(terms.partitions),
            "billed_per_node_hour": None if terms is None else terms.billed_per_node_hour,
            "usage_factor": None if terms is None else terms.usage_factor,
            "billed_hours": None if terms is None else terms.billed_hours(self.node_hours),
            "most_billed_hours": None if terms is None else terms.billed_hours(self.most_node_hours),
            "pay_back": None if self.pay_back is None else self.pay_back.to_json(),
            "preemption": None if terms is None or terms.preemption is None else preemption_json(terms.preemption),
        }

    def lines(self) -> Iterator[str]:
        """Lines of the plan's text."""
        if self.node_hours is not None:
            billed = None if self.terms is None else self.terms.billed_hours(self.node_hours)
            words = f"this search is expected to cost {format_cost(self.node_hours, billed)}"
            if self.pay_back is not None:
                by = "with the first layout " if self.pay_back.hours is None else ""
                words += f", and {by}{describe_pay_back(self.pay_back, 'to pay', 'the first layout')}, as predicted"
            yield words
        if self.terms is not None:
            yield from _terms_lines(self.terms, self.most_node_hours)
        elif self.unknown_because is not None:
            yield f"billing hours are unknown, since Slurm does not answer here: {self.unknown_because}"


def preemption_json(preemption: Preemption) -> dict[str, Any]:
    """The contract's `preemption`."""
    return {
        "by": preemption.by.value,
        "preemptors": list(preemption.preemptors),
        "mode": preemption.mode,
        "grace_time_s": preemption.grace_time_s,
    }


def _terms_lines(terms: JobTerms, most_node_hours: float) -> Iterator[str]:
    names = ",".join(terms.partitions)
    if terms.billed_per_node_hour is None:
        yield f"billing hours are unknown: Slurm does not tell which QOS the jobs in {names} have"
    else:
        factor = "" if terms.usage_factor in (None, 1) else f", with the usage factor {terms.usage_factor:g} of the QOS"
        rate, most = terms.billed_per_node_hour, terms.billed_hours(most_node_hours)
        yield (
            f"Slurm bills {format_number(rate)} billing hours for a node-hour in {names}{factor}:"
            f" upper limit {format_number(most)} billing hours"
        )
    if terms.preemption is not None:
        from orchestrator.preflight.job_terms import describe_preemption

        yield describe_preemption(terms.preemption, terms.partitions)
