"""Import of a torchtitan configuration: the JSON that it has saved (`debug.save_config_file`), and the literal of a
recipe's module, which is not run."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from orchestrator.config.importers.imported_config import ImportedConfig
from orchestrator.config.importers.settings import (
    CODE,
    DO_WITHOUT,
    EXPERT_LAYERS,
    NO_MODEL_FIELD,
    ROUTING,
    Setting,
    expert_pattern,
    flat,
)
from orchestrator.config.importers.source_file import json_object
from orchestrator.config.importers.torchtitan.config import imported_settings
from search_spaces.errors import InputError
from trials.trainers.table import Values
from trials.trainers.torchtitan.config import TORCHTITAN_TABLE
from trials.trainers.torchtitan.trainer import EXPORTED, FUNCTION, NAME


def read_module(text: str) -> ImportedConfig:
    """The values of a recipe's module. InputError as `module_settings` and `imported_settings` say."""
    return imported_settings(module_settings(text))


def module_settings(text: str) -> dict[str, Setting]:
    """The settings of the literal that a recipe's module has, and its function where the export has another;
    InputError for any other Python."""
    try:
        assigned = [node for node in ast.parse(text).body if isinstance(node, ast.Assign)]
        literal = next(node.value for node in assigned if [ast.unparse(name) for name in node.targets] == [NAME])
        values = ast.literal_eval(literal)
    except (SyntaxError, ValueError, TypeError, StopIteration, RecursionError, MemoryError):
        values = None
    if not isinstance(values, dict):
        raise InputError.of(
            CODE,
            f"has no literal {NAME}",
            rule="a Python module is not run: of a recipe's own its literal is read",
            fix="save the configuration with --debug.save_config_file, and start from the JSON",
        )
    changed = {} if text.endswith(EXPORTED) else {f"what {FUNCTION}() sets besides {NAME}": Setting(True)}
    return flat(values, TORCHTITAN_TABLE) | changed


def looks_like_torchtitan(data: Mapping[str, Any]) -> bool:
    """True for a mapping with sections of a Trainer.Config."""
    return isinstance(data.get("parallelism"), Mapping) and "model_spec" in data and "training" in data


def read_saved_config(text: str) -> ImportedConfig:
    """The values of the saved configuration.

    InputError for text that is no JSON object, for another model than llama3, and as `imported_settings` says.
    """
    data = json_object(text, "file", "a configuration")
    policy, model = _policy(data.pop("activation_checkpoint", None)), _model_spec(data.pop("model_spec", None))
    sections = {**data, "activation_checkpoint": policy, "model_spec": model}
    table = replace(TORCHTITAN_TABLE, whole=frozenset(data.keys() - _READ))
    found = imported_settings(flat(sections, table))
    if found.layout.get("precision") == "fp32":
        return found
    return replace(found, notes=(*found.notes, _NOT_SAVED), left_open=(*found.left_open, "matmul_precision"))


_READ = {"training", "parallelism", "compile", "loss", "optimizer"}
"""Sections with options that are read; of the others the section is named."""
_NOT_SAVED = "torchtitan does not save whether linear layers multiply 8-bit floats: fill in matmul_precision."


def _policy(saved: Any) -> dict[str, Any]:
    """The policy, which the saved file does not name, by an argument that only it has."""
    if not isinstance(saved, Mapping):
        return {"policy": "none"}
    policies = {"memory_budget": "memory_budget", "force_recompute_mm_shapes_by_fqns": "selective"}
    return {**saved, "policy": next((policies[name] for name in policies if name in saved), "full")}


def _model_spec(spec: Any) -> dict[str, Any]:
    """Name, and sizes of a llama3 or qwen3, by the names that a recipe's module has for them."""
    name, model = (spec.get("name"), spec.get("model")) if isinstance(spec, Mapping) else (None, None)
    if name not in ("llama3", "qwen3"):
        return {"name": str(name)}
    if not isinstance(model, Mapping) or not isinstance(layers := model.get("layers"), list) or not layers:
        raise _unlike_llama3("has no list of layers")
    leaves = [_leaves(layer) for layer in layers]
    pattern = [_EXPERTS in layer for layer in leaves]
    layer, placed = _one_of_each_kind(leaves, pattern), expert_pattern(pattern) if any(pattern) else None
    if problem := next(_refused_parts(layer, placed), None):
        raise problem
    sizes = {key: layer.get(path) for key, path in _SIZES.items()}
    is_flash = layer.get("attention.inner_attention.kernel_options.BACKEND") == "FLASH"
    return {
        "name": name,
        "n_layers": len(layers),
        **{key: model.get(key) for key in ("dim", "vocab_size", "enable_weight_tying")},
        **sizes,
        "hidden_dim": sizes["hidden_dim"] or sizes["expert_hidden_dim"],
        "qk_norm": any(path.startswith("attention.qk_norm.") for path in layer),
        "attn_backend": "varlen" if _WINDOW in layer else "flex_flash" if is_flash else "flex",
        **dict(zip(("num_dense_layers", "expert_layer_every"), placed or (), strict=False)),
        **_lora(layer),
    }


def _lora(layer: Values) -> dict[str, Any]:
    """Adapters, which a saved layer has beside the sizes of their modules."""
    adapted = [path.removesuffix(".rank") for path in layer if path.endswith(".rank")]
    values = {name: layer.get(f"{path}.{name}") for path in adapted for name in ("rank", "alpha")}
    return {"lora": {**values, "target_modules": [path.rpartition(".")[2] for path in adapted]}} if adapted else {}


_EXPERTS = "moe.num_experts"
_SIZES = {
    "n_heads": "attention.n_heads",
    "n_kv_heads": "attention.n_kv_heads",
    "head_dim": "attention.head_dim",
    "rope_theta": "attention.rope.theta",
    "hidden_dim": "feed_forward.w1.out_features",
    "num_experts": _EXPERTS,
    "experts_per_token": "moe.router.top_k",
    "expert_hidden_dim": "moe.routed_experts.inner_experts.hidden_dim",
    "shared_expert_hidden_dim": "moe.shared_experts.w1.out_features",
}
"""Where a saved layer has its sizes."""


def _leaves(layer: Any) -> dict[str, Any]:
    """Values by dotted name, without functions that draw weights, whose saved text differs."""
    given = flat(layer, TORCHTITAN_TABLE) if isinstance(layer, Mapping) else {}
    return {n: each.value for n, each in given.items() if each.value is not None and "param_init" not in n}


def _one_of_each_kind(layers: Sequence[Values], has_experts: Sequence[bool]) -> Values:
    """A layer with experts and one with an MLP, as one; InputError where two of a kind differ."""
    firsts = [layers[list(has_experts).index(kind)] for kind in {*has_experts}]
    whole = {name: value for first in firsts for name, value in first.items()}
    are_alike = all(layer in firsts for layer in layers)
    if not are_alike or any(whole[name] != value for first in firsts for name, value in first.items()):
        raise _unlike_llama3("has layers that differ")
    return whole


def _refused_parts(layer: Values, placed: tuple[int, int] | None) -> Iterator[InputError]:
    """Errors for the parts that a model of a search has not."""
    if any(map(_OF_OTHER_PRODUCTS.match, layer)):
        rule = "8-bit and 4-bit arithmetic are no values of precision"
        yield _unlike_llama3("has other products than torch's", rule)
    if layer.get(_WINDOW, [-1, 0]) != [-1, 0]:
        yield _unlike_llama3("has a window of attention", NO_MODEL_FIELD)
    if _EXPERTS in layer and placed is None:
        yield _unlike_llama3("has experts in other layers", EXPERT_LAYERS)
    routing = (layer.get("moe.router.score_func"), layer.get("moe.router.route_norm"))
    if _EXPERTS in layer and routing != ("softmax", True):
        yield _unlike_llama3("weights experts by other scores", ROUTING)


_OF_OTHER_PRODUCTS = re.compile(
    r"(attention\.wo|feed_forward\.w[123])\.(?!sharding_config|(in_features|out_features|bias|rank|alpha)$)"
)
_WINDOW = "attention.inner_attention.window_size"


def _unlike_llama3(message: str, rule: str = "the model of a search is torchtitan's llama3 or qwen3") -> InputError:
    return InputError.of(CODE, message, rule=rule, fix=DO_WITHOUT, key="model_spec.model")
