"""Which layouts are tried next: what runs today, what the sampler asks for, second looks, the finalists' repeats."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.samplers.base import Sampler
from orchestrator.search import finalists
from orchestrator.search import stopping as rules
from orchestrator.search.context import Course
from orchestrator.search.index import Standing
from search_spaces.layouts.layout import Layout
from trials.ledger.events import EndReason, EventKind
from trials.trial import TrialKind, TrialState


class Proposing:
    """Fills a search's free slots with trials, and knows why no more layouts follow."""

    def __init__(self, course: Course, sampler: Sampler):
        self._course = course
        self._sampler = sampler
        self._space_exhausted = False
        self._converged_at: int | None = None
        self._knows_more_at: int | None = None

    def propose(self) -> None:
        """Fill the free slots; nothing is proposed while a trial still waits for room in the budget.

        A suspect run is measured again at once; repeats of the finalists follow once no more layouts are proposed and
        all that were have ended.
        """
        unended = self._course.now.unended
        held, free = len(unended), self._course.limits.parallel_trials - len(self._course.now.in_flight)
        if not self._course.goes_on or free <= 0 or any(trial.state is TrialState.PROPOSED for trial in unended):
            self._course.hooks.may_begin(held, 0)
            return
        repeats = self.next_repeats()[:free]
        granted = self._course.hooks.may_begin(held, len(repeats) + self._most_layouts(free - len(repeats)))
        # The sampler is asked for no more than may begin; where nothing is in flight at least, once, whether it knows
        # more: a search may wait long for its share.
        least = 0 if held or self._knows_more_at == self._course.search.last_seq else 1
        layouts = self._next_layouts(max(granted - len(repeats), least))
        if layouts:
            self._knows_more_at = self._course.search.last_seq
        if not repeats and not layouts:
            repeats = self.next_repeats()[:free]  # due as soon as the sampler has said that it knows no more
        for layout in repeats[:granted]:
            self._propose_trial(layout, TrialKind.FINALIST)
        for layout in layouts[: max(granted - len(repeats), 0)]:
            self._propose_trial(layout, TrialKind.SEARCH)

    def next_repeats(self) -> list[Layout]:
        """Second looks at suspect runs; else the finalists' repeats that are due, none while a layout of the search
        itself is being measured."""
        now = self._course.now
        if again := finalists.second_looks_due(now, self._course.can_pay_for):
            return again
        if now.searched.unended or self.proposal_end_reason() is None:
            return []
        chosen = finalists.choose(now, self._course.limits.finalists, self._course.goal.first_keys)
        return finalists.due(now, chosen, self._course.limits.finalist_repeats, self._course.can_pay_for)

    def proposal_end_reason(self) -> EndReason | None:
        """Why no more layouts will be proposed, whatever their repeats cost; None while some may be."""
        searched = self._course.now.searched
        if searched.is_cut_short or not self._course.fits_budget(searched):
            return EndReason.BUDGET
        if rules.layouts_left(searched.num_layouts, self._course.limits) <= 0:
            return EndReason.MAX_TRIALS
        if self._sampler_end_reason is not None:
            return self._sampler_end_reason
        if not self._has_ended_proposing:
            return None
        has_converged = self._sampler.has_converged(searched.told())
        return EndReason.CONVERGED if has_converged else EndReason.SPACE_EXHAUSTED

    def _propose_trial(self, layout: Layout, kind: TrialKind) -> None:
        name = f"t{len(self._course.search.trials) + 1:04d}"
        self._course.event(
            EventKind.TRIAL_PROPOSED,
            trial=name,
            layout=layout.to_json(),
            kind=kind.value,
            prediction=self._course.hooks.predict(layout),
        )

    def _next_layouts(self, free: int) -> list[Layout]:
        """What the user runs today comes first, then what the sampler asks for."""
        if (count := self._most_layouts(free)) <= 0:
            return []
        now = self._course.now
        first = [layout for layout in self._course.goal.first if not now.was_tried(layout)][:count]
        if first:
            return first
        known = now.told()
        if self._sampler.has_converged(known):
            self._converged_at = self._course.search.last_seq
            return []
        layouts = _new_layouts(self._sampler.ask(count, known), now)
        self._space_exhausted = not layouts
        return layouts

    def _most_layouts(self, free: int) -> int:
        """How many more layouts may be proposed now, as far as that is known without asking the sampler."""
        if self._sampler_end_reason is not None or self._has_ended_proposing or not self._course.has_budget():
            return 0
        return max(0, min(free, rules.layouts_left(self._course.now.num_layouts, self._course.limits)))

    @property
    def _sampler_end_reason(self) -> EndReason | None:
        """Why the sampler knows no more layouts, if it said so; that it has converged, of the record as it is now."""
        if self._converged_at == self._course.search.last_seq:
            return EndReason.CONVERGED
        return EndReason.SPACE_EXHAUSTED if self._space_exhausted else None

    @property
    def _has_ended_proposing(self) -> bool:
        """Whether the record itself says that no more layouts are proposed, whatever this driver knows of the space."""
        searched = self._course.now.searched
        return searched is not self._course.now or searched.is_cut_short


def _new_layouts(layouts: Sequence[Layout], standing: Standing) -> list[Layout]:
    """Those that were not tried yet, each once: a sampler that repeats itself has run out."""
    return list({layout.key: layout for layout in layouts if not standing.was_tried(layout)}.values())
