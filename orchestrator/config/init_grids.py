"""Other programs' grids as a first search file: NeMo's auto-configurator (YAML), CloudAI's tests and scenarios (TOML).

Names of their keys: NVIDIA/NeMo-Framework-Launcher, auto_configurator/conf/search_config; NVIDIA/cloudai, conf and
workloads/megatron_bridge. Nothing in such a file is executed, and of its words none gets into a search file.
"""

from __future__ import annotations

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
from search_spaces.errors import InputError
from search_spaces.layouts.layout import PRECISIONS
from search_spaces.plain_file import open_named
from search_spaces.schema.presets import accelerator_named
from search_spaces.schema.validation import FILL_IN
from search_spaces.schema.yaml_document import MAX_BYTES, read_document

SUFFIXES = (".yaml", ".yml", ".toml")
NEMO, CLOUDAI = "a search of NeMo's auto-configurator", "a test of CloudAI"

_AXES = {
    **dict.fromkeys(("tensor_parallel_sizes", "tensor_model_parallel_size", "tp"), "tensor_parallel"),
    **dict.fromkeys(("pipeline_parallel_sizes", "pipeline_model_parallel_size", "pp"), "pipeline_parallel"),
    **dict.fromkeys(("micro_batch_sizes", "micro_batch_size", "mb"), "micro_batch_size"),
    **dict.fromkeys(("virtual_pipeline_model_parallel_size", "vp"), "virtual_pipeline_stages"),
}
_OTHER_DEGREES = {
    **dict.fromkeys(("context_parallel_sizes", "context_parallel_size", "cp"), "context parallelism"),
    **dict.fromkeys(("expert_parallel_sizes", "expert_model_parallel_size", "ep", "et"), "expert parallelism"),
}
"""Degrees that are no axes of a search."""
_GLOBAL_BATCHES = ("global_batch_size", "global_batch_sizes", "gb")
_SEQUENCES = ("seq_length", "sequence_length")
_MAX_COUNT = 100_000
_AUTO = ("auto", None)
_FP8 = ("hybrid", "e4m3")
"""What NeMo's key fp8 may be where it is on."""

Keys = Mapping[str, Any]
"""A grid's keys without the sections around them."""


def grid_draft(path: Path) -> Draft:
    """A search over the grid in this file; what the file does not say is to be filled in, and said in the notes.

    InputError where the file cannot be read, is no such grid, or has a value that no search can have.
    """
    source, keys = _nemo(path) if path.suffix != ".toml" else _cloudai(path)
    notes: list[str] = []
    cluster = _cluster(keys, notes)
    model = _model(keys, notes)
    batch = _one_of(keys, _GLOBAL_BATCHES, "global batch", notes)
    if batch is None:
        notes.append("The global batch is not in the file: fill it in.")
    space = _space(keys, cluster, notes)
    notes += _left_out(keys)
    notes.append("Trials run Parlay's own trainer; to measure with Megatron-LM, see trainer in docs/trainers.md.")
    return Draft(
        title=draft_title(path, source),
        name=search_name(path),
        model=model,
        cluster=cluster,
        global_batch_size=batch or FILL_IN,
        space=space,
        notes=printable_notes(notes),
    )


def _nemo(path: Path) -> tuple[str, Keys]:
    data = read_document(path).data
    settings = data.get("train_settings")
    if not isinstance(settings, Mapping):
        rule = "NeMo's auto-configurator has a section train_settings"
        fix = "a search file needs no --from: parlay plan FILE" if "space" in data else "name such a file"
        raise InputError.of("file", "has no section train_settings", key="train_settings", rule=rule, fix=fix)
    return NEMO, dict(settings)


def _cloudai(path: Path) -> tuple[str, Keys]:
    """The keys of the test, or of the first test of a scenario that holds one itself."""
    data = _toml(path)
    tests = data.get("Tests", [data])
    found = [each for each in map(_test_of, tests if isinstance(tests, list) else []) if each is not None]
    if not found:
        raise InputError.of(
            "file",
            "has no test with cmd_args of its own",
            key="cmd_args",
            rule="a test of CloudAI has a section cmd_args; a scenario may only name its tests",
            fix="name the file of the test, conf/.../test/NAME.toml",
        )
    return CLOUDAI, found[0]


def _toml(path: Path) -> dict[str, Any]:
    text = read_utf8(path)
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise InputError.of("file", "nested too deep", rule="a test is a TOML file") from None
    except ValueError as error:
        raise InputError.of("file", f"not TOML: {error}", rule="a test of CloudAI is a TOML file") from error


def read_utf8(path: Path) -> str:
    """What stands in a file to start from; InputError where it cannot be read, is too large or no UTF-8 text."""
    try:
        with open_named(path) as stream:
            raw = stream.read(MAX_BYTES + 1)
    except OSError as error:
        fix = "name a file that is there and that you may read"
        raise InputError.of("file", f"cannot be read: {error.strerror or error}", fix=fix) from error
    if len(raw) > MAX_BYTES:
        raise InputError.of("file", f"larger than the limit of {MAX_BYTES} bytes", fix=_SOURCE_FIX)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError.of("file", "is not UTF-8 text", fix=_SOURCE_FIX) from error


_SOURCE_FIX = "give the script, config or grid itself"


def _test_of(entry: Any) -> Keys | None:
    """The keys of a test; the nodes that a scenario gives it count."""
    if not isinstance(entry, Mapping):
        return None
    spec = entry.get("test_spec", entry)
    arguments = spec.get("cmd_args") if isinstance(spec, Mapping) else None
    if not isinstance(arguments, Mapping):
        return None
    nodes = entry.get("num_nodes")
    return dict(_flat(arguments)) | ({} if nodes is None else {"num_nodes": nodes})


def _flat(section: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The keys of all sections below by their last names, which are each used once."""
    for name, value in section.items():
        if isinstance(value, Mapping):
            yield from _flat(value)
        else:
            yield name, value


def _cluster(keys: Keys, notes: list[str]) -> dict[str, Any]:
    gpus = _one_of(keys, ("gpus_per_node",), "number of GPUs a node", notes)
    nodes = _one_of(keys, ("num_nodes",), "number of nodes", notes)
    world = _one_of(keys, ("num_gpus",), "number of GPUs", notes)
    if nodes is None and world is not None and gpus is not None and world % gpus == 0:
        nodes = world // gpus
    accelerator = _accelerator(keys, notes)
    return cluster_section(accelerator, gpus, nodes, notes)


def _accelerator(keys: Keys, notes: list[str]) -> str:
    given, memory = keys.get("gpu_type"), keys.get("gpu_memory_gb")
    if isinstance(given, str):
        try:
            return accelerator_named(given).name
        except InputError:
            notes.append(f"cluster.accelerator: {given[:40]} is none that Parlay knows; fill in one that is alike.")
            return FILL_IN
    said = f", which has {memory} GB" if isinstance(memory, int) else ""
    notes.append(f"cluster.accelerator is not in the file: fill in the GPU{said}.")
    return FILL_IN


def _model(keys: Keys, notes: list[str]) -> dict[str, Any]:
    told = {name: keys[name] for name in MODEL_FIELDS if type(keys.get(name)) in (int, bool)}
    sequence = _one_of(keys, _SEQUENCES, "length of a sequence", notes)
    if sequence is not None:
        told["seq_length"] = sequence
    model = {name: told.get(name, FILL_IN) for name in MODEL_FIELDS}
    missing = ", ".join(name for name, value in model.items() if value == FILL_IN)
    size = keys.get("model_size_in_b")
    recipe = keys.get("recipe_name", keys.get("model_recipe_name"))
    which = f", a model of {size} billion parameters" if isinstance(size, (int, float)) else ""
    which += f", the recipe {recipe[:40]}" if isinstance(recipe, str) and recipe else ""
    if missing:
        notes.append(f"Fill in what the file does not say about the model{which}: {missing}.")
    return model


def _space(keys: Keys, cluster: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    """The grid's axes; what it leaves to its program is every power of two that may fit."""
    gpus, nodes = size_of(cluster)
    given = {ours: _counts(theirs, keys[theirs]) for theirs, ours in _AXES.items() if theirs in keys}
    if not given:
        rule = "a grid has degrees or micro-batches, such as " + ", ".join([*_AXES][:3])
        raise InputError.of("file", "says nothing of a layout", rule=rule, fix="name a file with a grid")
    most = {"tensor_parallel": gpus, "pipeline_parallel": min(gpus * nodes, 64), "micro_batch_size": 8}
    axes: dict[str, Any] = {name: given.get(name) or powers_of_two(limit) for name, limit in most.items()}
    chunks = given.get("virtual_pipeline_stages")
    if chunks and chunks != [1]:
        axes["virtual_pipeline_stages"] = sorted({1, *chunks})
        axes["pipeline_schedule"] = ["1f1b", "interleaved_1f1b"]
        notes.append("Chunks of a stage need the interleaved schedule, one chunk the plain one: both are tried.")
    axes["activation_checkpointing"] = _checkpointing(keys, notes)
    axes["precision"] = _precision(keys, notes)
    return axes | {"engine": "torch"}


def _checkpointing(keys: Keys, notes: list[str]) -> list[str]:
    layers = keys.get("act_ckpt_layers", keys.get("recompute_num_layers"))
    if layers in _AUTO:
        notes.append("Whether activations are computed again is left open by the file: both are tried.")
        return ["none", "full"]
    counts = _counts("act_ckpt_layers", layers, least=0) or []
    if any(counts):
        notes.append("Activations are computed again in all layers or in none: the numbers of layers are left out.")
    return [word for word, is_tried in (("none", 0 in counts), ("full", any(counts))) if is_tried]


def _precision(keys: Keys, notes: list[str]) -> str | list[str]:
    """The precision that the grid names, or several, or bf16; eight bits may stand beside it, in a key of their own."""
    eight_bits = ("fp8" for word in _values(keys.get("fp8")) if word in _FP8)
    named = (*_values(keys.get("compute_dtype")), *eight_bits)
    given = list(dict.fromkeys(word for word in named if isinstance(word, str)))
    taken = [word for word in given if word in PRECISIONS] or ["bf16"]
    taken_words = f"{' and '.join(taken)} {'was' if len(taken) == 1 else 'were'} taken"
    others = [word[:40] for word in given if word not in PRECISIONS]
    notes += [f"The precision {word} is none of Parlay's trainer: {taken_words}." for word in others]
    if not given:
        notes.append("The grid says nothing of the precision: bf16 was taken.")
    return taken[0] if len(taken) == 1 else taken


def _left_out(keys: Keys) -> Iterator[str]:
    for theirs, what in _OTHER_DEGREES.items():
        others = [count for count in _counts(theirs, keys.get(theirs)) or [] if count != 1]
        if others:
            yield f"Of {theirs} only 1 is tried: {what} is no axis of a search."
    for name in ("min_model_parallel_size", "max_model_parallel_size"):
        if keys.get(name) not in _AUTO:
            yield f"{name} is left out: a search has no rule for the product of tensor and pipeline degree."


def _one_of(keys: Keys, names: tuple[str, ...], what: str, notes: list[str]) -> int | None:
    """The whole number of this name; of several the first, and said so."""
    for name in names:
        counts = _counts(name, keys.get(name))
        if counts:
            if len(counts) > 1:
                notes.append(f"A search has one {what}: of {name} {counts} the first was taken.")
            return counts[0]
    return None


def _counts(name: str, given: Any, least: int = 1) -> list[int] | None:
    """The whole numbers of a value or a list, each once; None where it is left to the program."""
    if given in _AUTO:
        return None
    counts = [_whole(value) for value in _values(given)]
    if not counts or any(count is None or not least <= count <= _MAX_COUNT for count in counts):
        raise InputError.of(
            "grid",
            f"is {given!r:.80}",
            key=name,
            value=given,
            rule=f"a whole number from {least} to {_MAX_COUNT}, a list of them, or auto",
            fix="correct it, or take the key out",
        )
    return list(dict.fromkeys(count for count in counts if count is not None))


def _values(given: Any) -> list[Any]:
    return given if isinstance(given, list) else [given]


def _whole(value: Any) -> int | None:
    """The number; CloudAI has numbers as text, too."""
    if type(value) is int:
        return value
    return int(value) if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 7 else None
