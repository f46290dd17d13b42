"""Counts of weights that FSDP2 shards as DTensors, for the proof of engines that others wrote."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.distributed.tensor import DTensor


class ShardCounts:
    """Elements of a chunk's parameters on this rank, each counted by one tensor-parallel rank: those `trained`, and all
    that are `held` between a forward and its backward pass, 0 before the first. `layers` begins the names of the
    layers' parameters.

    FSDP2 keeps the weights outside of the layers gathered for the backward pass, which begins with them, with ZeRO 3,
    too (torchtitan/distributed/fsdp.py; accelerate/utils/fsdp_utils.py); they count as whole only where the layers do.
    """

    def __init__(self, chunk: nn.Module, layers: str, tensor_rank: int = 0):
        parameters = dict(chunk.named_parameters())
        self._layers = layers
        self._names = {name for name, p in parameters.items() if tensor_rank == 0 or _is_tensor_parallel(p)}
        self._rest = {name: elements(parameters[name]) for name in self._names}
        self.trained = sum(count for name, count in self._rest.items() if parameters[name].requires_grad)
        self.held = 0
        self._hook = chunk.register_forward_hook(self._count)

    def _count(self, chunk: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if not getattr(chunk, "is_counting", True):
            return
        self._hook.remove()
        found = {name: elements(p) for name, p in chunk.named_parameters() if name in self._names}
        in_layers = [name for name in found if name.startswith(self._layers)]
        is_resharded = all(found[name] == self._rest[name] for name in in_layers)
        self.held = sum((self._rest if is_resharded else found).values())


def _is_tensor_parallel(parameter: nn.Parameter) -> bool:
    """True for a shard of a parameter, at rest, that tensor-parallel ranks split, also as expert-parallel ones."""
    if not isinstance(parameter, DTensor):
        return False
    dims = dict(zip(parameter.device_mesh.mesh_dim_names or (), parameter.placements, strict=True))
    return any(dims[name].is_shard() for name in ("tp", "ep") if name in dims)


def elements(parameter: nn.Parameter) -> int:
    """Elements of a parameter on this rank now: of its shard, or all while it is gathered, also of one in 4 bits."""
    if (packed := getattr(parameter, "quant_state", None)) is not None:
        return packed.shape.numel()
    return parameter.to_local().numel() if isinstance(parameter, DTensor) else parameter.numel()
