"""Import of a configuration that torchtitan has saved as JSON (`debug.save_config_file`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from orchestrator.importers import reasons
from orchestrator.importers.expert_layers import expert_pattern
from orchestrator.importers.imported_config import ImportedConfig
from orchestrator.importers.json_text import json_object
from orchestrator.importers.option_table import DO_WITHOUT
from orchestrator.importers.settings import CODE, Setting, flat
from orchestrator.importers.torchtitan.config import imported_settings
from orchestrator.importers.torchtitan.options import TORCHTITAN_OPTIONS
from search_spaces.errors import InputError

_POLICIES = {
    "memory_budget": "memory-budget",
    "force_recompute_mm_shapes_by_fqns": "selective",
}
"""Policies by an argument that only they have; the saved file does not name them."""


def looks_like_torchtitan(data: Mapping[str, Any]) -> bool:
    """True for a mapping with sections of a Trainer.Config."""
    return isinstance(data.get("parallelism"), Mapping) and "model_spec" in data and "training" in data


def read_saved_config(text: str) -> ImportedConfig:
    """The values of the saved configuration.

    InputError for text that is no JSON object, for another model than llama3, and as `imported_settings` says.
    """
    data = json_object(text, "file", "a configuration")
    policy, arguments = _policy(data.pop("activation_checkpoint", None))
    spec = data.pop("model_spec", None)
    given = flat({**data, **arguments}, TORCHTITAN_OPTIONS, lambda name: None)
    named = {f"model_spec.{name}": Setting(value) for name, value in _model_spec(spec).items()}
    found = imported_settings({**given, **named, "activation_checkpoint": Setting(policy)})
    if found.layout.get("precision") == "fp32":
        return found
    return replace(found, notes=(*found.notes, _NOT_SAVED), left_open=(*found.left_open, "matmul_precision"))


_NOT_SAVED = "torchtitan does not save whether linear layers multiply 8-bit floats: fill in matmul_precision."


def _policy(saved: Any) -> tuple[str, dict[str, Any]]:
    """(name of the policy, its arguments by option)"""
    if not isinstance(saved, Mapping):
        return "none", {}
    name = next((policy for argument, policy in _POLICIES.items() if argument in saved), "full")
    return name, {f"activation_checkpoint.{argument}": value for argument, value in saved.items()}


def _model_spec(spec: Any) -> dict[str, Any]:
    """Name, and sizes of a llama3 or qwen3, by the names of the function that an exported module builds it with."""
    name, model = (spec.get("name"), spec.get("model")) if isinstance(spec, Mapping) else (None, None)
    if name not in ("llama3", "qwen3"):
        return {"name": str(name)}
    if not isinstance(model, Mapping):
        raise _unlike_llama3("has no model")
    layers = model.get("layers")
    if not isinstance(layers, list) or not layers or not all(isinstance(layer, Mapping) for layer in layers):
        raise _unlike_llama3("has no list of layers")
    plain = [_without_weights(layer) for layer in layers]
    pattern = [layer.get("moe") is not None for layer in plain]
    mlps = _same(layer.get("feed_forward") for layer in plain if layer.get("moe") is None)
    experts = _same(layer.get("moe") for layer in plain if layer.get("moe") is not None)
    first = {**_same({**layer, "feed_forward": None, "moe": None} for layer in plain), "feed_forward": mlps}
    if mlps is None and not all(pattern):
        raise _unlike_llama3("has layers without attention or MLP")
    has_norms = _section(first, "attention").get("qk_norm") is not None
    if has_norms and name == "llama3":
        raise _unlike_llama3("has norms of queries and keys")
    return {
        "name": name,
        "n_layers": len(layers),
        "dim": model.get("dim"),
        "vocab_size": model.get("vocab_size"),
        "enable_weight_tying": model.get("enable_weight_tying"),
        **({} if experts is None else _experts(experts, pattern)),
        **_layer(first),
        **({} if name == "llama3" else {"qk_norm": has_norms}),
    }


def _same(parts: Iterable[Any]) -> Any:
    """The part that all layers have alike; None without any."""
    first, *others = [*parts] or [None]
    if any(other != first for other in others):
        raise _unlike_llama3("has layers that differ")
    return first


def _experts(moe: Any, pattern: Sequence[bool]) -> dict[str, Any]:
    """Sizes of the experts and the layers that have them."""
    router, routed = _section(moe, "router"), _section(_section(moe, "routed_experts"), "inner_experts")
    shared, layers = _section(_section(moe, "shared_experts"), "w1"), expert_pattern(pattern)
    if layers is None:
        raise _unlike_llama3("has experts in other layers", reasons.EXPERT_LAYERS)
    if (router.get("score_func"), router.get("route_norm")) != ("softmax", True):
        raise _unlike_llama3("weights experts by other scores", reasons.ROUTING)
    return {
        "hidden_dim": routed.get("hidden_dim"),  # unless another layer has an MLP
        "num_experts": moe.get("num_experts"),
        "experts_per_token": router.get("top_k"),
        "expert_hidden_dim": routed.get("hidden_dim"),
        "shared_expert_hidden_dim": shared.get("out_features"),
        "num_dense_layers": layers[0],
        "expert_layer_every": layers[1],
    }


def _without_weights(config: Any) -> Any:
    """A configuration without functions that draw weights, whose saved text differs."""
    if isinstance(config, Mapping):
        return {name: _without_weights(inner) for name, inner in config.items() if name != "param_init"}
    return config


def _layer(layer: Mapping[str, Any]) -> dict[str, Any]:
    for problem in _refused_parts(layer):
        raise problem
    attention, mlp = layer["attention"], layer["feed_forward"]
    return {
        "n_heads": attention.get("n_heads"),
        "n_kv_heads": attention.get("n_kv_heads"),
        **({} if mlp is None else {"hidden_dim": mlp["w1"].get("out_features")}),
        "head_dim": attention.get("head_dim"),
        "rope_theta": _whole(_section(attention, "rope").get("theta")),
        "attn_backend": _attention(_section(attention, "inner_attention")),
    }


def _whole(value: Any) -> Any:
    """A whole number where a float is one."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _refused_parts(layer: Mapping[str, Any]) -> Iterator[InputError]:
    """Errors for the parts that a llama3 of a search has not."""
    attention, mlp = _section(layer, "attention"), _section(layer, "feed_forward")
    names = () if layer.get("feed_forward") is None else ("w1", "w2", "w3")
    products = [attention.get("wo"), *map(mlp.get, names)]
    if not all(isinstance(product, Mapping) for product in products):
        yield _unlike_llama3("has layers without attention or MLP")
    if any(product.keys() - _OF_A_PRODUCT for product in products if isinstance(product, Mapping)):
        yield _unlike_llama3("has other products than torch's", reasons.LOW_PRECISION)
    if _section(attention, "inner_attention").get("window_size", _WHOLE) != _WHOLE:
        yield _unlike_llama3("has a window of attention", reasons.NO_MODEL_FIELD)


_OF_A_PRODUCT = {"param_init", "sharding_config", "in_features", "out_features", "bias"}
_WHOLE = [-1, 0]


def _attention(inner: Mapping[str, Any]) -> str:
    """The backend by the arguments that only it has."""
    if "window_size" in inner:
        return "varlen"
    return "flex_flash" if _section(inner, "kernel_options").get("BACKEND") == "FLASH" else "flex"


def _section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = config.get(name)
    return found if isinstance(found, Mapping) else {}


def _unlike_llama3(message: str, rule: str = "the model of a search is torchtitan's llama3 or qwen3") -> InputError:
    return InputError.of(CODE, message, rule=rule, fix=DO_WITHOUT, key="model_spec.model")
