"""megatron-core's fields as a file says them: what the imports of both Megatrons and of Megatron-Bridge share."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from orchestrator.importers.expert_layers import expert_pattern
from orchestrator.importers.megatron.stage_layout import LAYOUT, split_fields
from orchestrator.importers.settings import FieldReaders, Setting, Settings
from search_spaces.errors import InputError, Problem
from trials.trainers.common.megatron_core import ACTIVATIONS, is_latent
from trials.trainers.common.megatron_layout import has_experts
from trials.trainers.table import Table

_MOST_LAYERS = 10_000


def core_settings(given: Mapping[str, Setting], table: Table, notes: list[str], leaves_open: bool) -> Settings:
    """The settings by the core's names, with the fields that a pipeline layout says in its own way."""
    keys = Settings(given, table, notes, leaves_open)
    if not keys.has(LAYOUT):
        return keys
    name = "pipeline_model_parallel_size"
    doubt = keys.given[LAYOUT].doubt or (keys.given[name].doubt if name in keys.given else None)
    stages = None if doubt else keys.count(name) or keys.default(name, 1)
    said = {} if keys.given[LAYOUT].doubt else split_fields(keys, stages)
    whole = {field: replace(given[LAYOUT], value=value, doubt=doubt) for field, value in said.items()}
    others = {name: setting for name, setting in given.items() if name != LAYOUT}
    return Settings({**others, **(whole if stages or doubt else {})}, table, notes, leaves_open)


def _layers(keys: Settings, index: int) -> int | None:
    """num_dense_layers or expert_layer_every; None without experts, and where the layers are not known."""
    layers, given = keys.count("num_layers"), keys.value("moe_layer_freq")
    if not has_experts(keys) or layers is None or layers > _MOST_LAYERS:
        return None
    if given is None:
        return keys.default("moe_layer_freq", index)
    if (found := expert_pattern(_pattern(str(given), layers))) is None:
        rule = "experts are in each expert_layer_every-th layer after the first num_dense_layers"
        raise InputError(keys.problem("moe_layer_freq", rule))
    return found[index]


def _pattern(text: str, layers: int) -> list[bool]:
    """True for each layer with experts, none for a text that says no such thing. A number N gives experts to the first
    of each N layers."""
    try:
        found = _evaluated(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    if isinstance(found, int):
        return [layer % found == 0 for layer in range(layers)] if found else []
    return [bool(each) for each in found] if len(found) == layers else []


def _evaluated(node: ast.expr) -> int | list[int]:
    """A whole number, or `([0]*3+[1]*58)` as a list; ValueError for anything else."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.List):
        return [value for each in node.elts if isinstance(value := _evaluated(each), int)]
    if isinstance(node, ast.BinOp):
        left, right = _evaluated(node.left), _evaluated(node.right)
        if isinstance(node.op, ast.Add) and isinstance(left, list) and isinstance(right, list):
            return left + right
        is_repeated = isinstance(node.op, ast.Mult) and isinstance(left, list) and isinstance(right, int)
        if is_repeated and len(left) * right <= _MOST_LAYERS:  # type: ignore[arg-type, operator]
            return left * right  # type: ignore[operator]
    raise ValueError("no pattern of layers")


EXPERT_LAYERS: FieldReaders = {
    "num_dense_layers": lambda keys: _layers(keys, 0),
    "expert_layer_every": lambda keys: _layers(keys, 1),
}


def differences(keys: Settings) -> Iterator[str]:
    """Notes on what the training has and a trial has not."""
    name = keys.text("activation_func")
    if (
        name
        and keys.in_doubt.count("activation") == 0
        and name not in ACTIVATIONS
        and not keys.has("glu_linear_offset")
    ):
        yield f"{keys.key('activation_func')} is {name}; the MLP of trials has SiLU with a gate, else GELU."
    if is_latent(keys) and not keys.has("qk_layernorm") and keys.default("qk_layernorm", True):
        yield "The latent vectors of trials are normalised; without qk_layernorm those of the training are not."


def changes(keys: Settings, layout: Mapping[str, Any]) -> Iterator[Problem]:
    """Problems with values of the layout that trials would train otherwise."""
    is_uniform = layout.get("activation_checkpointing", "full") == "full" and keys.text("recompute_method") != "block"
    if is_uniform and str(keys.value("recompute_num_layers") or 1) != "1":
        yield keys.problem("recompute_num_layers", "trials recompute one layer at a time", "set it to 1")
