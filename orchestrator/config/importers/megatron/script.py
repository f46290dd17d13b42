"""Import of Megatron's training command as model, layout and batch, with the configuration that DeepSpeed opens."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice, pairwise
from typing import Any

from orchestrator.config.importers.bash.script import Script, Word
from orchestrator.config.importers.batch import complete_batch, require_agreement
from orchestrator.config.importers.command_settings import LAUNCHER, LAUNCHER_OPTIONS, command_settings, default_notes
from orchestrator.config.importers.deepspeed_config import CHARACTERISTIC_KEYS, read_ds_config
from orchestrator.config.importers.imported_config import ImportedConfig
from orchestrator.config.importers.megatron.fields import EXPERT_LAYERS, changes, core_settings, differences
from orchestrator.config.importers.ranks import ranks_of
from orchestrator.config.importers.rows import read_rows
from orchestrator.config.importers.settings import CODE, FileSettings, Setting
from orchestrator.config.importers.slurm_header import SlurmHeader
from orchestrator.config.importers.source_file import ReadFile, json_object
from search_spaces.errors import InputError, Problem
from trials.trainers.common.megatron_options import MEGATRON_LM, CommandLine, num_tokens
from trials.trainers.common.options import option_names
from trials.trainers.megatron_deepspeed.trainer import MEGATRON_DEEPSPEED

_DEEPSPEED_MARKS = ("deepspeed", "deepspeed-config", "zero-stage", "no-pipeline-parallel")
_OF_DEEPSPEED = ("deepspeed", "deepspeed-config", "deepspeed-activation-checkpointing")
_CHARACTERISTIC_OPTIONS = ("num-layers", "hidden-size", "tensor-model-parallel-size", "micro-batch-size")
_CHUNKS, _LAYERS_A_CHUNK = "virtual_pipeline_model_parallel_size", "num_layers_per_virtual_pipeline_stage"


_OTHER_PROGRAMS = re.compile(
    r"bert|t5|ict|retro|biencoder|orqa|mamba|hybrid|ssm|vlm|vision|multimodal|mimo|dino|clip|_rl\b|grpo|rlhf|dpo|sft"
    r"|generat|inference|serv|evaluat|mmlu|convert|checkpoint|merge|preprocess|quantiz|prune|export|interop|inspect"
    r"|prepare|download|tasks/|detxoify|post_training|distill|race|glue|finetune|(^|/)tools/|analy[sz]e|simple_mcore"
)
"""Programs that pretrain no GPT, by their path."""
_GPT_PROGRAM = re.compile(r"(pretrain|train)_?(gpt|llama)\w{0,80}\.py$")
"""pretrain_gpt.py and programs named like it."""
_OF_THE_CONFIG = ("micro_batch_size", "global_batch_size", "zero_stage", "offload", "overlap_comm", "bucket_mib")
"""Fields that the configuration decides where the command does not."""


def num_characteristic_options(words: Sequence[Word]) -> int:
    """Number of options that only a Megatron command has."""
    return len(option_names(word.text for word in words) & {*_CHARACTERISTIC_OPTIONS})


def read_megatron_command(
    words: Sequence[Word], script: Script, header: SlurmHeader, read_file: ReadFile | None
) -> ImportedConfig:
    """The values of this training command of the script.

    Absent options have Megatron's own defaults. Every option is read, kept for the trainer, named in a note or refused.
    A value that is not known is reported, not guessed. InputError for another program than a GPT's, for options that no
    search file expresses, and when the numbers contradict each other.
    """
    texts = [word.text for word in words]
    is_deepspeed = bool(option_names(texts) & {*_DEEPSPEED_MARKS})
    command = MEGATRON_DEEPSPEED if is_deepspeed else MEGATRON_LM
    table = command.table
    options = command_settings(words, replace(table, flags=command.switches | LAUNCHER.flags), script)
    fields = _fields(options, command)
    refused = FileSettings(options.given, LAUNCHER).problems(), FileSettings(fields, table).problems()
    if problems := [*_other_training(texts), *chain(*refused)]:
        raise InputError(*problems)
    keys = core_settings(fields, table, options.notes, leaves_open=False)
    read = read_rows(table, keys, {} if is_deepspeed else EXPERT_LAYERS)
    model, layout, batch = read.model, read.layout, read.top.get("global_batch_size") or _last_of_schedule(keys)
    origins = read.origins
    config = named_ds_config(script, options, read_file) if is_deepspeed else None
    if config:
        keys.in_doubt += [name for name in config.in_doubt if name not in {**layout, **read.top}]
        _require_the_same(config, layout, batch)
        layout, batch = {**config.layout, **layout}, batch or config.global_batch_size
        origins = {**config.origins, **origins}
    ranks = ranks_of(texts, options, header, script.exported)
    batch = complete_batch(layout, batch, ranks.num_nodes, ranks.gpus_per_node, keys.in_doubt)
    changed = tuple(changes(keys, layout))
    differing = [*_vocabulary(keys), *differences(keys, read), *_of_the_command(keys, model, layout, is_deepspeed)]
    kept = _kept(options, keys, model, is_deepspeed)
    kept_fields = [name for name in keys.unread() if keys.key(name).removeprefix("--") in kept | {*_OF_DEEPSPEED}]
    of_the_config = config.notes if config else ()
    notes = [*options.notes, *of_the_config, *_unknown_program(texts), *differing, *keys.not_read(kept=kept_fields)]
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
        in_doubt=tuple(dict.fromkeys(keys.in_doubt)),
        changed=changed,
        arguments=(*options.words_of(kept), *_default_dropouts(options)),
    )


def _other_training(words: Sequence[str]) -> Iterator[Problem]:
    """A problem if the command starts another program of Megatron's than a GPT's."""
    for program in _other_program(words):
        if _OTHER_PROGRAMS.search(program.replace(".", "/")):
            yield Problem(
                CODE,
                f"starts {program}, which pretrains no GPT",
                rule="a search trains a decoder-only GPT, as pretrain_gpt.py does",
                fix="give a script that starts pretrain_gpt.py",
            )


def _unknown_program(words: Sequence[str]) -> Iterator[str]:
    """A note on a program that is not known."""
    for program in _other_program(words):
        yield f"{program} is taken for a program that trains a decoder-only GPT, as pretrain_gpt.py does."


def _other_program(words: Sequence[str]) -> Iterator[str]:
    """The Python program or module that the command starts, if it is not named like a GPT's and can be seen."""
    is_module = [before == "-m" and not word.startswith("torch.distributed") for before, word in pairwise(("", *words))]
    programs = (word for word, module in zip(words, is_module, strict=True) if module or word.endswith(".py"))
    yield from (program for program in islice(programs, 1) if not _GPT_PROGRAM.search(program))


_ONE_MICRO_BATCH = "Megatron's default: one micro-batch a data-parallel rank"


def _fields(options: FileSettings, command: CommandLine) -> dict[str, Setting]:
    """The options by the core's names; flags prevail over options with a value, as a note says. An option whose name is
    not known, `--$DTYPE`, is nearly always that of the precision."""
    found: dict[str, Setting] = {}
    unnamed = {*options.unnamed}
    for option, setting in sorted(options.given.items(), key=lambda each: each[1].value is True):
        named = replace(setting, key=f"--{option}")
        if option in unnamed:
            found["bf16" if not found.keys() & {"bf16", "fp16"} else option] = named
        elif option not in LAUNCHER_OPTIONS:
            for name, value in command.fields(option, setting.value).items():
                if name in found and found[name].value != value:
                    options.notes.append(f"{found[name].key} was not used: {named.key} says it, too.")
                found[name] = replace(named, value=value)
    if _LAYERS_A_CHUNK in found and _CHUNKS not in found:
        found[_CHUNKS] = _chunks(FileSettings(found, options.table, options.notes))
        del found[_LAYERS_A_CHUNK]
    return found


def _chunks(keys: FileSettings) -> Setting:
    """The model chunks of a stage, where the command says the layers of a chunk."""
    sizes = ("num_layers", "pipeline_model_parallel_size", _LAYERS_A_CHUNK)
    counted = sum(keys.has(f"account_for_{part}_in_pipeline_split") for part in ("embedding", "loss"))
    layers, stages, each = map(keys.count, sizes)
    doubt = next((keys.given[name].doubt for name in sizes if keys.is_in_doubt(name)), None)
    known = None if doubt or not (layers and each) else max(1, (layers + counted) // ((stages or 1) * each))
    return replace(keys.given[_LAYERS_A_CHUNK], value=known, doubt=doubt)


_READ_AND_KEPT = ("tokenizer-type", "vocab-size", "transformer-impl")
_BALANCING = ("moe-router-load-balancing-type", "moe-aux-loss-coeff")
_NOT_KEPT = re.compile(
    r"(no-)?(save|load|log|eval|exit|profile|tensorboard|wandb|one-logger|non-persistent)(-|$).*|.*(ckpt|-save-).*"
    r"|lr-(decay|warmup|wsd)-.*|(train|skip|valid|test)-(iters|samples|tokens)|timing-log-.*|.*(autoresume|validation).*"
    r"|async-save|pretrained-checkpoint|finetune|.*opt-param-scheduler|use-pytorch-profiler|record-.*|reset-iteration"
    r"|memory-snapshot-path|universal-checkpoint|rampup-.*|step-batch-.*|.*straggler.*|help"
)
"""Options of outputs, logs, checkpoints, evaluation, profiling, the learning rate's schedule and the length."""


def _kept(options: FileSettings, keys: FileSettings, model: Mapping[str, Any], is_deepspeed: bool) -> set[str]:
    """Options that trials have as they are: those that no row reads, and that may be arguments. One that may be a
    secret is not among them."""
    kept = {keys.key(name).removeprefix("--") for name in keys.unread()} - {*options.unnamed}
    kept |= {*_READ_AND_KEPT, *(() if "aux_loss_coefficient" in model else _BALANCING)}
    why_not = (MEGATRON_DEEPSPEED if is_deepspeed else MEGATRON_LM).refusal
    return {
        name
        for name, setting in options.given.items()
        if name in kept
        and (setting.doubt is not None or options.shown(name) == setting.value)
        and why_not(name) is None
        and not _NOT_KEPT.fullmatch(name)
        and not (is_deepspeed and name == "clip-grad")
    }


def _default_dropouts(options: FileSettings) -> Iterator[str]:
    """Megatron's dropout where the command has none: trials are otherwise without."""
    for name in ("attention-dropout", "hidden-dropout"):
        if name not in options.given:
            yield from (f"--{name}", "0.1")


def _last_of_schedule(keys: FileSettings) -> int | None:
    """The last global batch of --step-batch-size-schedule, `0:768 250B:1536`."""
    found = re.search(r":([0-9]{1,9})$", (keys.text("step_batch_size_schedule") or "").strip())
    return int(found[1]) if found else None


def _require_the_same(config: ImportedConfig, layout: Mapping[str, Any], batch: int | None) -> None:
    """InputError for a number that the command and its DeepSpeed configuration have with different values."""
    theirs = {name: config.layout.get(name) for name in ("micro_batch_size", "zero_stage", "precision")}
    ours = {**layout, "global_batch_size": batch}
    where = "the command and its DeepSpeed config"
    require_agreement(ours, {**theirs, "global_batch_size": config.global_batch_size}, where)


def _vocabulary(keys: FileSettings) -> Iterator[str]:
    """Notes on a vocabulary that the tokenizer decides, not --vocab-size."""
    tokenizer, stated = keys.text("tokenizer_type"), keys.given.get("vocab_size")
    is_open = "vocab_size" in keys.in_doubt
    if keys.has("padded_vocab_size") or (tokenizer is None and keys.has("tokenizer_type")):
        return
    if tokenizer in (None, "GPT2BPETokenizer"):
        unused = "; --vocab-size is not used" if stated else ""
        padded = "is padded to a multiple that is not known" if is_open else "was taken, padded as Megatron pads it"
        yield f"vocab_size: {num_tokens(keys)} of GPT-2's tokenizer {padded}{unused}."
    elif stated is None:
        yield "vocab_size is not in the script: the tokenizer decides it."
    elif not is_open and tokenizer not in ("NullTokenizer", "NullMultimodalTokenizer", "TikTokenizer"):
        yield f"vocab_size: --vocab-size {keys.text('vocab_size')} was taken; Megatron has that of {tokenizer}'s files."


def _of_the_command(
    keys: FileSettings, model: Mapping[str, Any], layout: Mapping[str, Any], is_deepspeed: bool
) -> Iterator[str]:
    positions = keys.text("max_position_embeddings")
    if model.get("position_embedding") == "learned" and positions not in (None, str(model.get("seq_length"))):
        yield f"--max-position-embeddings is {positions}; a model has seq_length learned positions."
    if is_deepspeed and layout.get("activation_checkpointing") is None and keys.has("recompute_granularity"):
        yield "Megatron-DeepSpeed's pipeline recomputes nothing without --recompute-method uniform."
    for name in ("rampup_batch_size", "step_batch_size_schedule"):
        if keys.has(name):
            yield f"{keys.key(name)}: the batch grows in the training; trials have the last global batch."


def named_ds_config(script: Script, options: FileSettings, read_file: ReadFile | None) -> ImportedConfig | None:
    """The values of the file that DeepSpeed opens when this command runs; None where the command names none.

    Where its text is not known, all that it decides is in doubt. A name that is not known is that of the only
    configuration that the script writes.
    """
    named, files = options.given.get("deepspeed-config"), script.files
    path = None if named is None else posixpath.normpath(str(named.value))
    if path is not None and path in files:
        return _written(path, files[path], script)
    if named is not None and named.doubt is None:
        return _beside(str(named.value), read_file)
    written = _configs(files)
    if len(written) == 1:
        ((path, document),) = written.items()
        options.notes.append(f"{path} is taken for the DeepSpeed config, whose name is not known.")
        return _written(path, document, script)
    return _unknown("The DeepSpeed config is not known") if named or written else None


def _written(path: str, document: Word | None, script: Script) -> ImportedConfig:
    """The values of a file that the script writes. It may be filled in by a program that is not known."""
    if document is None:
        return _unknown(f"The DeepSpeed config {path} is written in a way that is not known")
    try:
        json_object(document.text, CODE, "a DeepSpeed config")
    except InputError as error:
        return _unknown(f"The DeepSpeed config {path}, as the script writes it, is {error.problems[0].message}")
    config = read_ds_config(document.text)
    return replace(config, notes=(*default_notes([document], script.defaults), *config.notes))


def _beside(path: str, read_file: ReadFile | None) -> ImportedConfig:
    """The values of a file that is there before the script runs."""
    try:
        text = None if read_file is None else read_file(path)
    except (InputError, OSError):
        text = None
    if text is None:
        return _unknown(f"{path} behind --deepspeed-config was not read")
    try:
        return read_ds_config(text)
    except InputError as error:
        raise error.at(file=path) from None


def _configs(files: Mapping[str, Word | None]) -> dict[str, Word | None]:
    """Files that may be a DeepSpeed config, by their name or their keys."""
    return {
        path: file
        for path, file in files.items()
        if path.endswith(".json") or (file and any(f'"{key}"' in file.text for key in CHARACTERISTIC_KEYS))
    }


def _unknown(why: str) -> ImportedConfig:
    return ImportedConfig(
        "deepspeed", notes=(f"{why}: values that only it has are asked for.",), in_doubt=_OF_THE_CONFIG
    )
