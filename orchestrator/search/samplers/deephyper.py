"""DeepHyper's centralised Bayesian optimisation over our candidates, by ask and tell. The only file that imports it."""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.search.samplers.base import Sampler, TrialFeedback, distinct, untried
from search_spaces.layouts.layout import DERIVED, Layout
from search_spaces.layouts.settings import as_numbers
from trials.failure_policy import policy_of

# Upper limit of the candidates that DeepHyper rates at a time; more would take seconds per ask.
_MAX_RATED = 10_000


@dataclass(frozen=True)
class DeepHyperSettings:
    """Settings of DeepHyper; None is its own default.

    It fits after `initial_points` successes and does not count failures: where most layouts fail, its default (twice
    the number of axes, plus one) is random search. `kappa` is the exploration weight, in standard deviations of the
    surrogate; its default falls from 1.96 to 0.01 every ten asks. `derived_axes` includes axes that follow from the
    others. `ranks` numbers the values of an axis from 0: its trees split a range at a random place, and of 1, 2, 4 ...
    256 most splits would fall between the last two.
    """

    initial_points: int | None = None
    kappa: float | None = None
    derived_axes: bool = False
    ranks: bool = False


DEFAULTS = DeepHyperSettings()
"""Settings of the Frontier study (Dash et al., arXiv 2312.12705), the baseline for guided searches."""


class DeepHyperSampler(Sampler):
    """Plain DeepHyper, restricted to untried candidates.

    Every ask rebuilds the search and tells it the whole history (tens of milliseconds), so that an ask depends on
    candidates, seed and history alone: DeepHyper's checkpoints lose observations, and a resumed search must continue as
    the old one would. Layouts that are not candidates (a baseline) have no place on the axes and are left out.
    """

    name = "deephyper"

    def __init__(self, candidates: Sequence[Layout], seed: int, settings: DeepHyperSettings = DEFAULTS):
        self._settings = settings
        self._candidates = distinct(candidates)
        canonical = {key: layout.canonical() for key, layout in self._candidates.items()}
        self._axes = _axes(list(canonical.values()), settings)
        self._points = {key: _point(self._axes, layout) for key, layout in canonical.items()}
        self._seed = seed

    def ask(self, count: int, history: Sequence[TrialFeedback]) -> list[Layout]:
        chosen: list[Layout] = []
        while len(chosen) < count:
            so_far = [*history, *map(TrialFeedback, chosen)]
            left = untried(self._candidates, so_far)
            wanted = count - len(chosen)
            if len(left) <= wanted:
                return chosen + list(left.values())
            # One round may return a layout twice; the next one fills the gap.
            chosen += self._propose(wanted, left, so_far)
        return chosen

    def _propose(self, count: int, left: Mapping[str, Layout], history: Sequence[TrialFeedback]) -> list[Layout]:
        """Return between one and `count` different layouts of `left`, which holds more than `count`."""
        # The history's length is part of the seed, so that every ask draws different candidates.
        rng = random.Random(f"{self._seed}/{len(history)}")
        layouts = {self._points[key]: layout for key, layout in left.items()}
        results = [
            (self._values_by_axis(feedback.layout), _result(feedback))
            for feedback in history
            if self._is_informative_candidate(feedback)
        ]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            kappa = _kappa(self._settings, len(self._axes), len(history))
            search = _new_search(self._axes, list(layouts), rng, self._settings, kappa)
            if results:
                search.tell(results)
            found = [tuple(point[name] for name in self._axes) for point in search.ask(count)]
        return [layouts[point] for point in dict.fromkeys(found)]

    def _is_informative_candidate(self, feedback: TrialFeedback) -> bool:
        return feedback.layout.key in self._candidates and _is_informative(feedback)

    def _values_by_axis(self, layout: Layout) -> dict[str, Any]:
        return dict(zip(self._axes, self._points[layout.key], strict=True))


def _axes(layouts: Sequence[Layout], settings: DeepHyperSettings) -> dict[str, dict[Any, Any]]:
    """Fields that differ between these canonical layouts, with DeepHyper's value for each of theirs.

    A field with a single value would be a dimension without information.
    """
    each = [_values(layout) for layout in layouts]
    values = {name: {row.get(name) for row in each} for name in dict.fromkeys(name for row in each for name in row)}
    axes = {
        name: {value: rank for rank, value in enumerate(sorted(found, key=_in_order))}
        for name, found in values.items()
        if len(found) > 1
    }
    if not settings.derived_axes:
        axes = _without_derived_axes(axes, layouts)
    return axes if settings.ranks else {name: _with_plain_numbers(ranks) for name, ranks in axes.items()}


def _values(layout: Layout) -> dict[str, Any]:
    """Values by axis; those of settings as numbers where they are such."""
    return {name: as_numbers([v])[0] if isinstance(v, str) else v for name, v in layout.axis_values.items()}


def _in_order(value: Any) -> tuple[bool, bool, Any]:
    return value is not None, isinstance(value, str), value


def _without_derived_axes(axes: dict[str, dict[Any, Any]], layouts: Sequence[Layout]) -> dict[str, dict[Any, Any]]:
    """Drop the axes that follow from the others: data-parallel ranks, and micro-batches where the batch is fixed."""
    for derived in DERIVED:
        fewer = {name: ranks for name, ranks in axes.items() if name != derived}
        if len({_point(fewer, layout) for layout in layouts}) == len(layouts):
            axes = fewer
    return axes


def _with_plain_numbers(ranks: dict[Any, int]) -> dict[Any, Any]:
    """Keep numbers as they are, and words and switches as ranks; numbers beside words are ranked with them."""
    has_words = any(isinstance(value, str) for value in ranks) or (None in ranks and 0 in ranks)
    return {value: value if type(value) is int and not has_words else rank for value, rank in ranks.items()}


def _point(axes: Mapping[str, Mapping[Any, Any]], layout: Layout) -> tuple[Any, ...]:
    values = _values(layout)
    return tuple(codes[values.get(name)] for name, codes in axes.items())


def _kappa(settings: DeepHyperSettings, num_axes: int, num_asked: int) -> float:
    """Exploration weight of this ask. DeepHyper lowers it over the asks of one object, but here each ask has a new
    object."""
    if settings.kappa is not None:
        return settings.kappa
    random_asks = 2 * num_axes + 1 if settings.initial_points is None else settings.initial_points
    fallen = (num_asked - 1 - random_asks) % _KAPPA_PERIOD / _KAPPA_PERIOD
    return float(_KAPPA_FIRST * (_KAPPA_LAST / _KAPPA_FIRST) ** fallen)


_KAPPA_FIRST, _KAPPA_LAST, _KAPPA_PERIOD = 1.96, 0.01, 10


def _new_search(
    axes: Mapping[str, Mapping[Any, Any]],
    points: Sequence[tuple[Any, ...]],
    rng: random.Random,
    settings: DeepHyperSettings,
    kappa: float,
) -> Any:
    """New CBO that draws from `points` only, writes no files and has no observations."""
    from deephyper.hpo import CBO, HpProblem

    problem = HpProblem()
    for name, codes in axes.items():
        problem.add_hyperparameter(list(codes.values()), name)
    problem.set_sampling_fn(
        lambda size: [dict(zip(axes, point, strict=True)) for point in rng.sample(points, min(size, len(points)))]
    )
    return CBO(
        problem,
        random_state=rng.randrange(2**31),
        checkpoint_history_to_csv=False,
        surrogate_model="ET",
        acq_func="UCBd",
        acq_func_kwargs={"kappa": kappa, "scheduler": {"type": "constant"}},
        acq_optimizer="sampling",
        acq_optimizer_kwargs={
            "n_points": _MAX_RATED,
            "max_total_failures": -1,
            "filter_failures": "min",
            # By default it clips outliers, without a gain here, and its log call configures the root logger.
            "outliers_iqr_factor": math.inf,
        },
        multi_point_strategy="qUCBd",
        n_initial_points=settings.initial_points,
    )


def import_deephyper() -> None:
    """Import DeepHyper, which takes seconds. Raises ImportError."""
    import deephyper.hpo  # noqa: F401


def most_promising(surrogate: Any, values: Mapping[int, float], left: Sequence[int], seed: int) -> int:
    """The candidate of `left`, named by number, with the largest expected improvement under this surrogate.

    `values` are the known ones, larger is better. The surrogate is a scikit-learn regressor over the numbers that
    predicts costs, the negatives of values.
    """
    from deephyper.hpo import CBO, HpProblem

    problem = HpProblem()
    problem.add_hyperparameter((0, max(*left, *values)), "candidate")
    problem.set_sampling_fn(lambda size: [{"candidate": number} for number in left])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        search = CBO(
            problem,
            random_state=seed,
            checkpoint_history_to_csv=False,
            surrogate_model=surrogate,
            acq_func="EI",
            acq_func_kwargs={"xi": 0.0, "scheduler": {"type": "constant"}},
            acq_optimizer="sampling",
            acq_optimizer_kwargs={"n_points": len(left), "max_total_failures": -1, "outliers_iqr_factor": math.inf},
            objective_scaler="identity",
            n_initial_points=1,
        )
        search.tell([({"candidate": number}, value) for number, value in values.items()])
        return int(search.ask(1)[0]["candidate"])


def _is_informative(feedback: TrialFeedback) -> bool:
    """True if it says something about the layout; a lost node or a cancelled trial does not."""
    policy = policy_of(feedback.reason)
    return feedback.value is not None or policy.may_be_layout_fault or policy.bounds_throughput


def _result(feedback: TrialFeedback) -> float | str:
    """DeepHyper's objective, which it scales to 0 ... 1: the value, or `F_<reason>`.

    Taking its logarithm made no difference on the measured tables. DeepHyper has no upper bounds, and takes a failure
    as being as bad as the worst measurement: a pruned layout's bound, a few percent above its speed, is closer.
    """
    if feedback.value is not None:
        return feedback.value
    return f"F_{feedback.reason}" if feedback.upper_bound is None else feedback.upper_bound
