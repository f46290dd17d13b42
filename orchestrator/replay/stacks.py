"""Result of an experiment of two software stacks (`search.against`): each layout with both, and what differs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from orchestrator.config.answer import Answer, AnswerPart
from orchestrator.config.spec import SearchSpec
from orchestrator.replay.software import FieldPair, software_differences
from search_spaces.layouts.settings import IMAGE
from trials.analysis.ranked_layout import RankedLayout, ranked_layouts
from trials.analysis.ranking import in_objective_unit, speed_of
from trials.analysis.stack_pairs import PairedRatio, paired_ratio, paired_runs
from trials.ledger.events import SearchRecord
from trials.trial import LowerStrEnum


class StackVerdict(LowerStrEnum):
    """The other software of an experiment, compared with the search's own."""

    FASTER = "faster"
    """Faster with the other software; the interval excludes 1."""
    SLOWER = "slower"
    """Slower with the other software; the interval excludes 1."""
    UNDECIDED = "undecided"
    """The interval contains 1."""
    NOT_MEASURED = "not_measured"
    """There is no round of which the runs of both count."""


class StackSide(AnswerPart):
    """A layout's measurement with one software stack."""

    trial: str
    value: float
    """The objective in its own unit, over its runs."""
    runs: int
    """Number of runs that count."""


class StackLayout(AnswerPart):
    """A layout of an experiment: A with the search's own software, B with the other one. Null where not measured."""

    layout_key: str
    """Without settings of the software."""
    a: StackSide | None
    b: StackSide | None
    ratio: float | None
    """Speed of B over A, the mean over pairs of runs."""
    ratio_low: float | None
    """Lower end of its 95 % interval."""
    ratio_high: float | None
    pairs: int
    """Number of pairs of runs."""
    verdict: StackVerdict


class ExperimentAnswer(Answer):
    """Printed by compare of one search: an experiment of two software stacks (`search.against`)."""

    schema_: Literal["parlay.experiment/1"] = "parlay.experiment/1"
    search_id: str
    against: str
    """The other software: a Python or an image."""
    layouts: list[StackLayout]
    software: list[FieldPair]
    """Fields of the fingerprint that differ, the most relevant first."""


def stack_comparison(search: SearchRecord, spec: SearchSpec) -> ExperimentAnswer | None:
    """The comparison by this record so far; None for a search that is no experiment."""
    against = spec.search.against
    if against is None:
        return None
    sides: dict[str, dict[bool, RankedLayout]] = {
        trial.layout.with_software({}).key: {} for trial in search.trials if trial.state.is_ended
    }
    for layout in ranked_layouts(search.trials, spec.global_batch_size):
        sides.setdefault(layout.layout.with_software({}).key, {})[bool(layout.layout.of_trial.software)] = layout
    return ExperimentAnswer(
        search_id=search.search_id,
        against=against,
        layouts=[_stack_layout(key, both.get(False), both.get(True), spec) for key, both in sides.items()],
        software=_software(sides.values(), spec),
    )


def _software(sides: Iterable[Mapping[bool, RankedLayout]], spec: SearchSpec) -> list[FieldPair]:
    """Differences of the first layout that was measured with both."""
    container = spec.launcher.slurm.container
    for both in sides:
        if len(both) == 2:
            image = both[True].layout.of_trial.software.get(IMAGE)
            images = [FieldPair(field=IMAGE, a=container.image, b=image)] if image and container else []
            return [*images, *software_differences(_fingerprint(both[False]), _fingerprint(both[True]))]
    return []


def _fingerprint(layout: RankedLayout) -> Mapping[str, Any]:
    last = layout.first.last_attempt
    return last.outcome.fingerprint if last and last.outcome else {}


def _stack_layout(key: str, own: RankedLayout | None, other: RankedLayout | None, spec: SearchSpec) -> StackLayout:
    ratio = None
    if own is not None and other is not None:
        ratio = paired_ratio(paired_runs(own, other, spec.objective))
    a, b = (None if side is None else _stack_side(side, spec) for side in (own, other))
    return StackLayout(
        layout_key=key,
        a=a,
        b=b,
        ratio=None if ratio is None else ratio.value,
        ratio_low=None if ratio is None else ratio.low,
        ratio_high=None if ratio is None else ratio.high,
        pairs=0 if ratio is None else ratio.pairs,
        verdict=_verdict(ratio),
    )


def _verdict(ratio: PairedRatio | None) -> StackVerdict:
    if ratio is None:
        return StackVerdict.NOT_MEASURED
    if ratio.low > 1:
        return StackVerdict.FASTER
    return StackVerdict.SLOWER if ratio.high < 1 else StackVerdict.UNDECIDED


def _stack_side(side: RankedLayout, spec: SearchSpec) -> StackSide:
    value = in_objective_unit(speed_of(side, spec.objective).value, spec.objective)
    return StackSide(trial=side.trial, value=value, runs=len(side.counted))
