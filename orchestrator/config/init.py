"""`parlay init`: a first search file, as an example or derived from an existing configuration.

Trainers' own files are read by orchestrator/config/importers/. Pure, except for
reading the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path
from typing import Any, Literal

from orchestrator.config.answer import Answer
from orchestrator.config.draft import (
    MODEL_FIELDS,
    Draft,
    cluster_section,
    draft_title,
    powers_of_two,
    printable_notes,
    render,
    scalar,
    search_name,
    size_of,
)
from orchestrator.config.importers.imported_config import ImportedConfig
from orchestrator.config.importers.registry import read_source
from search_spaces.adapters import Adapters
from search_spaces.engines import OWN_ENGINES, PARLAY, TORCHTITAN, TRAINER_ENGINES, engines_of
from search_spaces.errors import InputError, Problem
from search_spaces.layouts.axis import Axis
from search_spaces.layouts.layout import AXES, DEGREES, DERIVED, LAYOUT_FIELDS, MODEL_DEGREES, Layout, layout_mesh
from search_spaces.model_shape import ModelShape
from search_spaces.rules.check import engine_violations
from search_spaces.schema.unsafe_text import hidden, hide_secrets
from search_spaces.schema.validation import FILL_IN
from trials.trainers.registry import ENGINE_RULES, TRAINERS


class InitAnswer(Answer):
    """Printed by init."""

    schema_: Literal["parlay.init/1"] = "parlay.init/1"
    file: str | None
    """The file written with --output."""
    yaml: str
    notes: list[str]
    """Assumptions, and parts of the given configuration that were left out."""


_MAX_RANKS_LISTED = 64
_ANY_GPT = ModelShape(1024, 64, 1, 1, 64, False, 128, 128, True, "learned", "layernorm")
_ANY_MODEL = (_ANY_GPT, replace(_ANY_GPT, norm="rmsnorm", num_experts=4, experts_per_token=2))
"""Stand for a model that is not known: a rule that only one of them violates says nothing about the layout."""


def render_example(site: str | None = None) -> str:
    """A commented search.yaml that runs as it is: a very small GPT on four CPU ranks, on this machine or at a site."""
    return render(
        Draft(
            title="A search for the fastest layout of a very small GPT on four CPU ranks. Insert your own model.",
            name="example",
            model=_TINY_MODEL,
            cluster=_FOUR_RANKS,
            global_batch_size=16,
            site=site,
            baseline={"tensor_parallel": 4, "pipeline_parallel": 1, "micro_batch_size": 1},
            space={
                "tensor_parallel": [1, 2, 4],
                "pipeline_parallel": [1, 2, 4],
                "micro_batch_size": [1, 2, 4, 8],
                "engine": "torch",
            },
        )
    )


_TINY_MODEL = {
    "num_layers": 4,
    "hidden_size": 128,
    "num_attention_heads": 4,
    "vocab_size": 512,
    "seq_length": 128,
}
_FOUR_RANKS = {"accelerator": "cpu", "gpus_per_node": 4, "num_nodes": 1}


def render_from(path: Path, site: str | None = None) -> tuple[str, list[str]]:
    """Render a search file derived from `path`, for this site. Returns the text and the notes for the user.

    InputError if the file cannot be read or is of an unknown kind.
    """
    draft = draft_of(path)
    return render(replace(draft, site=site)), list(draft.notes)


def draft_of(path: Path) -> Draft:
    """The search file derived from `path`. InputError as `render_from`."""
    try:
        return _draft(read_source(path), path)
    except InputError as error:
        raise InputError(*map(_without_secrets, error.at(file=str(path)).problems)) from None


def _without_secrets(problem: Problem) -> Problem:
    return replace(problem, message=hide_secrets(problem.message), value=hidden(problem.value, problem.key))


def _draft(imported: ImportedConfig, path: Path) -> Draft:
    notes = [*imported.notes]
    model = {**dict.fromkeys(MODEL_FIELDS, FILL_IN), **imported.model}
    if not imported.model:
        notes.append("The file does not describe the model: fill in the model section.")
    elif FILL_IN in model.values():
        missing = ", ".join(name for name, value in model.items() if value == FILL_IN)
        notes.append(f"Fill in what the file lacks about the model: {missing}.")
    task = _task(imported)
    layout = _trained_layout(imported, _shape(model, task), notes)
    cluster = _cluster(imported, notes)
    engine = imported.engine if imported.has_layout else engines_of(PARLAY)[-1]
    trainer = _trainer(imported, path) if engine not in OWN_ENGINES else {}
    if not trainer:
        layout["engine"] = engine
    if imported.has_layout:
        notes.append(_what_trials_run(imported, trainer))
    sizes = {**model, "seq_length": 1} if model["seq_length"] == FILL_IN else model
    notes += _unsupported_model_notes(_shape(sizes, task), engine)
    asked = _asked(imported)
    batch = imported.global_batch_size
    if batch is None:
        batch = None if imported.has_layout else 32
        notes.append(f"The global batch is not in the file: {'32 is assumed' if batch else 'fill it in'}.")
    return Draft(
        title=draft_title(path, imported.source),
        name=search_name(path),
        model=model,
        cluster=cluster,
        global_batch_size=batch or FILL_IN,
        baseline=_baseline(imported, _trained_today(layout, notes), asked, batch, notes) if imported.has_layout else {},
        space=_space(layout, engine, cluster, model, batch or 32, asked),
        notes=printable_notes(notes),
        launcher=imported.launcher,
        trainer=trainer,
        origins=imported.origins if imported.has_layout else _of_the_space(imported.origins),
        task=task,
    )


def _task(imported: ImportedConfig) -> dict[str, Any]:
    """The task and its adapters, with FILL_IN for what is not known of these; empty for a pretraining."""
    if not imported.adapters:
        return {"task": "finetune"} if imported.finetunes else {}
    needed = dict.fromkeys(("kind", "rank", "target_modules"), FILL_IN)
    return {"task": "finetune", "adapters": {**needed, **imported.adapters}}


def _shape(model: Mapping[str, Any], task: Mapping[str, Any]) -> ModelShape | None:
    """The model with its adapters; None where a part of either is not known."""
    adapters = task.get("adapters", {})
    if FILL_IN in (*model.values(), *adapters.values()):
        return None
    whole = ModelShape.from_json(model)
    return replace(whole, adapters=Adapters.from_json(adapters), trainable=()) if adapters else whole


def _cluster(imported: ImportedConfig, notes: list[str]) -> dict[str, Any]:
    if not imported.has_layout:
        notes.append(
            "The file does not describe the machine: four CPU ranks are assumed; replace them by your cluster."
        )
        return dict(_FOUR_RANKS)
    if imported.accelerator is None:
        notes.append("cluster.accelerator is unknown: fill it in.")
    gpus, nodes = imported.gpus_per_node, imported.num_nodes
    if imported.source == "deepspeed":
        gpus = layout_mesh(imported.layout).world_size if "data_parallel" in imported.layout else None
        nodes = 1
        notes.append("A DeepSpeed config does not describe the machine: one node with its ranks is assumed.")
    return cluster_section(imported.accelerator or FILL_IN, gpus, nodes, notes)


def _trained_layout(imported: ImportedConfig, model: ModelShape | None, notes: list[str]) -> dict[str, Any]:
    """The file's layout without defaults, and without what its trainer ignores, with notes. InputError for each value
    that trials would train otherwise: the baseline is what the file trains."""
    if not imported.has_layout:
        return dict(imported.layout)
    broken = _broken_rules(imported, model)
    ignored = {name: broken.pop(name) for name in _IGNORED if name in broken}
    if found := [*imported.changed, *broken.values()]:
        raise InputError(*(replace(problem, fix=f"{problem.fix}{_IN_A_COPY}") for problem in found))
    notes += [f"{name} has no effect in this layout and was left out: {ignored[name].rule}." for name in ignored]
    return {n: value for n, value in imported.layout.items() if n not in ignored and value != _DEFAULTS.get(n)}


def _trained_today(layout: Mapping[str, Any], notes: list[str]) -> Mapping[str, Any]:
    """The layout without sequence parallelism over one tensor-parallel rank, which every trainer does without; with
    more ranks the space has it."""
    if not (layout.get("sequence_parallel") and layout.get("tensor_parallel") == 1):
        return layout
    notes.append(
        "Sequence parallelism is on in the file; with tensor_parallel 1 it has no effect, and the space has it."
    )
    return {name: value for name, value in layout.items() if name != "sequence_parallel"}


_IGNORED = ("overlap_comm", "bucket_mib")
"""Fields that trainers ignore in a layout that their rules refuse."""
_IN_A_COPY = ", in a copy of the file to start from: speedups are then relative to the copy's layout"


def _broken_rules(imported: ImportedConfig, model: ModelShape | None) -> dict[str, Problem]:
    """Rules of the engine that the layout violates whatever each field is that is not known, by the field that a rule
    is about."""
    values = {"engine": imported.engine, **_FITTING_SIZES, **imported.layout}
    unknown = {*imported.in_doubt, *imported.left_open} & AXES.keys() - imported.layout.keys()
    others = [{name: value} for name in unknown for value in _choices(AXES[name])]
    for pair in combinations(unknown & {*_WITHOUT_DEFAULT}, 2):
        others += [dict(zip(pair, both, strict=True)) for both in product(*(_choices(AXES[name]) for name in pair))]
    layouts = [Layout(**{**values, **other}) for other in ({}, *others)]
    models = _ANY_MODEL if model is None else (model,)
    first, *rest = (_broken_by(layout, each) for layout in layouts for each in models)
    return {
        name: replace(problem, message=problem.message + _origin(imported, name), key=f"baseline.{name}")
        for (name, rule), problem in first.items()
        if name in AXES and (model or name not in _OF_THE_MODEL) and all((name, rule) in each for each in rest)
    }


def _broken_by(layout: Layout, model: ModelShape) -> dict[tuple[str, str | None], Problem]:
    """The engine's violated rules, by the field that a rule is about and its sentence."""
    return {(p.code.partition(".")[2], p.rule): p for p in engine_violations(layout, model, ENGINE_RULES)}


def _origin(imported: ImportedConfig, name: str) -> str:
    origin = imported.origins.get(f"baseline.{name}")
    return f", by {origin}" if origin else ""


def _what_trials_run(imported: ImportedConfig, trainer: Mapping[str, Any]) -> str:
    if not trainer and imported.source == TORCHTITAN:
        return "Trials run torchtitan's trainer inside Parlay's own program, with engine torchtitan."
    if not trainer:
        return f"Trials run Parlay's own trainer with engine {imported.engine}, not the trainer of this file."
    kind, others = trainer["kind"], "Parlay's own trainer needs neither script nor data: remove the section trainer."
    if trainer["kind"] == "command":
        return "Trials run a command of yours (docs/trainers.md): write it with placeholders for what a layout decides."
    if kind == imported.source:
        return f"Trials run {kind}, the trainer of this file: fill in its section. {others}"
    return f"Trials run {kind}, whose code {imported.source} trains with, not the program of this file. {others}"


def _trainer(imported: ImportedConfig, path: Path) -> dict[str, Any]:
    """The section `trainer`: the data are the file's."""
    kind = next(kind for kind, engines in TRAINER_ENGINES.items() if imported.engine in engines)
    trainer = TRAINERS[kind]
    needed = dict.fromkeys(trainer.required_keys, FILL_IN)
    if "template" in trainer.required_keys and not trainer.has_command_line:
        needed["template"] = str(path.absolute())
    arguments = [*imported.arguments] or [FILL_IN] * bool(trainer.placeholder_axes)
    has_any = arguments and "arguments" in trainer.keys
    return {"kind": kind, **needed, **({"arguments": arguments} if has_any else {})}


def _choices(axis: Axis) -> Sequence[Any]:
    """Values of an axis that differ to an engine."""
    if axis.is_number:
        return range(axis.least, axis.most + 1 if axis.most < 8 else axis.least + 2)
    return axis.words or (False, True)


_OF_THE_MODEL = ("pipeline_split", "recompute_layers", "context_parallel")
"""Fields that are judged for a model that is known alone."""
_FITTING_SIZES = {"micro_batch_size": 1, "grad_accum_steps": 1024, "data_parallel": 5040}
_DEFAULTS = {
    name: value
    for name, value in Layout().to_json().items()
    if name not in ("num_nodes", "tensor_parallel", "pipeline_parallel", "micro_batch_size")
}


def _unsupported_model_notes(model: ModelShape | None, engine: str) -> Iterator[str]:
    if model is not None:
        for (name, _), problem in _broken_by(Layout(engine=engine), model).items():
            if name not in AXES:  # the baseline's own value is another
                yield f"Engine {engine} cannot run this model: {problem.message}."


_NEEDED = ("tensor_parallel", "pipeline_parallel", "micro_batch_size")
_WITHOUT_DEFAULT = ("zero_stage", "activation_checkpointing", "precision", "matmul_precision")
"""Other fields that a baseline cannot do without where another file of the training decides them."""


def _asked(imported: ImportedConfig) -> dict[str, Any]:
    """FILL_IN for each field whose value the file does not have, and for which no default may stand."""
    names = {*imported.in_doubt, *(name for name in _WITHOUT_DEFAULT if name in imported.left_open)}
    return {n: FILL_IN for n in LAYOUT_FIELDS if n in names and n not in imported.layout and n not in DERIVED}


def _baseline(
    imported: ImportedConfig, layout: Mapping[str, Any], asked: Mapping[str, Any], batch: int | None, notes: list[str]
) -> dict[str, Any]:
    """The baseline section: what the file has, and FILL_IN for what a baseline cannot do without. A note names the
    defaults of what another file of the training decides."""
    known = {name: 1 for name in MODEL_DEGREES if "data_parallel" in layout and name not in imported.left_open}
    whole = {**dict.fromkeys(_NEEDED, FILL_IN), **known, **layout, **asked}
    follows = DERIVED if batch and layout.keys() >= {"micro_batch_size", "data_parallel"} else (DEGREES["dp"],)
    found = {name: whole[name] for name in LAYOUT_FIELDS if name in whole and name not in follows}
    if missing := [name for name, value in found.items() if value == FILL_IN]:
        notes.append(f"Fill in what the file lacks about the present layout: {', '.join(missing)}.")
    undecided = [name for name in imported.left_open if name not in (*found, *DERIVED) and name in _DEFAULTS]
    if defaults := [f"{name} {scalar(_DEFAULTS[name])}" for name in undecided]:
        notes.append(f"The file leaves open, and the baseline has by default: {', '.join(defaults)}.")
    return found


def _of_the_space(origins: Mapping[str, str]) -> dict[str, str]:
    """The origins of a file without a layout: what it has of one is in the space alone."""
    return {key.replace("baseline.", "space."): origin for key, origin in origins.items()}


def _space(
    layout: Mapping[str, Any],
    engine: str,
    cluster: Mapping[str, Any],
    model: Mapping[str, Any],
    batch: int,
    asked: Mapping[str, Any],
) -> dict[str, Any]:
    """Axes around the layout: powers of two that may fit, and the present value. All else is as it is today."""
    gpus, nodes = size_of(cluster)
    layers = model["num_layers"] if isinstance(model["num_layers"], int) else _MAX_RANKS_LISTED
    axes: dict[str, Any] = {
        "tensor_parallel": _axis_around(layout.get("tensor_parallel"), gpus),
        "pipeline_parallel": _axis_around(layout.get("pipeline_parallel"), min(gpus * nodes, layers)),
        "micro_batch_size": _axis_around(layout.get("micro_batch_size"), min(batch, 8)),
        "activation_checkpointing": _with_current(["none", "full"], layout.get("activation_checkpointing")),
    }
    if engine in _DRIVE_DEEPSPEED and "zero_stage" not in asked:
        axes["zero_stage"] = _with_current([0, 1], layout.get("zero_stage"))
    if "expert_parallel" in layout:
        most = min(gpus * nodes, model.get("num_experts", _MAX_RANKS_LISTED))
        axes["expert_parallel"] = _axis_around(layout["expert_parallel"], most)
    axes = {name: _runnable(name, values, engine, layout) for name, values in axes.items()}
    fixed = {n: v for n, v in {**layout, **asked}.items() if n not in axes and n not in ("num_nodes", *DERIVED)}
    return axes | fixed


def _runnable(name: str, values: list[Any], engine: str, layout: Mapping[str, Any]) -> list[Any]:
    """Values of an axis without those that the engine has in no layout like today's."""
    fields = {"engine": engine, **_FITTING_SIZES, **layout}
    broken = {value: _broken_by(Layout(**{**fields, name: value}), _ANY_MODEL[0]) for value in values}
    able = [value for value in values if all(of != name for of, _ in broken[value])]
    return able or values


_DRIVE_DEEPSPEED = ("deepspeed", "megatron-deepspeed", "gpt-neox")


def _axis_around(today: int | None, most: int) -> list[int]:
    return sorted(_with_current(powers_of_two(min(most, _MAX_RANKS_LISTED)), today))


def _with_current(values: list[Any], today: Any) -> list[Any]:
    return values if today is None or today in values else [*values, today]
