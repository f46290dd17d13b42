"""Experts, latent attention and layers for further tokens of a Hugging Face config.json."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from orchestrator.importers import reasons
from orchestrator.importers.expert_layers import expert_pattern
from orchestrator.importers.hf_families import Family
from orchestrator.importers.option_table import DO_WITHOUT
from orchestrator.importers.settings import FieldReaders, Settings
from search_spaces.errors import InputError


def expert_fields(family: Family) -> FieldReaders:
    """Readers of the sizes that the type has besides those of every decoder."""
    sizes = {name: partial(_size, key=key, default=default) for name, (key, default) in family.sizes.items()}
    return {**sizes, **{name: partial(read, family=family) for name, read in _COMPUTED.get(family.kind, {}).items()}}


def routing_differences(keys: Settings, family: Family) -> Iterator[str]:
    """Notes on weights of a token's experts that a trial has not."""
    if family.kind == "deepseek_v3":
        yield f"The model weights experts by sigmoids, in groups and with a bias: {reasons.ROUTING} in trials."
    elif family.kind == "qwen3_moe" and not keys.flag("norm_topk_prob"):
        yield "norm_topk_prob is false: the softmax is over all experts; that of trials is over the chosen ones."


def _size(keys: Settings, key: str, default: int | None) -> int | None:
    """A whole number, which may be 0; `default` where the key is absent, None where it is null."""
    value = keys.value(key)
    return 0 if str(value) == "0" else keys.count(key) if value is not None or keys.is_null(key) else default


def _of(keys: Settings, family: Family, name: str) -> int:
    return _size(keys, *family.sizes[name]) or 0


def _latent_head_size(keys: Settings, family: Family) -> int:
    """Elements of a query: those that are rotated, and the others."""
    return _of(keys, family, "rotary_head_size") + (_size(keys, "qk_nope_head_dim", 128) or 0)


def _shared_width(keys: Settings, family: Family) -> int | None:
    return (_size(keys, "n_shared_experts", 1) or 0) * _of(keys, family, "expert_ffn_hidden_size") or None


def _layers_of_qwen3(keys: Settings, family: Family, index: int) -> int | None:
    """mlp_only_layers have an MLP; of the others each decoder_sparse_step-th has experts."""
    dense, step = keys.listed("mlp_only_layers"), keys.counted("decoder_sparse_step", 1) or 1
    layers = keys.counted("num_hidden_layers", family.layers) or family.layers
    pattern = expert_pattern([layer not in dense and (layer + 1) % step == 0 for layer in range(min(layers, 10_000))])
    if pattern is None:
        raise InputError(keys.problem("mlp_only_layers", reasons.EXPERT_LAYERS, DO_WITHOUT))
    return pattern[index]


_Reader = Callable[..., Any]
_COMPUTED: Mapping[str, Mapping[str, _Reader]] = {
    "qwen3_moe": {
        "num_dense_layers": partial(_layers_of_qwen3, index=0),
        "expert_layer_every": partial(_layers_of_qwen3, index=1),
    },
    "deepseek_v3": {
        "attention_head_size": _latent_head_size,
        "shared_expert_ffn_hidden_size": _shared_width,
    },
}
"""Readers of fields that several keys decide, by model type."""
