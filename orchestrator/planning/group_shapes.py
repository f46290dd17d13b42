"""Group shapes of a search's layouts, for the fabric check. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from search_spaces.layouts.groups import group_names, rank_groups
from search_spaces.layouts.layout import Layout
from search_spaces.layouts.table import LayoutTable
from trials.diagnostics.calibration import Collective
from trials.diagnostics.fabric import MAX_SHAPES, GroupShape

_GATHERS = (Collective.ALL_GATHER, Collective.REDUCE_SCATTER)
_OF_CONTEXT = {
    "p2p": (Collective.RING_SHIFT,),
    "all_gather": _GATHERS,
    "a2a": (Collective.ALL_TO_ALL,),
    "a2a_p2p": (Collective.ALL_TO_ALL, Collective.RING_SHIFT),
}


def group_shapes(layouts: Iterable[Layout], num_gpus: int, at_most: int = MAX_SHAPES) -> list[GroupShape]:
    """Group shapes of these layouts that fit `num_gpus` ranks, those of most layouts first, with their collectives."""
    found, of_layout = LayoutTable.of(layouts).answers(lambda layout: tuple(dict.fromkeys(_exchanges(layout))))
    counts: Counter[tuple[int, int]] = Counter()
    kinds: dict[tuple[int, int], Counter[Collective]] = defaultdict(Counter)
    for index, count in Counter(of_layout.tolist()).items():
        counts.update({shape: count for shape, _ in found[index]})
        for shape, kind in found[index]:
            kinds[shape][kind] += count
    fitting = [shape for shape, _ in counts.most_common() if shape[0] * shape[1] <= num_gpus]
    return [GroupShape(*shape, tuple(kind for kind, _ in kinds[shape].most_common())) for shape in fitting[:at_most]]


def _exchanges(layout: Layout) -> Iterator[tuple[tuple[int, int], Collective]]:
    """Sizes and strides of a layout's groups, with each collective that they run."""
    for name in group_names(layout.expert_parallel > 1):
        groups = rank_groups(name, layout, layout.rank_order)
        if groups.ranks > 1:
            yield from (((groups.ranks, groups.stride), kind) for kind in _kinds(name, layout))


def _kinds(group: str, layout: Layout) -> tuple[Collective, ...]:
    """Collectives that carry most bytes in these groups of a layout, in a fixed order."""
    if group == "pipeline":
        return (Collective.RING_SHIFT,)
    if group == "context":
        return _OF_CONTEXT[layout.context_transport]
    if group == "expert":
        return _GATHERS if layout.expert_dispatcher == "allgather" else (Collective.ALL_TO_ALL,)
    gathers = layout.sequence_parallel if group == "tensor" else group != "replicas" and layout.zero_stage > 0
    return _GATHERS if gathers else (Collective.ALL_REDUCE,)
