"""Exports: the layout as arguments or configuration files of every trainer that can run it. Pure.

The rendering of each trainer is in trials/trainers, which its trials use too.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from search_spaces.engines import engines_of
from search_spaces.errors import Problem
from search_spaces.layouts.layout import Layout
from search_spaces.model_shape import ModelShape
from search_spaces.rules.check import bridge_violations, engine_violations
from search_spaces.schema.yaml_document import is_printable
from trials.trainers.common.deepspeed_config import deepspeed_problem, ds_config
from trials.trainers.common.megatron_options import (
    NO_DROPOUT,
    Option,
    environment_of,
    megatron_deepspeed_layout,
    megatron_lm_layout,
)
from trials.trainers.common.plain_yaml import plain_yaml
from trials.trainers.gpt_neox.config import neox_layout
from trials.trainers.invocation import MEGATRON_DEEPSPEED_CONFIG, invocation, megatron_deepspeed_config
from trials.trainers.megatron_bridge.overrides import bridge_overrides, format_overrides
from trials.trainers.nanotron.config import nanotron_layout
from trials.trial import LowerStrEnum, TrialSpec

GRADIENT_CLIPPING = 1.0
"""Maximum gradient norm in ds_config.json, the same as in Parlay's own trainer."""
TITLES = {
    "deepspeed": "DeepSpeed",
    "megatron-lm": "Megatron-LM",
    "megatron-deepspeed": "Megatron-DeepSpeed",
    "megatron-bridge": "NeMo Megatron-Bridge",
    "gpt-neox": "GPT-NeoX",
    "nanotron": "nanotron",
    "command": "the search's command",
}
"""Display names of the trainers in recipe.yaml's `exports`."""

_COMMAND_FILE = "command.txt"
_TAKES_ARGUMENTS = ("megatron-lm", "megatron-deepspeed", "command")


class ExportStatus(LowerStrEnum):
    """Relation of a trainer to the layout: it measured it, could run it, or cannot."""

    MEASURED = "measured"
    NOT_MEASURED = "not_measured"
    REFUSED = "refused"


STATUS_TEXT = {
    ExportStatus.MEASURED: "measured with this trainer",
    ExportStatus.NOT_MEASURED: "not measured with this trainer",
}


@dataclass(frozen=True)
class Export:
    """The layout for one trainer: `files` (name to text), and `start`, the command line that trains with them.

    For a layout that the trainer cannot run, `rule` and `message` name the violated rule instead. `replayed` is the
    result of a replay with this trainer, if another one measured the layout (orchestrator/replay/note_in_recipe.py).
    """

    trainer: str
    status: ExportStatus
    files: Mapping[str, str] = field(default_factory=dict)
    start: str | None = None
    rule: str | None = None
    message: str | None = None
    replayed: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """An entry of recipe.yaml's `exports`."""
        return {
            "trainer": self.trainer,
            "status": self.status.value,
            "files": list(self.files),
            "start": self.start,
            "rule": self.rule,
            "message": self.message,
            "replayed": self.replayed,
        }


def exports(spec: TrialSpec, python: str) -> list[Export]:
    """The layout for every trainer, first the one that measured it with the interpreter `python`."""
    made = [_export(name, trainer, spec) for name, trainer in _TRAINERS.items()]
    return sorted(
        [*made, *_command_exports(spec, python)], key=lambda export: export.status is not ExportStatus.MEASURED
    )


def measured_trainer(spec: TrialSpec) -> str:
    """Trainer that ran the trial. For Parlay's own it is the engine, which a measured table may name as well."""
    kind = str(spec.trainer["kind"])
    return spec.layout.engine if kind == "parlay" else kind


@dataclass(frozen=True)
class _Trainer:
    """Export of one trainer: the layout's engine, the check, the files and the command line."""

    engine: str
    problem: Callable[[Layout, ModelShape], Problem | None]
    files: Callable[[TrialSpec], dict[str, str]]
    start: Callable[[TrialSpec], str]


def _export(name: str, trainer: _Trainer, measured: TrialSpec) -> Export:
    layout = replace(measured.layout, engine=trainer.engine).canonical()
    problem = trainer.problem(layout, measured.model)
    if problem is not None:
        return Export(name, ExportStatus.REFUSED, rule=problem.code, message=_problem_text(problem))
    spec = replace(measured, layout=layout)
    ran = measured_trainer(measured) == name
    status = ExportStatus.MEASURED if ran else ExportStatus.NOT_MEASURED
    start = _printable(trainer.start(spec))
    heading = _heading(name, status, start, measured)
    return Export(
        name, status, {file: _with_heading(file, text, heading) for file, text in trainer.files(spec).items()}, start
    )


def _problem_text(problem: Problem) -> str:
    """The problem's message, followed by its rule unless the message contains it."""
    rule = problem.rule or ""
    return problem.message if rule in problem.message else f"{problem.message}; {rule}"


def _heading(name: str, status: ExportStatus, start: str, spec: TrialSpec) -> str:
    return (
        f"# {TITLES[name]}: layout, model and batch of {spec.search_id} {spec.trial}, {STATUS_TEXT[status]}.\n"
        "# You add the rest: data, tokenizer, optimizer, training length, checkpoint paths.\n"
        f"# {start}\n"
    )


def _with_heading(file: str, text: str, heading: str) -> str:
    """Prepend the heading, except to JSON, which has no comments."""
    return text if file.endswith(".json") else heading + text


def _printable(text: str) -> str:
    return "".join(c if is_printable(c) else " " for c in text)


# -- the search's own trainer


def _command_exports(spec: TrialSpec, python: str) -> list[Export]:
    """command.txt: the command line that started a rank, for a measured trainer that takes arguments."""
    kind = str(spec.trainer["kind"])
    if kind not in _TAKES_ARGUMENTS or any(engine_violations(spec.layout, spec.model, engines_of(kind))):
        return []
    arguments = invocation(replace(spec, layout=spec.layout.canonical()), python, ".").command
    # The other kinds have an export with the same arguments.
    start = f"{_torchrun_command(spec)} --no-python sh recipe/{_COMMAND_FILE}" if kind == "command" else None
    return [Export("command", ExportStatus.MEASURED, {_COMMAND_FILE: _format_command(arguments)}, start)]


def _format_command(arguments: Iterable[str]) -> str:
    """The arguments quoted for a shell, one option per line."""
    lines: list[list[str]] = []
    for argument in arguments:
        if argument.startswith("--") or not lines:
            lines.append([])
        lines[-1].append(argument)
    return " \\\n    ".join(shlex.join(line) for line in lines) + "\n"


# -- every trainer's files, and the command line that starts it in the parent folder of recipe/


def _deepspeed_files(spec: TrialSpec) -> dict[str, str]:
    config = ds_config(spec.layout, spec.global_batch_size, GRADIENT_CLIPPING, spec.model)
    return {"ds_config.json": json.dumps(config, indent=2, allow_nan=False) + "\n"}


def _deepspeed_start(spec: TrialSpec) -> str:
    return (
        f"deepspeed --num_nodes {spec.num_nodes} --num_gpus {_ranks_per_node(spec)} YOUR_SCRIPT"
        " --deepspeed --deepspeed_config recipe/ds_config.json"
    )


def _megatron_lm_files(spec: TrialSpec) -> dict[str, str]:
    return {"megatron_args.txt": _megatron_lines(megatron_lm_layout(spec))}


def _megatron_lm_start(spec: TrialSpec) -> str:
    script = _script_or(spec, "megatron-lm", "pretrain_gpt.py")
    return f"{_torchrun(spec)} {script} {_arguments_from('megatron_args.txt')} {_arguments(spec, 'megatron-lm')}"


def _megatron_deepspeed_files(spec: TrialSpec) -> dict[str, str]:
    return {
        "megatron_deepspeed_args.txt": _megatron_lines(megatron_deepspeed_layout(spec)),
        MEGATRON_DEEPSPEED_CONFIG: plain_yaml(megatron_deepspeed_config(spec)),
    }


def _megatron_deepspeed_start(spec: TrialSpec) -> str:
    script = _script_or(spec, "megatron-deepspeed", "pretrain_gpt.py")
    return (
        f"{_torchrun(spec)} {script} {_arguments_from('megatron_deepspeed_args.txt')}"
        f" --deepspeed_config recipe/{MEGATRON_DEEPSPEED_CONFIG} {_arguments(spec, 'megatron-deepspeed')}"
    )


def _bridge_files(spec: TrialSpec) -> dict[str, str]:
    return {"nemo_overrides.txt": "".join(f"{word}\n" for word in format_overrides(bridge_overrides(spec)))}


def _bridge_start(spec: TrialSpec) -> str:
    return (
        f"{_torchrun(spec)} scripts/training/run_recipe.py --recipe YOUR_PRETRAIN_RECIPE"
        f" {_arguments_from('nemo_overrides.txt')} YOUR_OVERRIDES"
    )


def _neox_files(spec: TrialSpec) -> dict[str, str]:
    return {"gpt_neox.yml": plain_yaml(neox_layout(spec, _template(spec, "gpt-neox")))}


def _neox_start(spec: TrialSpec) -> str:
    """GPT-NeoX refuses a key that is in two files, so the user's file holds only the other keys."""
    rest = "" if _template(spec, "gpt-neox") else " YOUR_OTHER_KEYS.yml"
    return f"python deepy.py {_script_or(spec, 'gpt-neox', 'train.py')} recipe/gpt_neox.yml{rest}"


def _nanotron_files(spec: TrialSpec) -> dict[str, str]:
    return {"nanotron.yaml": plain_yaml(nanotron_layout(spec, _template(spec, "nanotron")))}


def _nanotron_start(spec: TrialSpec) -> str:
    config = "recipe/nanotron.yaml" if _template(spec, "nanotron") else "YOUR_CONFIG_WITH_THESE_KEYS.yaml"
    return f"{_torchrun(spec)} {_script_or(spec, 'nanotron', 'run_train.py')} --config-file {config}"


def _torchrun(spec: TrialSpec) -> str:
    """torchrun's command line on every node, after the environment variables that Megatron core requires."""
    environment = "".join(f"{name}={value} " for name, value in environment_of(spec.layout).items())
    return environment + _torchrun_command(spec)


def _torchrun_command(spec: TrialSpec) -> str:
    """torchrun's command line. It numbers ranks node by node, as trials do."""
    nodes = "--standalone"
    if spec.num_nodes > 1:
        nodes = f'--nnodes {spec.num_nodes} --node-rank "$NODE_RANK" --master-addr "$MASTER_ADDR" --master-port 29500'
    return f"torchrun {nodes} --nproc-per-node {_ranks_per_node(spec)}"


def _ranks_per_node(spec: TrialSpec) -> int:
    return min(spec.num_gpus, spec.gpus_per_node)


def _arguments_from(file: str) -> str:
    return f"$(grep -v '^#' recipe/{file})"


def _megatron_lines(options: Iterable[Option]) -> str:
    """One option per line; no value needs quotes. Dropout is 0 as in trials; a later option overrides it."""
    without_dropout = [["--" + name, value] for name, value in NO_DROPOUT.items()]
    return "".join(" ".join(option) + "\n" for option in [*options, *without_dropout])


def _script_or(spec: TrialSpec, kind: str, otherwise: str) -> str:
    """The search's script if it used this kind of trainer, else `otherwise`."""
    return shlex.quote(spec.trainer["script"]) if spec.trainer["kind"] == kind else otherwise


def _arguments(spec: TrialSpec, kind: str) -> str:
    is_own = spec.trainer["kind"] == kind
    return shlex.join([*spec.trainer.get("arguments", ()), "YOUR_OPTIONS"]) if is_own else "YOUR_OPTIONS"


def _template(spec: TrialSpec, kind: str) -> Mapping[str, Any]:
    return spec.trainer["template"] if spec.trainer["kind"] == kind else {}


def _bridge_problem(layout: Layout, model: ModelShape) -> Problem | None:
    return next(bridge_violations(layout, model), None)


def _engine_problem(kind: str) -> Callable[[Layout, ModelShape], Problem | None]:
    return lambda layout, model: next(engine_violations(layout, model, engines_of(kind)), None)


_TRAINERS = {
    "deepspeed": _Trainer("deepspeed", deepspeed_problem, _deepspeed_files, _deepspeed_start),
    "megatron-lm": _Trainer("megatron-lm", _engine_problem("megatron-lm"), _megatron_lm_files, _megatron_lm_start),
    "megatron-deepspeed": _Trainer(
        "megatron-deepspeed",
        _engine_problem("megatron-deepspeed"),
        _megatron_deepspeed_files,
        _megatron_deepspeed_start,
    ),
    "megatron-bridge": _Trainer("megatron-lm", _bridge_problem, _bridge_files, _bridge_start),
    "gpt-neox": _Trainer("gpt-neox", _engine_problem("gpt-neox"), _neox_files, _neox_start),
    "nanotron": _Trainer("nanotron", _engine_problem("nanotron"), _nanotron_files, _nanotron_start),
}
