"""megatron-core's fields as a file says them: what the imports of both Megatrons and of Megatron-Bridge share."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from orchestrator.config.importers.rows import ReadFields
from orchestrator.config.importers.settings import FieldReaders, FileSettings, Setting, expert_pattern
from search_spaces.errors import InputError, Problem
from search_spaces.layouts.pipeline_split import GivenSplit
from trials.trainers.common.megatron_core import ACTIVATIONS, is_latent
from trials.trainers.common.megatron_layout import PIPELINE_LAYOUT, has_experts
from trials.trainers.table import Table

_MOST_LAYERS = 10_000


# -- the pipeline layout: the modules of every model chunk, such as `Ettt|tttt|tttL`
# megatron/core/transformer/pipeline_parallel_layer_layout.py

_STAGES = "pipeline_model_parallel_size"
_SAID_BY_LAYOUT = (
    "virtual_pipeline_model_parallel_size",
    *("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"),
    *("num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage"),
)
_LETTERS: Mapping[str, str] = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}
_LONGEST = 10_000
"""Letters of a text whose groups are repeated; layers are repeated up to 999 times."""


def core_settings(given: Mapping[str, Setting], table: Table, notes: list[str], leaves_open: bool) -> FileSettings:
    """The settings by the core's names, with the fields that a pipeline layout says in its own way.

    InputError for a layout that is none of a search file's.
    """
    keys = FileSettings(given, table, notes, leaves_open)
    if not keys.has(PIPELINE_LAYOUT):
        return keys
    layout = given[PIPELINE_LAYOUT]
    doubt = layout.doubt or (given[_STAGES].doubt if _STAGES in given else None)
    stages = None if doubt else keys.count(_STAGES) or keys.default(_STAGES, 1)
    texts = None if layout.doubt else texts_of(layout.value)
    if not layout.doubt and (rule := _broken_rule(texts, stages, keys.count("num_layers"))):
        raise InputError(keys.problem(PIPELINE_LAYOUT, rule))
    values: Sequence[Any] = [layout.value] * len(_SAID_BY_LAYOUT)
    if texts and stages and (split := GivenSplit.found(_layers_of(texts), stages)):
        counted = (part in split.split for part in ("embedding", "loss"))
        values = (len(texts) // stages, *counted, split.first, split.last)
    elif not doubt:
        doubt = f"{_STAGES} is not in the file"
    pairs = zip(_SAID_BY_LAYOUT, values, strict=True)
    said = {name: replace(layout, value=value, doubt=doubt) for name, value in pairs}
    others = {name: setting for name, setting in given.items() if name != PIPELINE_LAYOUT}
    return FileSettings({**others, **said}, table, notes, leaves_open)


def _broken_rule(texts: list[str] | None, stages: int | None, num_layers: int | None) -> str | None:
    """The first rule that a layout breaks."""
    if texts is None or not re.fullmatch("E[^EL]*L", "".join(texts)):
        return "the text has E, then a t for each layer and an m for each further token's, then L, and | between chunks"
    layers = _layers_of(texts)
    if stages and len(layers) % stages:
        return "every pipeline stage has as many chunks of the layout"
    if num_layers not in (None, sum(layers)):
        return "the layout has as many t as the model has layers"
    if 0 in layers:
        return "every model chunk has a layer: none has the embedding, the loss or further tokens alone"
    if "m" in "".join(texts[:-1]):
        return "layers of further tokens are in the chunk of the loss"
    if stages and GivenSplit.found(layers, stages) is None:
        return (
            "all chunks have the same number of layers, but for pipeline_split, which counts the embedding or the loss"
            " as one, or for the first and the last stage, whose layers are first_stage_layers and last_stage_layers;"
            " where these do not divide, the first or the last chunk has the rest"
        )
    return None


def texts_of(value: Any) -> list[str] | None:
    """Letters of the modules of each chunk, of text or of lists of names; None for another value."""
    if isinstance(value, list):
        chunks = (chunk if isinstance(chunk, list) else [chunk] for chunk in value)
        value = "|".join("".join(_LETTERS.get(str(name), "?") for name in chunk) for chunk in chunks)
    text = _repeated(r"\(([^)]+)\)\*(\d{1,3})", str(value).replace(",", ""))
    text = _repeated(r"([^*|])\*(\d{1,3})", text) if len(text) <= _LONGEST else ""
    return text.split("|") if re.fullmatch("[EtmL|]+", text) else None


def _repeated(pattern: str, text: str) -> str:
    return re.sub(pattern, lambda found: found[1] * int(found[2]), text)


def _layers_of(texts: Sequence[str]) -> tuple[int, ...]:
    return tuple(text.count("t") for text in texts)


# -- experts, and what trials do otherwise


def _layers(keys: FileSettings, index: int) -> int | None:
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


def differences(keys: FileSettings, read: ReadFields) -> Iterator[str]:
    """Notes on what the training has and a trial has not."""
    ours = "fused" if read.model.get("attention_sinks") else "flash"
    yield from other_backend(keys.text("attention_backend"), read.layout, ours)
    name = keys.text("activation_func")
    is_known = name in (None, *ACTIVATIONS) or keys.has("glu_linear_offset")
    if not is_known and "activation" not in keys.in_doubt:
        yield f"{keys.key('activation_func')} is {name}; the MLP of trials has SiLU with a gate, else GELU."
    if is_latent(keys) and not keys.has("qk_layernorm") and keys.default("qk_layernorm", True):
        yield "The latent vectors of trials are normalised; without qk_layernorm those of the training are not."


def other_backend(given: str | None, layout: Mapping[str, Any], ours: str = "flash") -> Iterator[str]:
    """A note where trials run `ours` for the kernel flash, and the training another of Transformer Engine's."""
    backend = (given or "auto").lower()
    if layout.get("attention_kernel") == "flash" and backend != ours:
        why = ", which prefers fused from Hopper on" if backend == "auto" else ""
        yield f"Trials run --attention-backend {ours}, the training --attention-backend {backend}{why}."


def changes(keys: FileSettings, layout: Mapping[str, Any]) -> Iterator[Problem]:
    """Problems with values of the layout that trials would train otherwise."""
    is_uniform = layout.get("activation_checkpointing", "full") == "full" and keys.text("recompute_method") != "block"
    if is_uniform and str(keys.value("recompute_num_layers") or 1) != "1":
        yield keys.problem("recompute_num_layers", "trials recompute one layer at a time", "set it to 1")
