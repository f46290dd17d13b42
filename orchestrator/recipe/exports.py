"""Exports: the layout as arguments or configuration files of every trainer that can run it. Pure.

The rendering of each trainer is in its package under trials/trainers, which its trials use too.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from search_spaces.engines import PARLAY
from search_spaces.errors import InputError, Problem
from search_spaces.routing import Routing
from search_spaces.rules.check import engine_violations
from search_spaces.schema.unsafe_text import without_controls
from trials.trainers.base import LayoutExport
from trials.trainers.common.recipe import torchrun
from trials.trainers.registry import TRAINERS, invocation, with_options
from trials.trial import LowerStrEnum, TrialSpec

_COMMAND = "command"
TITLES = {
    **{made.name: made.title for trainer in TRAINERS.values() if (made := trainer.export) is not None},
    _COMMAND: "the search's command",
}
"""Display names of the trainers in recipe.yaml's `exports`."""

_COMMAND_FILE = "command.txt"


class ExportStatus(LowerStrEnum):
    """Relation of a trainer to the layout: it measured it, could run it, or cannot."""

    MEASURED = "measured"
    NOT_MEASURED = "not_measured"
    REFUSED = "refused"


def status_text(status: ExportStatus, is_emulated: bool) -> str:
    """Status of a trainer with files; `is_emulated`: the device that the layout was measured on is."""
    if status is ExportStatus.NOT_MEASURED:
        return "not measured with this trainer"
    return "measured with this trainer" + (" on an emulated device" if is_emulated else "")


@dataclass(frozen=True)
class Export:
    """The layout for one trainer: `files` (name to text), and `unrun_start`, a command line that trains with them and
    that was not run: trials are started by Parlay.

    For a layout that the trainer cannot run, `rule` and `message` name the violated rule instead. `replayed` is the
    result of a replay with this trainer, if another one measured the layout (orchestrator/replay/note_in_recipe.py).
    """

    trainer: str
    status: ExportStatus
    files: Mapping[str, str] = field(default_factory=dict)
    unrun_start: str | None = None
    rule: str | None = None
    message: str | None = None
    replayed: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """An entry of recipe.yaml's `exports`."""
        return asdict(self) | {"status": self.status.value, "files": list(self.files)}


def exports(
    spec: TrialSpec, python: str, fingerprint: Mapping[str, Any] | None = None, has_run: bool = True
) -> list[Export]:
    """The layout for every trainer, first the one that measured it with the interpreter `python`, on the software of
    `fingerprint`. A trial that was replayed from a table has not run."""
    forms = [trainer.export for trainer in TRAINERS.values() if trainer.export is not None]
    made = [_export(form, spec, fingerprint or {}, has_run) for form in forms]
    return sorted(
        [*made, *_command_exports(spec, python, has_run)], key=lambda export: export.status is not ExportStatus.MEASURED
    )


def measured_trainer(spec: TrialSpec) -> str:
    """Trainer that ran the trial; for Parlay's own it is the engine."""
    kind = str(spec.trainer["kind"])
    return spec.layout.engine if kind == PARLAY else kind


def _export(form: LayoutExport, measured: TrialSpec, fingerprint: Mapping[str, Any], has_run: bool) -> Export:
    layout = replace(measured.layout, engine=form.engine).canonical()
    model = replace(measured.model, document_length=None)  # of the data, which is the user's
    problem = form.problem(layout, model)
    if problem is not None:
        return Export(form.name, ExportStatus.REFUSED, rule=problem.code, message=_problem_text(problem))
    spec = with_options(replace(measured, layout=layout, model=model))
    status = _status(has_run and measured_trainer(measured) == form.name)
    start = None if (line := form.start(spec)) is None else without_controls(line)
    heading = _heading(form.name, status, start, measured)
    if has_run:
        heading += f"{_launch_line(measured)}{_routing_line(measured)}{_documents_line(measured)}"
    if form.name != measured.trainer["kind"]:
        heading += _options_line(measured)
    more = form.of_software(fingerprint)
    # JSON has no comments.
    headed = ((file, text if file.endswith(".json") else heading + text) for file, text in form.files(spec).items())
    files = {file: text + more for file, text in headed}
    return Export(form.name, status, files, start)


def _status(was_measured: bool) -> ExportStatus:
    return ExportStatus.MEASURED if was_measured else ExportStatus.NOT_MEASURED


def _problem_text(problem: Problem) -> str:
    """The problem's message, followed by its rule unless the message contains it."""
    rule = problem.rule or ""
    return problem.message if rule in problem.message else f"{problem.message}; {rule}"


def _heading(name: str, status: ExportStatus, start: str | None, spec: TrialSpec) -> str:
    status_line = status_text(status, spec.is_emulated)
    start_line = "" if start is None else f"# This line was not run:\n# {start}\n"
    return (
        f"# {TITLES[name]}: layout, model and batch of {spec.search_id} {spec.trial}, {status_line}.\n"
        "# You add the rest: data, tokenizer, optimizer, training length, checkpoint paths.\n"
        f"{start_line}"
    )


def _launch_line(spec: TrialSpec) -> str:
    """The launch options that were measured, which torchrun's command line does not have."""
    settings = spec.layout.of_trial
    if not settings.launch:
        return ""
    if set(settings.launch) == {"cpu_bind"} and settings.launch["cpu_bind"] == "none":
        return ""
    return f"# Measured with ranks started as by srun {' '.join(settings.srun_options)}.\n"


def _options_line(spec: TrialSpec) -> str:
    """The searched options of the trainer that measured, which are not those of another."""
    settings = spec.layout.of_trial
    given = [*settings.arguments, *(f"{name}: {value}" for name, value in settings.keys.items())]
    return f"# {spec.trainer['kind']} also had {' '.join(given)}.\n" if given else ""


def _documents_line(spec: TrialSpec) -> str:
    if spec.model.document_length is None:
        return ""
    return "# Measured with attention within documents: choose that mask with your data, else a step takes longer.\n"


def _routing_line(spec: TrialSpec) -> str:
    routing = Routing.of(spec.measure.routing)
    if routing.skew is None:
        return ""
    return f"# Measured with measure.routing {routing}: leave the choice of experts to the router in a training.\n"


# -- the search's own trainer


def _command_exports(spec: TrialSpec, python: str, has_run: bool) -> list[Export]:
    """command.txt: the command line that starts a rank, for a trainer whose command line shows the layout."""
    trainer = TRAINERS[spec.trainer["kind"]]
    if not trainer.shows_layout or any(engine_violations(spec.layout, spec.model, trainer.rules)):
        return []
    try:
        arguments = invocation(replace(spec, layout=spec.layout.canonical()), python, ".").command
    except (InputError, OSError):  # it depends on the script's version, and only the ranks can read the script
        return []
    # The others have an export with the same arguments.
    start = f"{torchrun(spec)} --no-python sh recipe/{_COMMAND_FILE}" if trainer.export is None else None
    return [Export(_COMMAND, _status(has_run), {_COMMAND_FILE: _format_command(arguments)}, start)]


def _format_command(arguments: Iterable[str]) -> str:
    """The arguments quoted for a shell, one option per line."""
    lines: list[list[str]] = []
    for argument in arguments:
        if argument.startswith("--") or not lines:
            lines.append([])
        lines[-1].append(argument)
    return " \\\n    ".join(shlex.join(line) for line in lines) + "\n"
