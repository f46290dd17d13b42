"""Import of Megatron-Bridge: a recipe's overrides, in a file or in the command that trains with it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from orchestrator.config.importers.bash.script import Script, Word
from orchestrator.config.importers.batch import complete_batch
from orchestrator.config.importers.command_settings import LAUNCHER, LAUNCHER_OPTIONS, command_settings, from_starter
from orchestrator.config.importers.imported_config import ImportedConfig
from orchestrator.config.importers.megatron.fields import EXPERT_LAYERS, changes, core_settings, differences
from orchestrator.config.importers.ranks import Ranks, ranks_of
from orchestrator.config.importers.rows import read_rows
from orchestrator.config.importers.settings import CODE, FileSettings, Setting, flat
from orchestrator.config.importers.slurm_header import SlurmHeader
from orchestrator.config.importers.source_file import ReadFile, yaml_document
from search_spaces.errors import InputError, Problem
from search_spaces.layouts.layout import AXES, EXPERT_GROUPS
from trials.trainers.common.megatron_core import all_fields
from trials.trainers.common.megatron_layout import has_experts
from trials.trainers.megatron_bridge.trainer import (
    KEEPS_ENDS,
    LORA,
    LORA_CLASS,
    MEGATRON_BRIDGE,
    OF_MIXED_PRECISION,
    override_sections,
    precision_fields,
)
from trials.trainers.table import Table

_SECTIONS = {"model", "ddp", "dataset", "scheduler", "mixed_precision", "comm_overlap"}
_READ = {"model", "ddp", "optimizer", "dist", "train", "dataset", "comm_overlap", "mixed_precision", "peft"}
_ALSO = {
    "sequence_length": "seq_length",
    "cuda_graph_modules": "cuda_graph_scope",
    "fp8_param_gather": "fp8_param",
    "fp4_param_gather": "fp4_param",
}
_NO_RANKS = Ranks(None, None)

Given = Mapping[str, Setting]
"""Settings by their dotted keys."""


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


def config_settings(text: str) -> Given:
    """The settings of a YAML file of overrides."""
    document = yaml_document(text)

    def line(name: str) -> int | None:
        return document.location(tuple(name.split("."))).line

    values = _plain(document.data)
    return flat(values if isinstance(values, Mapping) else {}, MEGATRON_BRIDGE, line)


def imported_overrides(
    given: Given, recipe: str | None = None, ranks: Ranks = _NO_RANKS, mode: Setting | None = None
) -> ImportedConfig:
    """The values of a recipe's overrides on these ranks, in this mode of training. What none of them says stays open:
    the recipe is Python and is not read.

    InputError for keys, values and recipes that no search file expresses, and for numbers that contradict each other.
    """
    fields = _fields(given)
    mode = mode or _mode_in(recipe)
    if mode and mode.value in _WITH_ADAPTERS:
        fields.setdefault(LORA, replace(mode, value=_WITH_ADAPTERS[mode.value], key=mode.key or "--mode"))
    if problems := [*_recipe_problems(recipe), *FileSettings(fields, MEGATRON_BRIDGE).problems()]:
        raise InputError(*problems)
    keys = core_settings(fields, MEGATRON_BRIDGE, [], leaves_open=True)
    read = read_rows(MEGATRON_BRIDGE, keys, EXPERT_LAYERS)
    layout, origins = read.layout, read.origins
    if "precision" not in layout and _precision_in(recipe) == "bf16":
        layout["precision"], origins["baseline.precision"] = "bf16", f"the name of the recipe {recipe}"
    left_open = tuple(_left_open(keys, layout, re.search(_OF_EXPERTS, recipe or "") is not None))
    batch = read.top.get("global_batch_size")
    batch = complete_batch(layout, batch, ranks.num_nodes, ranks.gpus_per_node, ("global_batch_size",))
    changed = tuple(changes(keys, layout))
    notes = [
        *_of_the_recipe(recipe, left_open),
        *keys.notes,
        *_dropout(keys),
        *differences(keys, read),
        *keys.not_read(),
    ]
    return ImportedConfig(
        "megatron-bridge",
        read.model,
        layout,
        batch,
        ranks.num_nodes,
        ranks.gpus_per_node,
        origins={**origins, **ranks.origins},
        notes=tuple(dict.fromkeys(notes)),
        engine="command" if read.adapters else "megatron-lm",
        adapters=read.adapters,
        finetunes=mode is not None and mode.value != "pretrain",
        left_open=left_open,
        in_doubt=tuple(keys.in_doubt),
        changed=changed,
    )


def _plain(value: Any) -> Any:
    """A ConfigContainer's values without the names of their classes, but that of adapters; a function or a type is its
    name."""
    if not isinstance(value, Mapping):
        return value
    named = {name: each for name, each in value.items() if ".peft." in str(each) or not re.fullmatch("_[a-z]+_", name)}
    inner = {name: _plain(each) for name, each in named.items()}
    return value["_target_"] if "_target_" in value and not inner else inner


def _fields(given: Given) -> dict[str, Setting]:
    """The settings by the core's names, where the table has the section of their key; others keep their key, or that of
    a section of which no row reads anything.

    A name may be in two sections: the setting that is on counts. One of comm_overlap or mixed_precision counts before
    all others, since Megatron-Bridge writes these over the configuration.
    """
    found: dict[str, Setting] = {}
    for key, setting in sorted(given.items(), key=lambda each: each[0].startswith(_PREVAILING)):
        section, _, last = key.rpartition(".")
        head, name = key.partition(".")[0], _ALSO.get(last, last)
        named = replace(setting, key=key if head in _READ else head)
        if section in ("comm_overlap", "mixed_precision") and setting.value is not None:
            found[name] = named
        elif section not in override_sections(name):
            found[key] = named
        elif name not in found or found[name].value in (None, False):
            found[name] = named
    function = found.get("activation_func", _NOTHING)
    if isinstance(function.value, str):
        found["activation_func"] = replace(function, value=function.value.rpartition(".")[2])
    is_split = found.get("sequence_parallel", _NOTHING).value is not False
    if not is_split and "comm_overlap.tp_comm_overlap" in given:  # training/comm_overlap.py
        found["tp_comm_overlap"] = replace(found["tp_comm_overlap"], value=False)
    return found | _of_the_precision(found.pop("mixed_precision", _NOTHING))


_PREVAILING = ("comm_overlap.", "mixed_precision.")
_NOTHING = Setting(None)


def _of_the_precision(setting: Setting) -> dict[str, Setting]:
    """The fields that a precision's name decides; InputError for one that is not known."""
    if setting.value is None:
        return {}
    name = str(setting.value).replace("-", "_")
    said = precision_fields(name)
    if said is None and setting.doubt is None:
        rule = "precision is bf16 or fp16, by the name of a mixed precision of Megatron-Bridge or its fields"
        raise InputError(FileSettings({"mixed_precision": setting}, MEGATRON_BRIDGE).problem("mixed_precision", rule))
    kept = "mixed_precision.first_last_layers_bf16"  # no field has it
    kept_ends = {kept: replace(setting, value=True, key=kept)} if name == KEEPS_ENDS else {}
    return kept_ends | {field: replace(setting, value=said and said[field]) for field in OF_MIXED_PRECISION}


def _precision_in(recipe: str | None) -> str | None:
    """The precision in a recipe's name, llama3_8b_pretrain_8gpu_h100_bf16_config."""
    found = re.search(r"_(bf16|fp8[a-z]{0,20}|nvfp4)(?:_[a-z0-9_]{1,80})?_config$", recipe or "")
    return found[1] if found else None


_WITH_ADAPTERS = {"peft": LORA_CLASS, "lora": LORA_CLASS, "dora": "megatron.bridge.peft.dora.DoRA"}
"""Class of the adapters by the mode of a training."""


def _mode_in(recipe: str | None) -> Setting | None:
    """The mode that a recipe's name says, None for a pretraining."""
    found = re.search(r"_(sft|peft|lora|dora|finetune)(_|$)", recipe or "")
    return Setting(found[1], key="--recipe") if found else None


_OTHER_TRAININGS = {
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
        wrong = f"a search trains a GPT; this is {other}"
    if wrong:
        yield Problem(CODE, f"is {recipe}", wrong, "give the command of a GPT's recipe in bf16", key="--recipe")


def _left_open(keys: FileSettings, layout: Mapping[str, Any], recipe_has_experts: bool) -> Iterator[str]:
    """Layout fields that the recipe decides: those of which a key is absent, unless they have no effect, or are of
    experts where neither the keys nor the recipe are known to have any."""
    are_dense = not has_experts(keys) or not (recipe_has_experts or keys.has("num_moe_experts"))
    known = dict(layout)
    for row in MEGATRON_BRIDGE.rows:
        name = row.field
        if row.read is None or name not in AXES or name in layout or name == "moment_dtype":
            continue
        if are_dense and name in (*EXPERT_GROUPS, "expert_dispatcher"):
            continue
        if any(when.items() <= known.items() for when in AXES[name].no_effect):
            known[name] = AXES[name].default
            continue
        if name == "matmul_precision" and "precision" in layout:  # a precision's name says 8 bits, too
            continue
        with keys.tracked() as asked:
            row.read(keys)
        if any(each not in keys.given for each in asked):
            yield name


def _of_the_recipe(recipe: str | None, left_open: tuple[str, ...]) -> Iterator[str]:
    if left_open:
        which = f"The recipe {recipe}" if recipe else "The recipe of these overrides"
        yield f"{which} was not read; it decides {', '.join(left_open)} and all else that no override sets."


def _dropout(keys: FileSettings) -> Iterator[str]:
    if names := [name for name in ("attention_dropout", "hidden_dropout", "peft.dropout") if keys.value(name)]:
        yield f"Trials train without dropout; the overrides set {' and '.join(names)}."


# -- the command

_OVERRIDE = re.compile(r"[+~]{0,2}([A-Za-z_]\w*(?:\.\w+)*)=(.*)", re.DOTALL)
_FIELDS = all_fields(MEGATRON_BRIDGE.rows)
_LONG = {
    "-tp": "--tensor-model-parallel-size",
    "-pp": "--pipeline-model-parallel-size",
    "-vp": "--virtual-pipeline-model-parallel-size",
    "-cp": "--context-parallel-size",
    "-ep": "--expert-model-parallel-size",
    "-etp": "--expert-tensor-parallel-size",
    "-mb": "--micro-batch-size",
    "-gb": "--global-batch-size",
    "-sl": "--seq-length",
}
"""Options of scripts/training/run_recipe.py that stand for overrides; 2026-08-22 (067f987d)."""


def is_bridge_command(words: Sequence[Word]) -> bool:
    """True for Megatron-Bridge's script, and for a command with several overrides of its keys."""
    texts = [word.text for word in words]
    overrides = [found[1] for text in texts if (found := _OVERRIDE.fullmatch(text))]
    return any(text.endswith("run_recipe.py") for text in texts) or sum(map(_is_known, overrides)) > 1


def _is_known(key: str) -> bool:
    section, _, name = key.rpartition(".")
    return name in _FIELDS and section in override_sections(name) and bool(section)


def read_bridge_command(
    words: Sequence[Word], script: Script, header: SlurmHeader, read_file: ReadFile | None = None
) -> ImportedConfig:
    """The values of this training command of the script. An override prevails over the file of --config-file, and the
    last one over others.

    InputError as `imported_overrides` says, and for another training than a GPT's.
    """
    program = _program(words)
    launcher = command_settings(words[:program], LAUNCHER, script)
    overrides = [word for word in words[program:] if _OVERRIDE.fullmatch(word.text)]
    rest = [replace(word, text=_LONG.get(word.text, word.text)) for word in words[program:] if word not in overrides]
    options = command_settings(rest, Table("Megatron-Bridge", "", prefix="--"), script)
    if problems := [*launcher.problems()]:
        raise InputError(*problems)
    ranks = ranks_of([word.text for word in words], launcher, header, script.exported)
    given = {**_config_file(options, read_file), **_from_options(options), **dict(_from_overrides(overrides, script))}
    mode = options.given["mode"] if options.text("mode") else None
    found = imported_overrides(given, options.text("recipe") or options.text("model"), ranks, mode)
    unread = [f"--{name}" for name in launcher.given if name not in LAUNCHER_OPTIONS]
    unread += [f"--{name}" for name in options.unread()]
    unread += [word.text for word in rest if re.fullmatch(r"-[a-z]{2,3}", word.text)]
    not_read = [f"Not read: {', '.join(unread)}."] if unread else []
    return replace(found, notes=tuple(dict.fromkeys([*found.notes, *launcher.notes, *options.notes, *not_read])))


def _program(words: Sequence[Word]) -> int:
    """Index of the training program, a file or a module, else of the first override; words before it are the
    launcher's."""
    start = len(words) - len(from_starter(words))
    for index in range(start, len(words)):
        if words[index].text.endswith(".py") or (index > start and words[index - 1].text == "-m"):
            return index
    return next((index for index in range(start, len(words)) if _OVERRIDE.fullmatch(words[index].text)), len(words))


def _config_file(options: FileSettings, read_file: ReadFile | None) -> Given:
    """The settings of the file behind --config-file, without their lines, which are not the script's."""
    path = options.text("config-file")
    if path is None:
        return {}
    try:
        if read_file is not None:
            return {name: replace(each, line=None) for name, each in config_settings(read_file(path)).items()}
    except (InputError, OSError):
        pass
    options.notes.append("The file behind --config-file was not read; what only it sets is missing.")
    return {}


def _from_options(options: FileSettings) -> dict[str, Setting]:
    """Overrides that options of the script stand for."""
    fields = {name: name.replace("-", "_") for long in _LONG.values() if options.has(name := long.removeprefix("--"))}
    return {f"{override_sections(field)[0]}.{field}": options.given[name] for name, field in fields.items()}


def _from_overrides(words: Iterable[Word], script: Script) -> Iterator[tuple[str, Setting]]:
    """Each override as a setting, one of a section as those of its fields."""
    for word in words:
        if found := _OVERRIDE.fullmatch(word.text):
            variable = next((each for each in word.variables if each in script.variables), None)  # no list of words
            for name, setting in flat({found[1]: _value(found[2])}, MEGATRON_BRIDGE).items():
                yield name, Setting(setting.value, word.line, variable, word.doubt)


def _value(text: str) -> Any:
    """The value as YAML has it, else the text itself."""
    try:
        return yaml_document(f"value: {text}").data["value"]
    except InputError:
        return text
