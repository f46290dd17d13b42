"""Fabric check: a trial of its own kind before those of the search. When it is due, and what follows from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.search.context import SearchContext
from orchestrator.search.node_hours import CHECK_TIME_LIMIT_S
from search_spaces.hardware.cluster import Cluster
from search_spaces.layouts.layout import Layout
from trials.diagnostics.fabric import FabricTimes
from trials.ledger.events import FABRIC_CHECK, EventKind, FabricCheck, SearchState
from trials.trial import Trial, TrialKind, TrialState


@dataclass(frozen=True)
class FabricProgram:
    """Measurement of a check and its consequences.

    `cluster` is the part that is checked, `trainer` the spec's section, and `conclude` gives `slow_nodes`,
    `num_available`, `findings` and `links` of a FabricCheck.
    """

    cluster: Cluster
    trainer: Mapping[str, Any]
    conclude: Callable[[FabricTimes], dict[str, Any]]


class FabricChecker:
    """Proposes the fabric check of a search, and records what follows from its times. A check that fails is reported,
    and the search goes on without: it helps to choose layouts, and says nothing about whether they run."""

    def __init__(self, context: SearchContext, program: FabricProgram | None):
        self._context = context
        self._program = program
        self._is_skipped = False

    def advance(self) -> bool:
        """Propose the check where it is due, or conclude it; True once trials may be proposed.

        Raises LaunchPostponed while the launcher cannot tell what the check costs.
        """
        if self._is_due:
            self._propose()
        check = self._context.search.fabric_check
        if check is None or not check.trial.state.is_ended:
            return check is None
        if check.trial.state is TrialState.MEASURED:
            self._conclude(check)
        elif not self._context.search.trials:
            self._warn(check.trial)
        return True

    @property
    def _is_due(self) -> bool:
        if self._program is None or self._is_skipped or not self._context.is_running:
            return False
        return self._context.search.fabric_check is None and not self._context.search.trials

    def _propose(self) -> None:
        """Propose it, if the budget has room for it and for a trial."""
        assert self._program is not None
        cluster = self._program.cluster
        layout = Layout(num_nodes=cluster.num_nodes, data_parallel=cluster.num_gpus)
        if not self._context.can_afford(layout, TrialKind.CHECK):
            needed_node_s = self._context.launcher.reservation_node_s(CHECK_TIME_LIMIT_S, cluster.num_nodes)
            self._context.log_once.warning(
                f"no fabric check: it may cost {needed_node_s / 3600:.3g} node-hours, which with a trial are"
                " more than search.budget_node_hours has left"
            )
            self._is_skipped = True
            return
        self._context.propose(Trial(FABRIC_CHECK, layout, TrialKind.CHECK))

    def _conclude(self, check: FabricCheck) -> None:
        if check.findings is not None or self._program is None or self._context.search.state is SearchState.STOPPING:
            return
        outcome, cluster = check.trial.attempts[-1].outcome, self._program.cluster
        assert outcome is not None
        try:
            times = FabricTimes.of(outcome, self._program.trainer, cluster.gpus_per_node, cluster.num_nodes)
        except ValueError as error:  # its driver had other candidates
            self._context.log_once.warning(f"the fabric check's times are not used: {error}")
            return
        self._context.event(EventKind.FABRIC_CHECK, **self._program.conclude(times))

    def _warn(self, trial: Trial) -> None:
        if (last := trial.last_attempt) is None:
            return
        words = ": ".join(filter(None, [trial.reason, *(last.excerpt or "").strip().splitlines()[-1:]]))
        folder = self._context.factory.folder.attempt(last.trial, last.attempt).path
        goes_on = "" if self._context.search.state is SearchState.STOPPING else "; the search goes on without it"
        self._context.log_once.warning(f"the fabric check failed: {words} (its logs: {folder}){goes_on}")
