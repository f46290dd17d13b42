"""First search file from the grid of another program: NeMo's auto-configurator (YAML), CloudAI tests and scenarios
(TOML).

Keys as in NVIDIA/NeMo-Framework-Launcher, auto_configurator/conf/search_config, and in NVIDIA/cloudai, conf and
workloads/megatron_bridge. Nothing in such a file is executed, and none of its text is copied into a search file.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from orchestrator.config.draft import (
    MODEL_FIELDS,
    Draft,
    cluster_section,
    draft_title,
    powers_of_two,
    printable_notes,
    search_name,
    size_of,
)
from orchestrator.importers.settings import Setting, Settings
from orchestrator.importers.source_file import read_utf8
from search_spaces.errors import InputError
from search_spaces.layouts.layout import CHOICES
from search_spaces.schema.presets import accelerator_named
from search_spaces.schema.validation import FILL_IN
from search_spaces.schema.yaml_document import read_document
from trials.trainers.table import SWITCH, Table

NEMO, CLOUDAI = "a search of NeMo's auto-configurator", "a test of CloudAI"

_AXES = {
    **dict.fromkeys(("tensor_parallel_sizes", "tensor_model_parallel_size", "tp"), "tensor_parallel"),
    **dict.fromkeys(("pipeline_parallel_sizes", "pipeline_model_parallel_size", "pp"), "pipeline_parallel"),
    **dict.fromkeys(("micro_batch_sizes", "micro_batch_size", "mb"), "micro_batch_size"),
    **dict.fromkeys(("virtual_pipeline_model_parallel_size", "vp"), "virtual_pipeline_stages"),
}
_OTHER_DEGREES = (
    *("context_parallel_sizes", "context_parallel_size", "cp"),
    *("expert_parallel_sizes", "expert_model_parallel_size", "ep", "et"),
)
"""Parallel degrees of which a search has 1 until its space says more."""
_GLOBAL_BATCHES = ("global_batch_size", "global_batch_sizes", "gb")
_NAMES_OF = {"seq_length": ("seq_length", "sequence_length"), "position_embedding": (), "norm": ()}
_MAX_COUNT = 1_000_000_000
_AUTO = ("auto", None)
_FLAGS = ("gated_mlp", "tied_embeddings")
"""Fields of a model that are true or false."""
_FP8 = ("hybrid", "e4m3")
"""Values of NeMo's key fp8 that switch it on."""

Keys = Mapping[str, Any]
"""Keys of a grid, without their sections."""
_GRID = Table("the grid's program", "")


def grid_draft(path: Path) -> Draft:
    """Draft of a search over the grid in this file; unknown values are left to fill in, with notes.

    InputError if the file cannot be read, is not such a grid, or has a value that a search cannot have.
    """
    source, given = _nemo(path) if path.suffix != ".toml" else _cloudai(path)
    keys = Settings({name: Setting(value) for name, value in given.items()}, _GRID)
    cluster = _cluster(keys)
    model = _model(keys)
    batch = _single_integer(keys, _GLOBAL_BATCHES, "global batch")
    if batch is None:
        keys.notes.append("The global batch is unknown: fill it in.")
    space = _space(keys, cluster)
    keys.notes += keys.not_read()
    keys.notes.append("Trials run Parlay's own trainer; to measure with Megatron-LM, see trainer in docs/trainers.md.")
    return Draft(
        title=draft_title(path, source),
        name=search_name(path),
        model=model,
        cluster=cluster,
        global_batch_size=batch or FILL_IN,
        space=space,
        notes=printable_notes(keys.notes),
    )


def _nemo(path: Path) -> tuple[str, Keys]:
    data = read_document(path).data
    settings = data.get("train_settings")
    if not isinstance(settings, Mapping):
        rule = "a grid of NeMo's auto-configurator has a section train_settings"
        fix = "this is a search file: use it directly, parlay plan FILE" if "space" in data else "give such a file"
        raise InputError.of("file", "has no section train_settings", key="train_settings", rule=rule, fix=fix)
    return NEMO, dict(settings)


def _cloudai(path: Path) -> tuple[str, Keys]:
    """Keys of the test, or of the first test that a scenario contains."""
    data = _toml(path)
    tests = data.get("Tests", [data])
    found = [each for each in map(_test_of, tests if isinstance(tests, list) else []) if each is not None]
    if not found:
        raise InputError.of(
            "file",
            "has no test with cmd_args",
            key="cmd_args",
            rule="a test of CloudAI has a section cmd_args; a scenario may only refer to its tests",
            fix="give the file of the test, conf/.../test/NAME.toml",
        )
    return CLOUDAI, found[0]


def _toml(path: Path) -> dict[str, Any]:
    text = read_utf8(path)
    if _LONG_KEY.search(text):
        raise InputError.of("file", f"a key of more than {_MOST_DOTS} dots", rule="a CloudAI test is a TOML file")
    try:
        data = tomllib.loads(text)
    except RecursionError:
        raise InputError.of("file", "nested too deep", rule="a CloudAI test is a TOML file") from None
    except ValueError as error:
        raise InputError.of("file", f"not TOML: {error}", rule="a CloudAI test is a TOML file") from error
    if not _has_plain_numbers(data):
        raise InputError.of("file", "a whole number of more than 64 bits", rule="numbers of TOML have 64 bits")
    return data


_MOST_DOTS = 20
_PART = r"""(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')"""
_LONG_KEY = re.compile(rf"(?<![\w-]){_PART}(?:[ \t]*+\.[ \t]*+{_PART}){{{_MOST_DOTS + 1}}}")
"""The parser takes quadratic time and memory for such a key."""


def _has_plain_numbers(value: Any) -> bool:
    if isinstance(value, int):
        return value.bit_length() <= 64
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return all(map(_has_plain_numbers, inner))


def _test_of(entry: Any) -> Keys | None:
    """Keys of a test, with the number of nodes that its scenario sets."""
    if not isinstance(entry, Mapping):
        return None
    spec = entry.get("test_spec", entry)
    arguments = spec.get("cmd_args") if isinstance(spec, Mapping) else None
    if not isinstance(arguments, Mapping):
        return None
    nodes = entry.get("num_nodes")
    return dict(_flatten(arguments)) | ({} if nodes is None else {"num_nodes": nodes})


def _flatten(section: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Keys of all nested sections by their last names, which are unique."""
    for name, value in section.items():
        if isinstance(value, Mapping):
            yield from _flatten(value)
        else:
            yield name, value


def _cluster(keys: Settings) -> dict[str, Any]:
    gpus = _single_integer(keys, ("gpus_per_node",), "number of GPUs per node")
    nodes = _single_integer(keys, ("num_nodes",), "number of nodes")
    world = _single_integer(keys, ("num_gpus",), "number of GPUs")
    if nodes is None and world is not None and gpus is not None and world % gpus == 0:
        nodes = world // gpus
    accelerator = _accelerator(keys)
    return cluster_section(accelerator, gpus, nodes, keys.notes)


def _accelerator(keys: Settings) -> str:
    given, memory = keys.value("gpu_type"), keys.value("gpu_memory_gb")
    if isinstance(given, str):
        try:
            return accelerator_named(given).name
        except InputError:
            keys.notes.append(f"cluster.accelerator: {given[:40]} is unknown to Parlay; fill in a similar one.")
            return FILL_IN
    said = f", which has {memory} GB" if isinstance(memory, int) else ""
    keys.notes.append(f"cluster.accelerator is not in the file: fill in the GPU{said}.")
    return FILL_IN


def _model(keys: Settings) -> dict[str, Any]:
    model: dict[str, Any] = dict.fromkeys(MODEL_FIELDS, FILL_IN)
    for name in MODEL_FIELDS:
        names = _NAMES_OF.get(name, (name,))
        is_flag = name in _FLAGS
        found = keys.chosen(name, SWITCH, None, "true or false") if is_flag else _single_integer(keys, names, name)
        model[name] = FILL_IN if found is None else found
    missing = ", ".join(name for name, value in model.items() if value == FILL_IN)
    size = keys.value("model_size_in_b")
    recipe = keys.value("recipe_name") or keys.value("model_recipe_name")
    which = f", a model of {size} billion parameters" if isinstance(size, (int, float)) else ""
    which += f", the recipe {recipe[:40]}" if isinstance(recipe, str) and recipe else ""
    if missing:
        keys.notes.append(f"Fill in what the file lacks about the model{which}: {missing}.")
    return model


def _space(keys: Settings, cluster: Mapping[str, Any]) -> dict[str, Any]:
    """Axes of the grid; powers of two that may fit where it leaves the value to its program."""
    gpus, nodes = size_of(cluster)
    given = {ours: _integers(theirs, keys.value(theirs)) for theirs, ours in _AXES.items() if theirs in keys.given}
    if not given:
        rule = "a grid has parallel degrees or micro-batches, such as " + ", ".join([*_AXES][:3])
        raise InputError.of("file", "does not describe a layout", rule=rule, fix="give a file with a grid")
    most = {"tensor_parallel": gpus, "pipeline_parallel": min(gpus * nodes, 64), "micro_batch_size": 8}
    axes: dict[str, Any] = {name: given.get(name) or powers_of_two(limit) for name, limit in most.items()}
    chunks = given.get("virtual_pipeline_stages")
    if chunks and chunks != [1]:
        axes["virtual_pipeline_stages"] = sorted({1, *chunks})
        axes["pipeline_schedule"] = ["1f1b", "interleaved_1f1b"]
        keys.notes.append(
            "Several chunks per stage need the interleaved schedule, one chunk the plain one: both are tried."
        )
    axes["activation_checkpointing"] = _checkpointing(keys)
    axes["precision"] = _precision(keys)
    others = [name for name in _OTHER_DEGREES if _integers(name, keys.value(name)) not in (None, [1])]
    keys.notes += [f"Only {name} 1 is tried." for name in others]
    return axes | {"engine": "torch"}


def _checkpointing(keys: Settings) -> list[str]:
    layers = keys.value("act_ckpt_layers" if "act_ckpt_layers" in keys.given else "recompute_num_layers")
    if layers in _AUTO:
        keys.notes.append("The file leaves recomputation of activations open: with and without are both tried.")
        return ["none", "full"]
    counts = _integers("act_ckpt_layers", layers, least=0) or []
    if any(counts):
        keys.notes.append(
            "Parlay recomputes the activations of all layers or of none: the numbers of layers are ignored."
        )
    return [word for word, is_tried in (("none", 0 in counts), ("full", any(counts))) if is_tried]


def _precision(keys: Settings) -> str | list[str]:
    """Precisions of the grid, default bf16. fp8 has a key of its own."""
    eight_bits = ("fp8" for word in _values(keys.value("fp8")) if word in _FP8)
    named = (*_values(keys.value("compute_dtype")), *eight_bits)
    given = list(dict.fromkeys(word for word in named if isinstance(word, str)))
    taken = [word for word in given if word in CHOICES["precision"]] or ["bf16"]
    used = f"{' and '.join(taken)} {'is' if len(taken) == 1 else 'are'} used"
    others = [word[:40] for word in given if word not in CHOICES["precision"]]
    keys.notes += [f"Parlay's trainer does not support precision {word}: {used}." for word in others]
    if not given:
        keys.notes.append("The grid does not set the precision: bf16 is assumed.")
    return taken[0] if len(taken) == 1 else taken


def _single_integer(keys: Settings, names: tuple[str, ...], what: str) -> int | None:
    """The integer with one of these names; the first of several, with a note."""
    for name in names:
        counts = _integers(name, keys.value(name))
        if counts:
            if len(counts) > 1:
                keys.notes.append(f"A search has one {what}: the first of {name} {counts} is used.")
            return counts[0]
    return None


def _integers(name: str, given: Any, least: int = 1) -> list[int] | None:
    """Distinct integers of a value or list; None for `auto`."""
    if given in _AUTO:
        return None
    counts = [_integer(value) for value in _values(given)]
    if not counts or any(count is None or not least <= count <= _MAX_COUNT for count in counts):
        raise InputError.of(
            "grid",
            f"is {given!r:.80}",
            key=name,
            value=given,
            rule=f"an integer from {least} to {_MAX_COUNT}, a list of them, or auto",
            fix="correct it, or remove the key",
        )
    return list(dict.fromkeys(count for count in counts if count is not None))


def _values(given: Any) -> list[Any]:
    return given if isinstance(given, list) else [given]


def _integer(value: Any) -> int | None:
    """The integer; CloudAI also writes integers as text."""
    if type(value) is int:
        return value
    return int(value) if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 7 else None
