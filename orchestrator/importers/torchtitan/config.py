"""Import of torchtitan's settings as model, layout and batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from orchestrator.importers.batch import complete_batch
from orchestrator.importers.imported_config import ImportedConfig
from orchestrator.importers.ranks import Ranks
from orchestrator.importers.settings import Setting, Settings, read_fields
from orchestrator.importers.torchtitan.fields import (
    BATCH_FIELDS,
    CONVERTED,
    FLOAT8,
    LAYOUT_FIELDS,
    MODEL_FIELDS,
    VALUE_RULES,
    micro_batches_of_a_pass,
    stages,
)
from orchestrator.importers.torchtitan.options import TORCHTITAN_OPTIONS
from orchestrator.importers.torchtitan.registry import DEFAULTS, Values
from search_spaces.engines import TORCHTITAN
from search_spaces.errors import InputError, Problem
from search_spaces.layouts.layout import AXES, EXPERT_GROUPS
from search_spaces.layouts.pipeline_split import SPLIT_FIELDS, GivenSplit, stage_layers
from search_spaces.model_shape import MODEL_DEFAULTS, ModelShape

_DEFAULT = "torchtitan's default"
_HEAD, _ROUTER = "lm_head", "router.gate"
_LOCAL_BATCHES = "training.local_batch_size of every data-parallel rank"


def settings_of(values: Values, origin: str | None = None) -> dict[str, Setting]:
    """Values as settings that are from somewhere else than the file."""
    return {name: Setting(value, origin=origin) for name, value in values.items()}


def imported_settings(
    given: Mapping[str, Setting],
    unread: str | None = None,
    ranks: Ranks | None = None,
    prefix: str = "",
) -> ImportedConfig:
    """The values of a configuration on these ranks. `unread` names the configuration that decides the rest where it was
    not read; without one, torchtitan's own defaults do.

    InputError for options and values that no search file expresses, and for numbers that contradict each other.
    """
    ranks = ranks or Ranks(None, None)
    whole = {} if unread else settings_of(DEFAULTS, _DEFAULT)
    keys = Settings({**whole, **given}, replace(TORCHTITAN_OPTIONS, prefix=prefix))
    if problems := [*keys.problems(VALUE_RULES)]:
        raise InputError(*problems)
    model, model_origins = read_fields(keys, "model", MODEL_FIELDS)
    layout, layout_origins = read_fields(keys, "baseline", LAYOUT_FIELDS)
    top, top_origins = read_fields(keys, "", BATCH_FIELDS)
    left_open = tuple(_left_open(layout)) if unread else ()
    batch = _batch(keys, layout, top, ranks, unread)
    _settle_shards(layout)
    if split := _listed_split(keys, model):
        layout |= split
        layout_origins |= {f"baseline.{name}": keys.origin([_LISTS]) for name in split}
    notes = [*_of_the_unread(unread, left_open), *keys.notes, *keys.left_out(), *_differences(keys, model, layout)]
    origins = {"global_batch_size": _LOCAL_BATCHES} if batch else {}
    return ImportedConfig(
        TORCHTITAN,
        model,
        layout,
        batch,
        ranks.num_nodes,
        ranks.gpus_per_node,
        origins={**origins, **model_origins, **layout_origins, **top_origins, **ranks.origins},
        notes=tuple(dict.fromkeys(notes)),
        engine=TORCHTITAN,
        left_open=left_open,
        in_doubt=tuple(keys.in_doubt),
        changed=tuple(_changes(keys, model, layout)),
    )


def _batch(
    keys: Settings, layout: dict[str, Any], top: Mapping[str, Any], ranks: Ranks, unread: str | None
) -> int | None:
    """The global batch; None where a configuration that was not read may say it."""
    stated = top.get("global_batch_size")
    is_open = unread is not None and not keys.has("training.global_batch_size")
    if is_open:
        layout.pop("grad_accum_steps", None)
    doubts = (*keys.in_doubt, "global_batch_size") if is_open else keys.in_doubt
    return complete_batch(layout, stated, ranks.num_nodes, ranks.gpus_per_node, doubts)


def _settle_shards(layout: dict[str, Any]) -> None:
    """Set ZeRO 0 where all data-parallel ranks are replicas, so that nothing is sharded."""
    if layout.get("context_parallel", 1) > 1:
        return
    if layout.get("data_parallel") and layout.get("data_parallel") == layout.get("data_parallel_replicas"):
        layout["zero_stage"], layout["data_parallel_replicas"] = 0, 1


def _listed_split(keys: Settings, model: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a layout that split layers over chunks as the lists of modules do; none where they say no split of a
    layout, or the engine's own."""
    layers, pipeline = _listed_layers(keys), stages(keys)
    if not layers or not pipeline or pipeline == 1 or layers == _own_split(model, len(layers)):
        return {}
    split = GivenSplit.found(layers, pipeline)
    names = {} if split is None else dict(zip(SPLIT_FIELDS, (split.split, split.first, split.last), strict=True))
    return {name: value for name, value in names.items() if value != AXES[name].default}


def _listed_layers(keys: Settings) -> tuple[int, ...]:
    """Layers of each list of modules, the chunks of the model."""
    return tuple(sum(str(name).startswith("layers.") for name in part) for part in keys.listed(_LISTS))


def _own_split(model: Mapping[str, Any], chunks: int) -> tuple[int, ...] | None:
    """The engine's own split; None for a model that is not known as a whole."""
    is_known = model.keys() >= MODEL_FIELDS.keys() - MODEL_DEFAULTS.keys()
    return stage_layers(ModelShape.from_json(model), chunks) if is_known else None


_LISTS = "parallelism.module_fqns_per_model_part"
_OF_CONTEXT = ("context_parallel", "context_transport", "context_inner")


def _left_open(layout: Mapping[str, Any]) -> Iterator[str]:
    """Layout fields that no option decides, without those that have no effect then."""
    without_effect = {"recompute_layers", "pipeline_split", *EXPERT_GROUPS, *_OF_CONTEXT}
    if layout.get("pipeline_parallel") == 1:
        without_effect |= {"pipeline_schedule", "virtual_pipeline_stages"}
    if layout.get("activation_checkpointing") in ("none", "full"):
        without_effect.add("recompute_modules")
    return (name for name in LAYOUT_FIELDS if name not in layout and name not in without_effect)


def _of_the_unread(unread: str | None, left_open: tuple[str, ...]) -> Iterator[str]:
    if unread:
        which = f"; it decides {', '.join(left_open)} and all else that no option sets" if left_open else ""
        yield f"The configuration {unread} was not read{which}."


def _differences(keys: Settings, model: Mapping[str, Any], layout: Mapping[str, Any]) -> Iterator[str]:
    """Notes on what the training has and a trial has not."""
    is_pipeline = (stages(keys) or 1) > 1
    if keys.has(f"{FLOAT8}recipe_name"):
        yield from _of_8_bits(keys)
    if any(keys.has(name) and not keys.listed(name) for name in CONVERTED.values()):
        yield _CONVERTED_HEAD
    if keys.has("loss.num_chunks"):
        yield "The training computes the loss in chunks of the sequence; trials compute it at once."
    if keys.text("model_spec.attn_backend") == "flex_flash":
        yield "FlexAttention has another backend (flex_flash) in the training; trials take its own."
    if keys.has("compile.enable") and layout.get("torch_compile") is False:
        yield "Trials compile the blocks of the model or nothing; the training compiles other parts alone."
    if others := _other_optimizers(keys):
        yield f"Trials train by AdamW; the training has {' and '.join(others)}."
    if is_pipeline:
        yield from _of_a_pipeline(keys, layout)


def _changes(keys: Settings, model: Mapping[str, Any], layout: Mapping[str, Any]) -> Iterator[Problem]:
    """Problems with values of the layout that trials would train otherwise."""
    if keys.text("training.dtype") == "bfloat16":
        yield keys.problem(
            "training.dtype", "trials have weights, gradients and optimizer states in fp32", "set it to float32"
        )
    if keys.value("training.disable_cuda_graphs") is False and stages(keys) == 1:
        yield keys.problem("training.disable_cuda_graphs", "trials run without CUDA graphs", "set it to true")
    if (stages(keys) or 1) > 1 and layout.keys().isdisjoint(SPLIT_FIELDS):
        yield from _other_stages(keys, model)


def _other_stages(keys: Settings, model: Mapping[str, Any]) -> Iterator[Problem]:
    """A problem with layers of pipeline stages that no split of a layout says."""
    rule = "without pipeline_split, first_stage_layers or last_stage_layers trials split layers by each stage's work"
    less, counts = "parallelism.pipeline_parallel_first_stage_less_layers", _listed_layers(keys)
    if not counts and keys.value(less) is not None:
        yield keys.problem(
            less, rule, "choose fewer layers of the first and the last stage so that all others are equal"
        )
    elif counts and _own_split(model, len(counts)) not in (None, counts):
        yield keys.problem(_LISTS, rule, "list the same number of layers for every stage but the first and the last")


_CONVERTED_HEAD = "The training multiplies its head in 8 bits, too; trials multiply it in bf16."


def _of_8_bits(keys: Settings) -> Iterator[str]:
    """Notes on linear layers that the training converts and a trial does not, and the other way round. torchtitan
    leaves layers whose name has one of the words."""
    words = [str(word) for word in keys.listed(f"{FLOAT8}filter_fqns")]
    if not any(word in _HEAD for word in words):
        yield _CONVERTED_HEAD
    if others := [f"{word:.40}" for word in words if word not in _HEAD and word not in _ROUTER]:
        yield f"The training leaves layers named {', '.join(others)} in bf16; trials leave head and routers alone."


def _other_optimizers(keys: Settings) -> list[str]:
    groups = (group for group in keys.listed("optimizer.param_groups") if isinstance(group, Mapping))
    names = dict.fromkeys(str(group.get("optimizer_name", "AdamW")) for group in groups)
    return [f"{name:.40}" for name in names if name != "AdamW"]


def _of_a_pipeline(keys: Settings, layout: Mapping[str, Any]) -> Iterator[str]:
    at_once, steps = micro_batches_of_a_pass(keys), layout.get("grad_accum_steps")
    if at_once and steps and steps > at_once:
        yield (
            f"The training sends {at_once} of a step's {steps} micro-batches through the pipeline at a time; trials"
            " send all of them."
        )
