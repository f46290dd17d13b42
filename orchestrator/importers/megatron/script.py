"""Import of Megatron's training command as model, layout and batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from orchestrator.importers import reasons
from orchestrator.importers.bash.script import Script, Word
from orchestrator.importers.batch import complete_batch, require_agreement
from orchestrator.importers.command_settings import command_settings
from orchestrator.importers.imported_config import ImportedConfig
from orchestrator.importers.launcher_options import LAUNCHER_GROUPS
from orchestrator.importers.megatron.differences import changes, differences
from orchestrator.importers.megatron.ds_config import named_ds_config
from orchestrator.importers.megatron.layout_fields import LAYOUT_FIELDS
from orchestrator.importers.megatron.megatron_deepspeed_options import MEGATRON_DEEPSPEED_OPTIONS
from orchestrator.importers.megatron.megatron_lm_options import MEGATRON_LM_OPTIONS
from orchestrator.importers.megatron.model_fields import MODEL_FIELDS, is_megatron_deepspeed
from orchestrator.importers.megatron.programs import program_notes, program_problems
from orchestrator.importers.megatron.value_rules import MEGATRON_VALUE_RULES, last_of_schedule
from orchestrator.importers.option_table import Handling
from orchestrator.importers.ranks import ranks_of
from orchestrator.importers.settings import FieldReaders, Settings, read_fields, turn_off_sequence_parallel
from orchestrator.importers.slurm_header import SlurmHeader
from orchestrator.importers.source_file import ReadFile
from search_spaces.errors import InputError
from trials.trainers.common.megatron_options import unsupported_option_reason
from trials.trainers.common.options import option_names

_LM_TABLE = MEGATRON_LM_OPTIONS.with_groups(LAUNCHER_GROUPS)
_DEEPSPEED_TABLE = MEGATRON_DEEPSPEED_OPTIONS.with_groups(LAUNCHER_GROUPS)
_DEEPSPEED_MARKS = ("deepspeed", "deepspeed-config", "zero-stage", "no-pipeline-parallel")
_CHARACTERISTIC_OPTIONS = ("num-layers", "hidden-size", "tensor-model-parallel-size", "micro-batch-size")


def num_characteristic_options(words: Sequence[Word]) -> int:
    """Number of options that only a Megatron command has."""
    return len(option_names(word.text for word in words) & {*_CHARACTERISTIC_OPTIONS})


def read_megatron_command(
    words: Sequence[Word], script: Script, header: SlurmHeader, read_file: ReadFile | None
) -> ImportedConfig:
    """The values of this training command of the script.

    Absent options have Megatron's own defaults. Every option is read, has no effect on a trial, is left out with a note
    or is refused. A value that is not known is reported, not guessed. InputError for another program than a GPT's, for
    options that no search file expresses, and when the numbers contradict each other.
    """
    texts = [word.text for word in words]
    is_deepspeed = option_names(texts) & {*_DEEPSPEED_MARKS}
    options = command_settings(words, _DEEPSPEED_TABLE if is_deepspeed else _LM_TABLE, script)
    if problems := [*program_problems(texts), *options.problems(MEGATRON_VALUE_RULES)]:
        raise InputError(*problems)
    model, model_origins = read_fields(options, "model", MODEL_FIELDS)
    layout, layout_origins = read_fields(options, "baseline", LAYOUT_FIELDS)
    turn_off_sequence_parallel(layout, options)
    top, top_origins = read_fields(options, "", _BATCH_FIELDS)
    batch: int | None = top.get("global_batch_size")
    config = named_ds_config(words, script, options, read_file) if is_deepspeed else None
    options.in_doubt += [name for name in (config.in_doubt if config else ()) if name not in {**layout, **top}]
    origins = {**model_origins, **layout_origins, **top_origins}
    if config:
        require_agreement(
            {**layout, "global_batch_size": batch}, _numbers(config), "the command and its DeepSpeed config"
        )
        layout, batch = {**config.layout, **layout}, batch or config.global_batch_size
        origins = {**config.origins, **origins}
        options.notes += config.notes
    ranks = ranks_of(texts, options, header, script.exported)
    batch = complete_batch(layout, batch, ranks.num_nodes, ranks.gpus_per_node, options.in_doubt)
    kept = _kept(options)
    notes = [
        *options.notes,
        *program_notes(texts),
        *options.left_out(kept),
        *differences(options, model, layout),
    ]
    source = "megatron-deepspeed" if is_deepspeed else "megatron-lm"
    return ImportedConfig(
        source,
        model,
        layout,
        batch,
        ranks.num_nodes,
        ranks.gpus_per_node,
        origins={"global_batch_size": _ONE_MICRO_BATCH, **origins, **ranks.origins},
        notes=tuple(dict.fromkeys(notes)),
        engine=source,
        in_doubt=tuple(options.in_doubt),
        changed=tuple(changes(options, layout)),
        arguments=(*options.words_of(kept), *_default_dropouts(options)),
    )


def _kept(options: Settings) -> list[str]:
    """Options that trials have as they are: those of the data, and those without a field of layout or model."""
    groups = {name: group for name in options.given if (group := options.table.group_of.get(name))}
    return [
        name
        for name, group in groups.items()
        if unsupported_option_reason(name) is None
        and (
            (group.handling is Handling.NOTED and group.reason != reasons.WATCHED)
            or group.reason == reasons.TOKENS
            or name in (*_TOKENIZER, *_DROPOUTS)
            or (name == "clip-grad" and not is_megatron_deepspeed(options))
        )
    ]


_TOKENIZER = ("tokenizer-type", "vocab-size")
"""Options of the tokenizer that are read for the model's vocabulary."""
_DROPOUTS = ("attention-dropout", "hidden-dropout")


def _default_dropouts(options: Settings) -> Iterator[str]:
    """Megatron's dropout where the command has none: trials are otherwise without."""
    for name in _DROPOUTS:
        if name not in options.given:
            yield from (f"--{name}", "0.1")


_ONE_MICRO_BATCH = "Megatron's default: one micro-batch a data-parallel rank"


def _batch_size(options: Settings) -> int | None:
    return options.count("global-batch-size") or last_of_schedule(options)


_BATCH_FIELDS: FieldReaders = {"global_batch_size": _batch_size}


def _numbers(config: ImportedConfig) -> Mapping[str, Any]:
    names = ("micro_batch_size", "zero_stage", "precision")
    return {**{n: config.layout.get(n) for n in names}, "global_batch_size": config.global_batch_size}
