"""Import of a script around transformers' Trainer or TRL, by the options that these two give it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from orchestrator.config.importers.accelerate import read_accelerate
from orchestrator.config.importers.bash.script import Script, Word
from orchestrator.config.importers.batch import complete_batch
from orchestrator.config.importers.command_settings import LAUNCHER, command_settings
from orchestrator.config.importers.imported_config import ImportedConfig
from orchestrator.config.importers.ranks import Ranks, ranks_of
from orchestrator.config.importers.rows import read_rows
from orchestrator.config.importers.settings import FileSettings
from orchestrator.config.importers.slurm_header import SlurmHeader
from orchestrator.config.importers.source_file import ReadFile
from search_spaces.adapters import ALL_LINEAR, NAMES_OF_LIBRARY, TRANSFORMERS
from search_spaces.engines import ACCELERATE_LAUNCH
from search_spaces.errors import InputError
from trials.trainers.command.trainer import without_placeholders
from trials.trainers.common.adapter_rows import adapter_rows
from trials.trainers.common.options import option_names
from trials.trainers.table import Keys, Row, Table, by_option, number

_CHARACTERISTIC = ("per-device-train-batch-size", "gradient-accumulation-steps", "model-name-or-path", "use-peft")
_PLACEHOLDERS = {
    **dict(zip(_CHARACTERISTIC, ("{micro_batch_size}", "{grad_accum_steps}"), strict=False)),
    "max-steps": "{train_iterations}",
    "output-dir": "{attempt_folder}",
}
"""Values of options that a trial decides; a script is told the first two in any case."""
_RECOMPUTED = "--gradient_checkpointing stays among the arguments: no layout has it, and no prediction."


def _precision(keys: Keys) -> str | None:
    own = next((name for name in ("bf16", "fp16") if keys.flag(name)), None)
    return own or keys.chosen("mixed_precision", {"no": "fp32", "bf16": "bf16", "fp16": "fp16"}, None)


def _kind(keys: Keys) -> str | None:
    if keys.flag("use_peft"):
        return "qlora" if keys.flag("load_in_4bit") else "lora"
    others = (name for name in keys.given if _OF_OTHERS.search(name) and keys.text(name) not in ("full", "false"))
    if (name := next(others, None)) is not None:
        rule = "adapters are read from TRL's options, --use_peft and --lora_r among them"
        raise InputError(keys.problem(name, rule, "write adapters into the search file of a copy without it"))
    if _UNUSED not in keys.notes and any(name.startswith("lora_") for name in keys.given):
        keys.notes.append(_UNUSED)
    return None


_OF_OTHERS = re.compile(r"^use_lora$|^lora_rank$|^peft_|^finetuning_type$")
_UNUSED = "--lora_* are TRL's, which trains all weights without --use_peft: give adapters if the script adds them."


_OPTIONS = Table(
    "transformers and TRL",
    "5.23.0, 1.16.0",
    (
        number("micro_batch_size", "per_device_train_batch_size", 8),
        number("grad_accum_steps", "gradient_accumulation_steps", 1),
        number("seq_length", "max_length", instead=("max_seq_length",)),
        Row("precision", read=_precision),
        Row("attention_kernel", read=lambda keys: "math" if keys.text("attn_implementation") == "eager" else "flash"),
        *adapter_rows(
            {"rank": "lora_r", "alpha": "lora_alpha", "target_modules": "lora_target_modules"},
            {name: name for name in (ALL_LINEAR, *NAMES_OF_LIBRARY[TRANSFORMERS])},
            _kind,
            defaults={"rank": 16, "alpha": 32},
        ),
    ),
    by_option(
        {
            "accelerate's configuration, by --config_file, divides the model": "deepspeed fsdp* use_fsdp use_deepspeed",
            "adapters are LoRA's, of modules beside weights in 16 or 4 bits": "use_dora load_in_8bit *_parameters",
            "modules that train beside adapters are not read": "lora_modules_to_save",
        }
    ),
    prefix="--",
)


def is_transformers_command(words: Sequence[Word]) -> bool:
    """True for a command with several options of transformers' Trainer or TRL."""
    return len(option_names(word.text for word in words) & {*_CHARACTERISTIC}) > 1


def read_transformers_command(
    words: Sequence[Word], script: Script, header: SlurmHeader, read_file: ReadFile | None = None
) -> ImportedConfig:
    """The values of this training command: of its own options, and of the configuration that accelerate has.

    InputError for options that no search file expresses, and as `read_accelerate` says.
    """
    options = command_settings(words, LAUNCHER, script)
    given = {name.replace("-", "_"): replace(each, key=f"--{name}") for name, each in options.given.items()}
    keys = FileSettings(given, _OPTIONS, options.notes)
    if problems := [*options.problems(), *keys.problems()]:
        raise InputError(*problems)
    read, base = read_rows(_OPTIONS, keys), _configuration(options, read_file)
    ranks = ranks_of([word.text for word in words], options, header, script.exported)
    if base.num_nodes is not None and not options.has("num-machines", "num-processes"):
        ranks = Ranks(base.num_nodes, base.gpus_per_node)
    layout = {"zero_stage": 0, "tensor_parallel": 1, "pipeline_parallel": 1, **base.layout, **read.layout}
    batch = complete_batch(layout, None, ranks.num_nodes, ranks.gpus_per_node, keys.in_doubt)
    recomputed = [_RECOMPUTED] if keys.flag("gradient_checkpointing") else []
    return replace(
        base,
        model=read.model,
        layout=layout,
        global_batch_size=batch,
        num_nodes=ranks.num_nodes,
        gpus_per_node=ranks.gpus_per_node,
        origins={**base.origins, **ranks.origins, **read.origins},
        notes=(*base.notes, *keys.notes, *recomputed),
        engine="command" if read.adapters and base.engine != ACCELERATE_LAUNCH else base.engine,
        left_open=tuple(name for name in ("precision",) if name not in layout),
        in_doubt=tuple(keys.in_doubt),
        arguments=tuple(_arguments(command_settings(words[_program(words) :], LAUNCHER, script))),
        adapters=read.adapters,
        finetunes=True,
    )


def _configuration(options: FileSettings, read_file: ReadFile | None) -> ImportedConfig:
    """What is behind --config_file."""
    name = options.text("config-file")
    if name is None or read_file is None:
        return ImportedConfig("accelerate", engine=ACCELERATE_LAUNCH)
    try:
        return read_accelerate(read_file(name), read_file)
    except InputError as error:
        raise error.at(file=name) from None


def _program(words: Sequence[Word]) -> int:
    """Index of the script, else of the module, else 0: `trl sft` is a program by itself."""
    scripts = [index for index, word in enumerate(words) if word.text.endswith(".py")]
    modules = [index + 1 for index, word in enumerate(words) if word.text == "-m"]
    return (scripts or modules[-1:] or [0])[0]


def _arguments(options: FileSettings) -> Iterator[str]:
    """The script's options as they are, with placeholders for what a trial decides."""
    for name in options.given:
        option, *values = options.words_of({name})
        yield from (option, *([_PLACEHOLDERS[name]] if name in _PLACEHOLDERS else map(without_placeholders, values)))
    for name in _CHARACTERISTIC[:2]:
        if name not in options.given:
            yield from (f"--{name.replace('-', '_')}", _PLACEHOLDERS[name])
