"""Recomputation of the first layers of each model chunk, for torchtitan 0.3.0."""

from dataclasses import dataclass

from torch import nn
from torchtitan.distributed.activation_checkpoint import FullAC, _disable_dynamo_lru_cache


class FirstLayersAC(FullAC):
    """torchtitan's recomputation of whole layers, of the first ones alone."""

    @dataclass(kw_only=True, slots=True)
    class Config(FullAC.Config):
        layers: int

    def apply(self, model: nn.Module) -> None:
        _disable_dynamo_lru_cache()
        layers = model.get_submodule("layers")
        for name, layer in list(layers.named_children())[: self.config.layers]:
            layers.register_module(name, self._wrap_block(layer))
