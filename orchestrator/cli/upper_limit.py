"""Upper limit of a search's cost, before it begins."""

from __future__ import annotations

from orchestrator.config.spec import SearchSpec
from search_spaces.search_space import SearchSpace
from trials.files.text import plural


def describe_upper_limit(spec: SearchSpec, space: SearchSpace) -> str:
    """Upper limit of the search's cost, before it begins."""
    trials, repeats = _most_trials(spec, space)
    words = plural(trials, "trial") + (f" and {plural(repeats, 'repeat')}" if repeats else "")
    return f"{words}: upper limit {most_node_hours(spec, space):.2f} node-hours, excluding retries"


def most_node_hours(spec: SearchSpec, space: SearchSpace) -> float:
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
