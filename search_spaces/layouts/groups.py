"""Groups of ranks that communicate, by what they split: their size, and how far apart their ranks are. Standard library
only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from search_spaces.layouts.layout import DerivedNumbers, Layout
from search_spaces.layouts.mesh import RankMesh


@dataclass(frozen=True)
class RankGroups:
    """Groups of `ranks` ranks, `stride` apart, that fill blocks of consecutive ranks. All are numbers or columns."""

    ranks: Any
    stride: Any

    @property
    def block(self) -> Any:
        """Size of the block of consecutive ranks that groups fill."""
        return self.ranks * self.stride

    def leave(self, ranks_per_domain: Any) -> Any:
        """True if groups span blocks of so many ranks. The ranks of all groups fill these blocks."""
        return (self.ranks > 1) & (ranks_per_domain % self.block != 0)


def rank_groups(name: str, layouts: DerivedNumbers, order: str) -> RankGroups:
    """Groups of this name of a layout, or of a table as columns, in an order of the ranks.

    `shards` are the data- and context-parallel ranks over which a replica of the model is sharded, `replicas` the ranks
    that have the same shard, `expert_shards` those of one replica that hold the same experts.
    """
    return _GROUPS[name](layouts, order)


def _of_dimension(dim: str) -> _Reader:
    def read(layouts: Any, order: str) -> RankGroups:
        mesh = layouts.mesh_in(order)
        return RankGroups(mesh.sizes[dim], mesh.stride(dim))

    return read


def _shards(layouts: Any, order: str) -> RankGroups:
    """Distance of neighbours; a mean where pipeline stages are between context- and data-parallel ranks."""
    mesh, replicas, ranks = layouts.mesh_in(order), layouts.data_parallel_replicas, layouts.shards
    is_one = mesh.sizes["dp"] // replicas == 1
    block = is_one * mesh.block("cp") + (1 - is_one) * mesh.block("dp") // replicas
    return RankGroups(ranks, block // ranks)


def _replicas(layouts: Any, order: str) -> RankGroups:
    replicas = layouts.data_parallel_replicas
    return RankGroups(replicas, layouts.mesh_in(order).block("dp") // replicas)


def _experts(layouts: Any, order: str) -> RankGroups:
    return RankGroups(layouts.expert_parallel, expert_mesh(layouts, order).stride("ep"))


def _expert_shards(layouts: Any, order: str) -> RankGroups:
    return RankGroups(layouts.expert_shards, expert_mesh(layouts, order).stride("dp"))


_Reader = Callable[[DerivedNumbers, str], RankGroups]
_GROUPS: Mapping[str, _Reader] = {
    "tensor": _of_dimension("tp"),
    "context": _of_dimension("cp"),
    "shards": _shards,
    "replicas": _replicas,
    "pipeline": _of_dimension("pp"),
    "expert": _experts,
    "expert_shards": _expert_shards,
}
GROUP_NAMES = tuple(_GROUPS)


def group_names(has_experts: bool) -> tuple[str, ...]:
    """Names of the groups of a model with experts, or of one without."""
    return tuple(name for name in GROUP_NAMES if has_experts or not name.startswith("expert"))


def expert_mesh(layouts: Any, order: str) -> RankMesh:
    """Numbering of the ranks by the experts that they hold: those of a layer next to each other, then their copies and
    the stages, in the order of the other ranks (megatron/core/parallel_state.py, expert_decoder_rank_generator;
    torchtitan/distributed/parallel_dims.py)."""
    stages, of_layer = layouts.pipeline_parallel, layouts.ranks_of_expert_layer
    sizes = {"tp": layouts.expert_tensor_parallel, "ep": layouts.expert_parallel, "pp": stages}
    sizes["dp"] = layouts.num_gpus // stages // of_layer
    return RankMesh.ordered(order.replace("tp-", "tp-ep-"), sizes)


def leaving_groups(layout: Layout, has_experts: bool, ranks_per_domain: int) -> tuple[str, ...]:
    """Names of the groups of a layout that leave blocks of so many ranks: a node, or a link domain of several."""
    names, order = group_names(has_experts), layout.rank_order
    return tuple(name for name in names if rank_groups(name, layout, order).leave(ranks_per_domain))


def leaving_words(layout: Layout, ranks_per_domain: int) -> str:
    """The groups that leave blocks of so many ranks, in words: `data, pipeline`."""
    names = leaving_groups(layout, layout.expert_parallel > 1, ranks_per_domain)
    return ", ".join(_WORDS.get(name, name) for name in names)


_WORDS = {"shards": "data", "expert": "experts", "expert_shards": "copies of experts"}
