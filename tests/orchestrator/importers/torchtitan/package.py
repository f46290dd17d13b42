"""torchtitan's own configurations, for comparison with the tables of the importer.

    python -m tests.orchestrator.importers.torchtitan.package ANSWER.json

A process of its own: it patches torch for a CPU.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.oracles.configs import prepare_torchtitan, products_of


def main() -> None:
    prepare_torchtitan()
    from torchtitan.distributed import activation_checkpoint
    from torchtitan.experiments import _supported_experiments
    from torchtitan.hf_datasets.text_datasets import ChatDataLoader
    from torchtitan.models import _supported_models
    from torchtitan.models.llama3 import config_registry, llama3_configs
    from torchtitan.trainer import Trainer

    made = dict(_made(config_registry))
    variants = {
        "activation_checkpoint": [getattr(activation_checkpoint, name) for name in ("FullAC", "SelectiveAC")]
        + [activation_checkpoint.MemoryBudgetAC],
        "dataloader": [ChatDataLoader],
    }
    names = {name for config in made.values() for name, _ in _options(config)}
    names |= {f"{place}.{field.name}" for place, kinds in variants.items() for kind in kinds for field in _of(kind)}
    answer = {
        "options": sorted(names),
        "defaults": dict(_options(Trainer.Config())),
        "recomputation": _policy(Trainer.Config()),
        "functions": sorted(name for name in dir(config_registry) if name.startswith(("llama3_", "sft_"))),
        "configs": {name: _config(config) for name, config in made.items()},
        "flavors": {name: _sizes(build(attn_backend="flex")) for name, build in llama3_configs.items()},
        "modules": sorted(_supported_models | _supported_experiments),
    }
    Path(sys.argv[1]).write_text(json.dumps(answer, default=str))


def _made(registry: Any) -> Iterator[tuple[str, Any]]:
    """Configurations that need no package for 8-bit arithmetic."""
    for name in dir(registry):
        if name.startswith(("llama3_", "sft_")):
            try:
                yield name, getattr(registry, name)()
            except ImportError:
                continue


def _of(kind: Any) -> tuple[dataclasses.Field, ...]:
    return dataclasses.fields(kind.Config)


def _options(config: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted names of all options, with their values."""
    for field in dataclasses.fields(config):
        value, name = getattr(config, field.name), prefix + field.name
        if name == "model_spec":
            continue
        if dataclasses.is_dataclass(value) and dataclasses.fields(value):
            yield from _options(value, f"{name}.")
        else:
            yield name, value


def _config(config: Any) -> dict[str, Any]:
    model = config.model_spec.model
    attention = type(model.layers[0].attention.inner_attention).__qualname__
    projection = type(model.layers[0].attention.wo).__qualname__
    return {
        **dict(_options(config)),
        "recomputation": _policy(config),
        "model": _sizes(model),
        "attention": attention,
        "projection": projection,
        "products": products_of(model),
    }


def _policy(config: Any) -> str:
    return type(config.activation_checkpoint).__qualname__


def _sizes(model: Any) -> dict[str, Any]:
    layer = model.layers[0]
    return {
        "n_layers": len(model.layers),
        "dim": model.dim,
        "n_heads": layer.attention.n_heads,
        "n_kv_heads": layer.attention.n_kv_heads or layer.attention.n_heads,
        "hidden_dim": layer.feed_forward.w1.out_features,
        "vocab_size": model.vocab_size,
        "enable_weight_tying": model.enable_weight_tying,
    }


if __name__ == "__main__":
    main()
