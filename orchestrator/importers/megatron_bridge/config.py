"""Import of a Megatron-Bridge recipe's overrides as model, layout and batch."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.importers import reasons
from orchestrator.importers.batch import complete_batch
from orchestrator.importers.imported_config import ImportedConfig
from orchestrator.importers.megatron_bridge.fields import (
    ACTIVATIONS,
    BATCH_FIELDS,
    CORE,
    LAYOUT_FIELDS,
    MODEL_FIELDS,
    STAGE_LAYOUT,
    VALUE_RULES,
    activation_name,
)
from orchestrator.importers.megatron_bridge.options import MEGATRON_BRIDGE_OPTIONS
from orchestrator.importers.settings import CODE, Settings, flat, read_fields, turn_off_sequence_parallel
from orchestrator.importers.yaml_config import yaml_document
from search_spaces.errors import InputError, Problem
from search_spaces.layouts.layout import EXPERT_GROUPS

_SECTIONS = {"model", "ddp", "dataset", "scheduler", "mixed_precision", "comm_overlap"}


def looks_like_megatron_bridge(data: Mapping[str, Any]) -> bool:
    """True for a mapping with sections of a ConfigContainer."""
    model = data.get("model")
    names_degrees = isinstance(model, Mapping) and "tensor_model_parallel_size" in model
    return names_degrees or (isinstance(data.get("train"), Mapping) and bool(_SECTIONS & data.keys()))


def read_bridge_config(text: str) -> ImportedConfig:
    """The values of a YAML file of overrides, or of a whole ConfigContainer that Megatron-Bridge has written.

    InputError for text that is no YAML mapping, and as `imported_overrides` says.
    """
    return imported_overrides(config_settings(text))


def config_settings(text: str) -> Settings:
    """The settings of a YAML file of overrides."""
    document = yaml_document(text)

    def line(name: str) -> int | None:
        return document.location(tuple(name.split("."))).line

    values = _plain(document.data)
    given = flat(values if isinstance(values, Mapping) else {}, MEGATRON_BRIDGE_OPTIONS, line)
    return Settings(given, MEGATRON_BRIDGE_OPTIONS)


def imported_overrides(
    keys: Settings, recipe: str | None = None, num_nodes: int | None = None, gpus_per_node: int | None = None
) -> ImportedConfig:
    """The values of a recipe's overrides on these ranks. What none of them says stays open: the recipe is Python and
    is not read.

    InputError for keys, values and recipes that no search file expresses, and for numbers that contradict each other.
    """
    if problems := [*_recipe_problems(recipe), *keys.problems(VALUE_RULES)]:
        raise InputError(*problems)
    model, model_origins = read_fields(keys, "model", MODEL_FIELDS)
    layout, layout_origins = read_fields(keys, "baseline", LAYOUT_FIELDS)
    turn_off_sequence_parallel(layout, keys)
    top, top_origins = read_fields(keys, "", BATCH_FIELDS)
    origins = {**model_origins, **layout_origins, **top_origins}
    if "mixed_precision" not in keys.given and _precision_in(recipe) == "bf16":
        layout["precision"], origins["baseline.precision"] = "bf16", f"the name of the recipe {recipe}"
    left_open = tuple(_left_open(keys, layout, re.search(_OF_EXPERTS, recipe or "") is not None))
    batch = complete_batch(layout, top.get("global_batch_size"), num_nodes, gpus_per_node, BATCH_FIELDS)
    notes = [*_of_the_recipe(recipe, left_open), *keys.notes, *keys.left_out(), *_differences(keys)]
    return ImportedConfig(
        "megatron-bridge",
        model,
        layout,
        batch,
        num_nodes,
        gpus_per_node,
        origins=origins,
        notes=tuple(dict.fromkeys(notes)),
        engine="megatron-lm",
        left_open=left_open,
        in_doubt=tuple(keys.in_doubt),
        changed=tuple(_changes(keys, layout)),
    )


def _plain(value: Any) -> Any:
    """A ConfigContainer's values without the names of their classes; a function or a type is its name."""
    if not isinstance(value, Mapping):
        return value
    inner = {name: _plain(each) for name, each in value.items() if not re.fullmatch(r"_[a-z]+_", name)}
    return value["_target_"] if "_target_" in value and not inner else inner


def _precision_in(recipe: str | None) -> str | None:
    """The precision in a recipe's name, llama3_8b_pretrain_8gpu_h100_bf16_config."""
    found = re.search(r"_(bf16|fp8[a-z]{0,20}|nvfp4)(?:_[a-z0-9_]{1,80})?_config$", recipe or "")
    return found[1] if found else None


_OTHER_TRAININGS = {
    r"_(sft|peft|lora|dora|finetune)(_|$)": "fine-tuning",
    r"_vl_|vlm|audio|omni|^wan_|^flux": "a model of images or sound",
    r"mamba|nemotronh|nemotron_3": "a model with state-space layers",
}
"""Models that no search file expresses, by a pattern of the recipe's name."""
_OF_EXPERTS = r"_a\d+b|moe|mixtral|deepseek|gpt_oss|kimi"
"""Pattern of the names of recipes of models with experts."""


def _recipe_problems(recipe: str | None) -> Iterator[Problem]:
    wrong = None
    if _precision_in(recipe) not in (None, "bf16"):
        wrong = "of a recipe in 8 or 4 bits only the name is known, not which layers and weights are in 16"
    elif other := next((what for name, what in _OTHER_TRAININGS.items() if re.search(name, recipe or "")), None):
        wrong = f"a search pretrains a GPT; this is {other}"
    if wrong:
        yield Problem(
            CODE, f"is {recipe}", wrong, "give the command of a GPT's pretraining recipe in bf16", key="--recipe"
        )


_STAGES = {
    "first_stage_layers": "model.num_layers_in_first_pipeline_stage",
    "last_stage_layers": "model.num_layers_in_last_pipeline_stage",
}


def _left_open(keys: Settings, layout: Mapping[str, Any], has_experts: bool) -> Iterator[str]:
    """Layout fields that no key decides. A bucket size of null is the engine's default; a field of recomputation
    or of context parallelism without effect needs no key, nor does one of experts where neither the keys nor the recipe
    are known to have any."""
    decided = {*layout}
    if "precision" in layout:  # by an override or the recipe's name, which say 8 bits, too
        decided.add("matmul_precision")
    if any(keys.is_null(name) for name in ("ddp.bucket_size", "comm_overlap.bucket_size")):
        decided.add("bucket_mib")
    if keys.text("model.recompute_method") == "uniform" or layout.get("activation_checkpointing") != "full":
        decided.add("recompute_layers")
    if layout.get("activation_checkpointing") != "selective":
        decided.add("recompute_modules")
    if layout.get("context_parallel", 1) == 1:
        decided |= {"context_transport", "context_inner"}
    if layout.get("context_transport", "a2a_p2p") != "a2a_p2p":
        decided.add("context_inner")
    if layout.get("pipeline_parallel") == 1:
        decided |= {"pipeline_split", *_STAGES}
    decided |= {field for field, name in _STAGES.items() if keys.is_null(name) or STAGE_LAYOUT.is_given(keys)}
    if layout.get("tensor_parallel") == 1:
        decided.add("tensor_parallel_overlap")
    if layout.get("zero_stage") == 0:
        decided.add("data_parallel_replicas")
    if CORE.is_dense(keys) or not (has_experts or CORE.num_experts(keys)):
        decided |= {*EXPERT_GROUPS, "expert_dispatcher", "expert_overlap"}
    return (name for name in LAYOUT_FIELDS if name not in decided)


def _of_the_recipe(recipe: str | None, left_open: tuple[str, ...]) -> Iterator[str]:
    if left_open:
        which = f"The recipe {recipe}" if recipe else "The recipe of these overrides"
        yield f"{which} was not read; it decides {', '.join(left_open)} and all else that no override sets."


def _differences(keys: Settings) -> Iterator[str]:
    """Notes on what the training has and a trial has not."""
    if dropout := [name for name in ("attention_dropout", "hidden_dropout") if keys.value(f"model.{name}")]:
        yield f"Trials train without dropout; the overrides set {' and '.join(dropout)}."
    if (name := activation_name(keys)) and name not in ACTIVATIONS:
        yield f"model.activation_func is {name}; the MLP of trials has SiLU with a gate, else GELU."


def _changes(keys: Settings, layout: Mapping[str, Any]) -> Iterator[Problem]:
    """Problems with values of the layout that trials would train otherwise."""
    count = "model.recompute_num_layers"
    is_uniform = keys.text("model.recompute_method") != "block"
    if layout.get("activation_checkpointing", "full") == "full" and is_uniform and keys.value(count) not in (None, 1):
        yield keys.problem(count, reasons.EACH_LAYER, "set it to 1")
