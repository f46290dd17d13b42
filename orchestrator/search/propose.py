"""Proposal of trials: the baseline, the sampler's layouts, reruns after a suspect run, repeats of the finalists."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile

from orchestrator.search.context import SearchContext
from orchestrator.search.index import SearchIndex
from orchestrator.search.samplers.base import Sampler
from orchestrator.search.stopping import remaining_layouts
from search_spaces.layouts.layout import Layout
from trials.analysis.final_rounds import FinalRounds, FinalsTerms, choose_finalists, describe_finals_end
from trials.analysis.finals import Finals
from trials.analysis.setting_failures import SettingValue
from trials.analysis.stack_pairs import in_pairs
from trials.ledger.events import EndReason
from trials.trial import Trial, TrialKind, TrialState


class TrialProposer:
    """Proposes trials for free slots, and knows the reason why no more layouts follow."""

    def __init__(self, context: SearchContext, make_sampler: Callable[[frozenset[SettingValue]], Sampler]):
        self._context = context
        self._make_sampler = make_sampler
        self._made: tuple[frozenset[SettingValue], Sampler] | None = None
        self._exhausted_without: frozenset[SettingValue] | None = None
        self._converged_at: int | None = None
        self._had_layouts_at: int | None = None

    @property
    def _sampler(self) -> Sampler:
        """The sampler of the candidates without a setting that fails, made when one is first asked for, and anew after
        each such value."""
        failing = self._context.index.setting_failures.failing
        if self._made is None or self._made[0] != failing:
            self._made = failing, self._make_sampler(failing)
        return self._made[1]

    def propose(self) -> None:
        """Fill the free slots. Nothing is proposed while a trial waits for room in the budget.

        A suspect run is measured again at once. Repeats of the finalists follow once no more layouts are proposed and
        all trials have ended.
        """
        unended = self._context.index.unended
        active, free = len(unended), self._context.limits.parallel_trials - len(self._context.index.in_flight)
        if not self._context.is_running or free <= 0 or any(trial.state is TrialState.PROPOSED for trial in unended):
            self._context.callbacks.grant_slots(active, 0)
            return
        repeats = self.next_repeats()[:free]
        granted = self._context.callbacks.grant_slots(active, len(repeats) + self._max_new_layouts(free - len(repeats)))
        # The sampler is asked for no more than may start. With nothing in flight it is asked once for at least one, so
        # that a search waiting for its quota learns whether anything is left.
        least = 0 if active or self._had_layouts_at == self._context.search.last_seq else 1
        layouts = self._next_layouts(max(granted - len(repeats), least))
        if layouts:
            self._had_layouts_at = self._context.search.last_seq
        if not repeats and not layouts:
            repeats = self.next_repeats()[:free]  # due as soon as the sampler has no more layouts
        for layout in repeats[:granted]:
            self._propose_trial(layout, TrialKind.REPEAT)
        for layout in layouts[: max(granted - len(repeats), 0)]:
            self._propose_trial(layout, TrialKind.SEARCH)

    def next_repeats(self) -> list[Layout]:
        """Reruns after a suspect run, else the due repeats of finalists; no repeats while a layout of the search is
        running."""
        index = self._context.index
        if again := self._pending_reruns():
            return again
        if index.before_repeats.unended or self.proposal_end_reason() is None:
            return []
        entrants, finals = self._entrants(), self._finals
        due = self._due_repeats(entrants, finals)
        if not due and (end := finals.end([layout.key for layout in entrants])):
            self._context.log_once.info(describe_finals_end(end))
        return due

    def _pending_reruns(self) -> list[Layout]:
        """Layouts whose only run was on a suspect node, in the order of these runs. Each is measured once more."""
        index = self._context.index
        again = {trial.layout.key for trial in index.measured_again}
        suspects = (trial.layout for trial in index.suspects if trial.layout.key not in again)
        return [layout for layout in suspects if self._context.can_afford(layout)]

    @property
    def _finals(self) -> FinalRounds:
        """The finals of the search so far."""
        index, limits, goal = self._context.index, self._context.limits, self._context.goal
        counts = limits.finals, limits.finalist_repeats
        terms = FinalsTerms(*counts, goal.objective, goal.baseline_keys, goal.headroom, limits.are_paired)
        keys = {trial.layout.key: trial.layout for trial in index.repeats}
        return FinalRounds([trial for layout in keys.values() for trial in index.runs_of(layout)], terms)

    def _entrants(self) -> list[Layout]:
        """Layouts to measure again, by the ranking before the first repeat; of an experiment those of which both sides
        were measured, next to each other."""
        limits, ranking = self._context.limits, self._context.index.before_repeats.ranking
        if not limits.finalists:
            return []
        chosen = choose_finalists(ranking(), limits.finalists, self._context.goal.baseline_keys)
        return in_pairs(chosen) if limits.are_paired else list(chosen)

    def _due_repeats(self, entrants: Sequence[Layout], finals: FinalRounds) -> list[Layout]:
        """Entrants to measure next, in this order. A round starts when the previous one has ended; who is in it follows
        from those before."""
        limits, affordable = self._context.limits, self._context.can_afford
        going = [layout for layout in entrants if not any(map(_has_failed, finals.repeats.get(layout.key, ())))]
        if not self._context.index.in_flight:  # attempts in flight release what they reserved and did not use
            going = [layout for layout in going if affordable(layout)]
        for number in range(limits.finalist_repeats):  # rounds that have ended
            if not finals.has_ended(number):
                return []
            if number > 0 and limits.finals is Finals.UNTIL_DECIDED:
                next_round = finals.standing(number).next_round
                going = [layout for layout in going if layout.key in next_round]
            if limits.are_paired:
                going = in_pairs(going, is_reversed=number % 2 == 0)  # the first runs were a round, too
            if due := [layout for layout in going if len(finals.repeats.get(layout.key, ())) <= number]:
                return list(takewhile(affordable, due))
        return []

    def proposal_end_reason(self) -> EndReason | None:
        """Reason why no more layouts will be proposed, repeats aside; None while some may be."""
        before_repeats = self._context.index.before_repeats
        if before_repeats.has_cut_short_trial or not self._context.fits_budget(before_repeats):
            return EndReason.BUDGET
        if remaining_layouts(before_repeats.num_layouts, self._context.limits) <= 0:
            return EndReason.MAX_TRIALS
        if self._sampler_end_reason is not None:
            return self._sampler_end_reason
        if not self._proposing_is_over:
            return None
        has_converged = self._sampler.has_converged(before_repeats.feedback())
        return EndReason.CONVERGED if has_converged else EndReason.SPACE_EXHAUSTED

    def _propose_trial(self, layout: Layout, kind: TrialKind) -> None:
        name = f"t{len(self._context.search.trials) + 1:04d}"
        self._context.propose(Trial(name, layout, kind, prediction=self._context.callbacks.predict(layout)))

    def _next_layouts(self, free: int) -> list[Layout]:
        """The baseline first, then the sampler's layouts."""
        if (count := self._max_new_layouts(free)) <= 0:
            return []
        index = self._context.index
        first = [layout for layout in self._context.goal.initial_layouts if not index.was_tried(layout)][:count]
        if first:
            return first
        known = index.feedback()
        if self._sampler.has_converged(known):
            self._converged_at = self._context.search.last_seq
            return []
        layouts = _new_layouts(self._sampler.ask(count, known), index)
        if not layouts:
            self._exhausted_without = index.setting_failures.failing
        return layouts

    def _max_new_layouts(self, free: int) -> int:
        """Number of layouts that may still be proposed, as far as it is known without asking the sampler."""
        if self._sampler_end_reason is not None or self._proposing_is_over or not self._context.has_budget():
            return 0
        return max(0, min(free, remaining_layouts(self._context.index.num_layouts, self._context.limits)))

    @property
    def _sampler_end_reason(self) -> EndReason | None:
        """Reason why the sampler has no more layouts, if it said so. CONVERGED holds only for the current record,
        SPACE_EXHAUSTED until another value of a setting fails, or one runs after all."""
        if self._converged_at == self._context.search.last_seq:
            return EndReason.CONVERGED
        is_exhausted = self._exhausted_without == self._context.index.setting_failures.failing
        return EndReason.SPACE_EXHAUSTED if is_exhausted else None

    @property
    def _proposing_is_over(self) -> bool:
        """True if the record alone says that no more layouts are proposed, whatever this driver knows of the space."""
        before_repeats = self._context.index.before_repeats
        return before_repeats is not self._context.index or before_repeats.has_cut_short_trial


def _new_layouts(layouts: Sequence[Layout], index: SearchIndex) -> list[Layout]:
    """Layouts not tried yet, each once. A sampler that only repeats itself has run out."""
    return list({layout.key: layout for layout in layouts if not index.was_tried(layout)}.values())


def _has_failed(trial: Trial) -> bool:
    return trial.state.is_ended and trial.state is not TrialState.MEASURED
