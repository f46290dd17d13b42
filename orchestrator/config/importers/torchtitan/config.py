"""Import of torchtitan's settings as model, layout and batch."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from orchestrator.config.importers.imported_config import ImportedConfig
from orchestrator.config.importers.ranks import Ranks
from orchestrator.config.importers.rows import ReadFields, read_rows
from orchestrator.config.importers.settings import FileSettings, Setting, ValueRules, one_of
from orchestrator.config.importers.torchtitan.registry import DEFAULTS
from search_spaces.engines import TORCHTITAN
from search_spaces.errors import InputError, Problem
from search_spaces.layouts.layout import AXES, EXPERT_GROUPS
from search_spaces.layouts.pipeline_split import SPLIT_FIELDS, stage_layers
from search_spaces.model_shape import MODEL_DEFAULTS, ModelShape
from trials.trainers.table import Values
from trials.trainers.torchtitan.config import (
    LISTS,
    TOKENS,
    TORCHTITAN_TABLE,
    components,
    is_in_tokens,
    listed_layers,
    micro_batches_of_a_pass,
    stages,
)

_P, _T, _M = "parallelism.", "training.", "model_spec."


def as_settings(values: Values, origin: str | None = None) -> dict[str, Setting]:
    """Values as settings that are from somewhere else than the file."""
    return {name: Setting(value, origin=origin) for name, value in values.items()}


def imported_settings(
    given: Mapping[str, Setting], unread: str | None = None, ranks: Ranks | None = None, prefix: str = ""
) -> ImportedConfig:
    """The values of a configuration on these ranks. `unread` names the configuration that decides the rest where it was
    not read; without one, torchtitan's own defaults do.

    InputError for options and values that no search file expresses, and for numbers that contradict each other.
    """
    ranks = ranks or Ranks(None, None)
    table = replace(TORCHTITAN_TABLE, prefix=prefix)
    keys = FileSettings({**({} if unread else as_settings(DEFAULTS, "torchtitan's default")), **given}, table)
    if problems := [*keys.problems(_VALUE_RULES)]:
        raise InputError(*problems)
    read = read_rows(table, keys)
    others = filter(_OF_ANOTHER_RELEASE.match, keys.unread(_KNOWN)) if prefix else ()
    if problems := [keys.problem(name, _NO_SUCH_OPTION, _OF_THIS_RELEASE) for name in others]:
        raise InputError(*problems)
    read.cluster.update(num_nodes=ranks.num_nodes, gpus_per_node=ranks.gpus_per_node)
    read.origins.update(ranks.origins)
    model, layout = read.model, read.layout
    left_open = _left_open(layout) if unread else ()
    _settle_batch(keys, read, unread)
    _settle_shards(layout)
    changed = (*_of_the_split(keys, model, layout), *_changes(keys))
    notes = [*_differences(keys, layout), *keys.not_read(kept=_KNOWN)]
    if unread:
        keys.notes.insert(
            0, f"{unread} was not read, as its saved JSON can be; it decides {', '.join(left_open)} and more."
        )
    return read.imported(TORCHTITAN, keys, notes, engine=TORCHTITAN, left_open=left_open, changed=changed)


_KNOWN = {*DEFAULTS, "activation_checkpoint.layers", f"{_P}pipeline_parallel_layers_per_stage", LISTS, TOKENS["passes"]}
"""Settings that have an effect in some layouts alone."""
_OF_ANOTHER_RELEASE = re.compile(
    r"(job|model|float8|mx)\.|(activation_checkpoint|compile|parallelism|training)\.(?!("
    r"preserve_rng_state|determinism_check|debug|force_recompute_mm_shapes_by_fqns|backend"
    r"|enable_fsdp_symm_mem|spmd_backend|context_parallel_ptrr_mask_key|max_norm|steps|mixed_precision_reduce|gc_\w+)$)"
)
"""Options of a command that no row reads and that 0.3.0 does not have, in sections of layout, model and batch."""
_NO_SUCH_OPTION = "torchtitan 0.3.0 has no such option; those of other releases may set the layout"
_OF_THIS_RELEASE = "write it as torchtitan 0.3.0 has it, or start from the JSON that --debug.save_config_file writes"
_OF_A_BATCH = re.compile(r"(training|parallelism)\..*(batch|token)\w*")


def _settle_batch(keys: FileSettings, read: ReadFields, unread: str | None) -> None:
    """Complete the batch, and leave it open where a configuration that was not read may say it, or an option that no
    row has, and for tokens that are no whole sequences."""
    is_uneven = is_in_tokens(keys) and "micro_batch_size" not in {*read.layout, *keys.in_doubt}
    if is_uneven or any(map(_OF_A_BATCH.fullmatch, keys.unread(_KNOWN))):
        keys.notes.append("The batch is not in whole sequences, or an option that is not read decides it: fill it in.")
        keys.in_doubt += ("micro_batch_size", "grad_accum_steps", "global_batch_size")
    elif unread and "global_batch_size" not in read.top:
        keys.in_doubt += ("grad_accum_steps", "global_batch_size")
    for name in keys.in_doubt:
        read.layout.pop(name, None)
        read.top.pop(name, None)
    read.complete(keys, "the local batch of every data-parallel rank")


def _settle_shards(layout: dict[str, Any]) -> None:
    """Set ZeRO 0 where all data-parallel ranks are replicas, so that nothing is sharded."""
    replicas, is_cut = layout.get("data_parallel_replicas"), layout.get("context_parallel", 1) > 1
    if replicas and replicas == layout.get("data_parallel") and not is_cut:
        layout["zero_stage"], layout["data_parallel_replicas"] = 0, 1


def _left_open(layout: Mapping[str, Any]) -> tuple[str, ...]:
    """Layout fields that no option decides, without those that few layouts have."""
    names = dict.fromkeys(row.field for row in TORCHTITAN_TABLE.rows if row.read and row.field in AXES)
    return tuple(name for name in names if name not in layout and name not in _IN_FEW_LAYOUTS)


_IN_FEW_LAYOUTS = ("recompute_layers", "recompute_modules", "pipeline_split", "context_parallel", *EXPERT_GROUPS)


def _differences(keys: FileSettings, layout: Mapping[str, Any]) -> Iterator[str]:
    """Notes on what the training has and a trial has not."""
    words = [str(word)[:40] for word in keys.listed(f"{_M}float8.filter_fqns")]
    if keys.has(f"{_M}float8.recipe_name") and {*words} - {"router.gate"} != {"lm_head"}:
        yield f"The training leaves {', '.join(words) or 'no linear layer'} in bf16; {_IN_TRIALS}."
    words = [str(word)[:40] for word in keys.listed(f"{_M}mxfp8.fqns")]
    if keys.has(f"{_M}mxfp8.fqns") and words not in (["layers"], ["layers."]):
        yield f"The training converts {', '.join(words) or 'every linear layer'} to mxfp8; {_IN_TRIALS}."
    if keys.has("loss.num_chunks"):
        yield "The training computes the loss in chunks of the sequence; trials compute it at once."
    if keys.value(f"{_T}disable_cuda_graphs") is False and stages(keys) == 1:
        yield (
            "The training captures each pass in a CUDA graph, torchtitan's default; trials, the baseline included, run"
            " without (training.disable_cuda_graphs)."
        )
    if keys.text(f"{_M}attn_backend") == "flex_flash":
        yield "FlexAttention has another backend (flex_flash) in the training; trials take its own."
    if keys.has("compile.enable") and "model" not in components(keys):
        yield "Trials compile the blocks of the model or nothing; the training compiles other parts alone."
    groups = [group for group in keys.listed("optimizer.param_groups") if isinstance(group, Mapping)]
    optimizers = dict.fromkeys(str(group.get("optimizer_name", "AdamW"))[:40] for group in groups)
    if others := [name for name in optimizers if name != "AdamW"]:
        yield f"Trials train by AdamW; the training has {' and '.join(others)}."
    at_once, steps = micro_batches_of_a_pass(keys), layout.get("grad_accum_steps")
    if (stages(keys) or 1) > 1 and at_once and steps and steps > at_once:
        yield (
            f"The training sends {at_once} of a step's {steps} micro-batches through the pipeline at a time; trials"
            " send all of them."
        )


_IN_TRIALS = "trials multiply all in 8 bits but the head and routers"


def _changes(keys: FileSettings) -> Iterator[Problem]:
    """Problems with values of the layout that trials would train otherwise."""
    dtype = f"{_T}dtype"
    if keys.text(dtype) == "bfloat16":
        yield keys.problem(dtype, "trials have weights, gradients and optimizer states in fp32", "set it to float32")


def _of_the_split(keys: FileSettings, model: Mapping[str, Any], layout: dict[str, Any]) -> Iterator[Problem]:
    """Take the engine's own split for what it is; a problem with stages whose layers no split of a layout says."""
    counts, is_known = listed_layers(keys), model.keys() >= _NEEDED
    own = stage_layers(ModelShape.from_json(model), len(counts)) if counts and is_known else None
    name = LISTS if counts else f"{_P}pipeline_parallel_first_stage_less_layers"
    if counts and counts == own:
        for field in SPLIT_FIELDS:
            layout.pop(field, None)
    elif (stages(keys) or 1) > 1 and layout.keys().isdisjoint(SPLIT_FIELDS) and (own or not counts):
        rule = "without pipeline_split, first_stage_layers or last_stage_layers trials split layers by a stage's work"
        if keys.value(name) is not None:
            yield keys.problem(name, rule, "give all stages but the first and the last the same number of layers")


_NEEDED = ModelShape.__dataclass_fields__.keys() - MODEL_DEFAULTS.keys()
_VALUE_RULES: ValueRules = (
    one_of(f"{_M}name", ("llama3", "qwen3"), "a search's model is torchtitan's llama3 or qwen3"),
    one_of(f"{_P}context_parallel_load_balancer", ("headtail",), "context-parallel ranks have a chunk of each half"),
)
