"""DeepHyper's centralised Bayesian optimisation over our own candidates, by ask and tell; only this file imports it."""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from orchestrator.samplers.base import Sampler, Told, distinct, untried
from search_spaces.layout import LAYOUT_FIELDS, Layout
from trials.trial import FailureReason

# DeepHyper fits after this many successes and counts no failures: where most layouts fail, more would be random search.
_INITIAL_POINTS = 1
# Curiosity, in multiples of the surrogate's uncertainty. DeepHyper's own falls from 1.96 to 0.01 every ten asks, which
# it counts in the object; here that is a new one each time.
_KAPPA = 0.5
# Of the candidates left, DeepHyper rates at most this many at a time; more cost seconds an ask.
_RATED_POINTS = 10_000

_FAULTS_OF_THE_LAYOUT = frozenset(
    {
        FailureReason.INVALID_LAYOUT,
        FailureReason.GPU_OOM,
        FailureReason.HOST_OOM,
        FailureReason.DOMINATED,
        FailureReason.TIME_LIMIT,
        FailureReason.HANG,
        FailureReason.SCRIPT_ERROR,
        FailureReason.RESULT_INVALID,
    }
)


class DeepHyperSampler(Sampler):
    """Plain DeepHyper, as published, except that it can only name candidates of ours that were not tried.

    A search is rebuilt for every ask by telling it the whole history (tens of milliseconds), so that an ask depends
    on candidates, seed and history alone: DeepHyper's own checkpoint loses observations, and a resumed search must
    go on as the old one would. What was measured outside the candidates (a baseline) has no place among the axes
    and is not told.
    """

    name = "deephyper"

    def __init__(self, candidates: Sequence[Layout], seed: int):
        self._candidates = distinct(candidates)
        canonical = {key: layout.canonical() for key, layout in self._candidates.items()}
        self._axes = _axes(canonical.values())
        self._points = {key: _point(self._axes, layout) for key, layout in canonical.items()}
        self._seed = seed

    def ask(self, count: int, history: Sequence[Told]) -> list[Layout]:
        chosen: list[Layout] = []
        while len(chosen) < count:
            so_far = [*history, *map(Told, chosen)]
            left = untried(self._candidates, so_far)
            wanted = count - len(chosen)
            if len(left) <= wanted:
                return chosen + list(left.values())
            # One round may name a layout twice; the next one fills the gap.
            chosen += self._propose(wanted, left, so_far)
        return chosen

    def _propose(self, count: int, left: Mapping[str, Layout], history: Sequence[Told]) -> list[Layout]:
        """Between one and `count` different layouts of `left`, which holds more than `count`."""
        # As many draws as there are trials: the same seed must not repeat the same chance at every ask.
        chance = random.Random(f"{self._seed}/{len(history)}")
        layouts = {self._points[key]: layout for key, layout in left.items()}
        results = [(self._named(told.layout), _result(told)) for told in history if self._can_tell(told)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            search = _new_search(self._axes, list(layouts), chance)
            if results:
                search.tell(results)
            found = [tuple(point[name] for name in self._axes) for point in search.ask(count)]
        return [layouts[point] for point in dict.fromkeys(found)]

    def _can_tell(self, told: Told) -> bool:
        return told.layout.key in self._candidates and _teaches(told)

    def _named(self, layout: Layout) -> dict[str, int]:
        return dict(zip(self._axes, self._points[layout.key], strict=True))


def _axes(layouts: Collection[Layout]) -> dict[str, dict[Any, int]]:
    """The fields that differ between these canonical layouts, with the rank of each of their values.

    Ranks, because the surrogate's trees split a range at a random place: of accumulation 1, 2, 4 ... 256 most splits
    would fall between the last two. A field of one value would be a dimension that says nothing.
    """
    values = {name: {getattr(layout, name) for layout in layouts} for name in LAYOUT_FIELDS}
    return {
        name: {value: rank for rank, value in enumerate(sorted(found, key=_none_first))}
        for name, found in values.items()
        if len(found) > 1
    }


def _none_first(value: Any) -> tuple[bool, Any]:
    return value is not None, value


def _point(axes: Mapping[str, Mapping[Any, int]], layout: Layout) -> tuple[int, ...]:
    return tuple(ranks[getattr(layout, name)] for name, ranks in axes.items())


def _new_search(axes: Mapping[str, Mapping[Any, int]], points: Sequence[tuple[int, ...]], chance: random.Random) -> Any:
    """A CBO that draws from `points` only, writes no files and has heard of nothing yet."""
    from deephyper.hpo import CBO, HpProblem

    problem = HpProblem()
    for name, ranks in axes.items():
        problem.add_hyperparameter(list(ranks.values()), name)
    problem.set_sampling_fn(
        lambda size: [dict(zip(axes, point, strict=True)) for point in chance.sample(points, min(size, len(points)))]
    )
    return CBO(
        problem,
        random_state=chance.randrange(2**31),
        checkpoint_history_to_csv=False,
        surrogate_model="ET",
        acq_func="UCBd",
        acq_func_kwargs={"kappa": _KAPPA, "scheduler": {"type": "constant"}},
        acq_optimizer="sampling",
        acq_optimizer_kwargs={
            "n_points": _RATED_POINTS,
            "max_total_failures": -1,
            "filter_failures": "min",
            # It clips outliers otherwise, to no gain here, and logs that in a way that sets up the root logger.
            "outliers_iqr_factor": math.inf,
        },
        multi_point_strategy="qUCBd",
        n_initial_points=_INITIAL_POINTS,
    )


def most_promising(surrogate: Any, values: Mapping[int, float], left: Sequence[int], seed: int) -> int:
    """Which of the candidates `left`, named by their numbers, has the largest expected improvement by this surrogate.

    `values` are those known, larger is better. The surrogate is a scikit-learn regressor over the numbers; it is asked
    for costs, the negative of a value.
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


def _teaches(told: Told) -> bool:
    """Whether it says something about the layout: a lost node or a cancelled trial does not."""
    return told.value is not None or told.reason in _FAULTS_OF_THE_LAYOUT


def _result(told: Told) -> float | str:
    """DeepHyper's objective, which it scales itself to 0 ... 1: the value as it is, or `F_<reason>`.

    Its logarithm was tried on the measured tables and made no difference. It knows no upper bounds, and takes a failure
    for as bad as the worst that was measured: a layout's bound, a few percent above its speed, is nearer.
    """
    if told.value is not None:
        return told.value
    return f"F_{told.reason}" if told.at_most is None else told.at_most
