"""The training that a person names: by a launch script, a configuration, a search file, a recipe, or a search."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from orchestrator.config.draft import printable_notes, render
from orchestrator.config.importers.registry import read_source
from orchestrator.config.init import draft_of
from orchestrator.config.loader import load_search_file, load_search_text
from orchestrator.config.spec import SearchSpec
from orchestrator.planning.expect import TryNext
from orchestrator.planning.expected_rate import Training
from orchestrator.planning.plan import UNLIKELY, plan_of
from search_spaces.errors import InputError
from search_spaces.layouts.layout import DEGREES
from search_spaces.layouts.workload import Workload
from search_spaces.plain_file import read_named, refusing_unreadable
from search_spaces.schema.presets import preset_search_path
from search_spaces.schema.validation import FILL_IN
from search_spaces.schema.yaml_document import Override, parse_document
from search_spaces.search_space import search_space
from trials.files.text import plural
from trials.trainers.common.log_lines import read_line
from trials.trainers.registry import LOG_FORMATS, TRAINERS


@dataclass(frozen=True)
class NamedTraining:
    """A training; the search around it, None of a recipe; the text that it was read from; what a reader has to say."""

    training: Training
    spec: SearchSpec | None
    text: str
    notes: tuple[str, ...] = ()

    def try_next(self) -> TryNext | None:
        """What a search around it would try first; None without one, where its space has no other layout, and where
        nothing is expected to be faster."""
        if self.spec is None:
            return None
        spec, now = self.spec, self.training.layout
        workload = Workload(spec.model, spec.cluster, spec.global_batch_size)
        try:
            space = search_space(workload, spec.space.given_axes(), now, engines=TRAINERS[spec.trainer.kind].rules)
        except InputError:
            return None
        plan = plan_of(spec, space)
        row, first = plan.layouts.index(now), plan.layouts[0]
        gain = float(plan.tokens_per_sec[0] / plan.tokens_per_sec[row])
        if gain <= 1 or plan.estimates.fit_probability[0] <= UNLIKELY:
            return None
        return TryNext(layout_key=first.key, gain=gain, peak_memory_gib=float(plan.estimates.peak_memory_gib[0]))


def training_named(given: str, overrides: Sequence[Override]) -> NamedTraining:
    """The training that this names, with these changes of its search file's keys.

    InputError for what is missing, by its key, for a search without a baseline, and as the readers say.
    """
    path = Path(given)
    if (path.is_dir() and (path / "recipe.yaml").exists()) or path.name == "recipe.yaml":
        _require_none(overrides)
        return _of_recipe(path)
    if preset_search_path(given) is not None or _has_space(path):
        spec = load_search_file(path, overrides, compares_speeds=False)
        return _of_spec(spec, "", ())  # its space names much that the baseline does not have
    if path.is_file():
        draft = draft_of(path)
        trainer = {key: _known(value) for key, value in draft.trainer.items()}
        text = render(replace(draft, trainer=trainer))
        spec = load_search_text(text, path.parent, overrides)
        notes = [*printable_notes(read_source(path).notes), *_other_ranks(draft.cluster, spec)]
        return _of_spec(spec, read_named(path).decode("utf-8", "replace"), tuple(notes))
    from orchestrator.records.lookup import find_recipe

    _require_none(overrides)
    return _of_recipe(find_recipe(given, None))


def _require_none(overrides: Sequence[Override]) -> None:
    """InputError for changes of a recipe, which is what was measured."""
    if overrides:
        raise InputError.of("usage", "changes no recipe", key="--set", fix="name the search file, and change that")


def _known(value: Any) -> Any:
    """What only a launch needs has no part in the speed."""
    if isinstance(value, list):
        return [each for each in value if each != FILL_IN]
    return "unknown" if value == FILL_IN else value


def _other_ranks(cluster: Mapping[str, Any], spec: SearchSpec) -> Iterator[str]:
    """A remark where the file starts another number of ranks than the cluster has."""
    sizes = [cluster[name] for name in ("gpus_per_node", "num_nodes")]
    if FILL_IN not in sizes and (started := math.prod(sizes)) != spec.cluster.num_gpus:
        yield f"the file starts {plural(started, 'rank')}; the speed is that of {spec.cluster.num_gpus}"


def _has_space(path: Path) -> bool:
    if path.suffix not in (".yaml", ".yml") or not path.is_file():
        return False
    return "space" in parse_document(read_named(path), str(path), path.parent).data


def _of_recipe(path: Path) -> NamedTraining:
    from orchestrator.recipe.read import read_recipe

    recipe = read_recipe(path).recipe
    return NamedTraining(Training(recipe.model, recipe.cluster, recipe.layout), None, "")


def _of_spec(spec: SearchSpec, text: str, notes: tuple[str, ...]) -> NamedTraining:
    if spec.baseline is None:
        rule = "the baseline is the training whose speed is expected"
        raise InputError.of(
            "missing_key", "is missing", key="baseline", rule=rule, fix="write the present layout there"
        )
    return NamedTraining(Training(spec.model, spec.cluster, spec.baseline), spec, text, notes)


@dataclass(frozen=True)
class LoggedSpeed:
    """Speed that a trainer's log reports: tokens/s by its step times, the steps, and the TFLOP/s a GPU it prints."""

    tokens_per_sec: float
    steps: int
    printed_tflops: float | None
    text: str


def speed_in_log(path: Path, training: Training) -> LoggedSpeed:
    """The median over the last half of the steps in a log of any trainer that Parlay knows.

    InputError for a log without steps, or of another number of ranks or batch.
    """
    with refusing_unreadable(path):
        text = read_named(path).decode("utf-8", "replace")
    found: list[dict[str, float]] = []
    proven: dict[str, float] = {}
    formats = {training.layout.engine: None, **LOG_FORMATS}  # the trainer's own first
    for name in formats:
        if found or (log_format := LOG_FORMATS.get(name)) is None:
            continue
        lines = [read_line(line, log_format) for line in text.splitlines()]
        found = [dict(line.values) for line in lines if line.is_step and _seconds(line.values, training) > 0]
        proven = {name: value for line in lines for name, value in line.values.items()}
    if not found:
        rule = "a line of it reports a step as one of " + ", ".join(LOG_FORMATS)
        raise InputError.of("log", "has no step", key="--log", file=str(path), rule=rule, fix="give --tokens-per-sec")
    layout = training.layout
    shown = {name: getattr(layout, name) for name in ("global_batch_size", *DEGREES.values())}
    for name, ours in {"world_size": layout.num_gpus, **shown}.items():
        if (theirs := proven.get(name, ours)) != ours:
            rule = f"the log is of the training that is named, whose {name} is {ours}"
            raise InputError.of("log", f"{name} is {theirs:g}", key="--log", file=str(path), rule=rule, fix=_OTHER)
    later = found[len(found) // 2 :]
    seconds = [_seconds(step, training) for step in later]
    tflops = [step["tflops"] for step in later if math.isfinite(step.get("tflops", math.nan))]
    return LoggedSpeed(training.tokens_per_step / median(seconds), len(found), median(tflops) if tflops else None, text)


_OTHER = "name the other training, or change it with --set"


def _seconds(step: Mapping[str, float], training: Training) -> float:
    """Seconds of a step; NaN where the line has none, or a rate of 0."""
    if "step_time_s" in step:
        return step["step_time_s"]
    tokens = step.get("tokens_per_sec", step.get("samples_per_sec", 0) * training.model.seq_length)
    return training.tokens_per_step / tokens if tokens > 0 else math.nan
