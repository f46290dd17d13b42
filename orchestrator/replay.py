"""Replay: the recipe's layout measured again, and a verdict."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from orchestrator.launchers.base import Launcher
from orchestrator.launchers.local import visible_devices
from orchestrator.launchers.schema import LauncherSection
from orchestrator.recipe.compare import Comparison, ReplayVerdict, Run, compare, fingerprint_differences
from orchestrator.recipe.read import LoadedRecipe
from orchestrator.recipe.recipe import Recipe
from orchestrator.replay_runs import ReplayRuns, ReplayWatcher
from orchestrator.replay_trainer import why_trainer_cannot
from orchestrator.search.attempts import TrialProgram
from search_spaces.cluster import ACCELERATORS, Cluster
from search_spaces.errors import InputError
from search_spaces.validation import restored
from trials.classify import Verdict
from trials.folder import SearchFolder
from trials.text import counted
from trials.tokens import require_tokens
from trials.trial import FailureReason, Trial, TrialKind, TrialSpec, TrialState

REPLAY_SCHEMA = "parlay.replay/1"


@dataclass(frozen=True)
class ReplayRules:
    """How often the layout is measured, and the relative change of speed that still counts as the same."""

    repeats: int = 5
    margin: float = 0.05

    def __post_init__(self) -> None:
        if type(self.repeats) is not int or not 1 <= self.repeats <= 100:
            raise _bad("repeats", self.repeats, "a whole number from 1 to 100")
        if not 0 < self.margin <= 0.2:
            raise _bad("margin", self.margin, "more than 0 and at most 0.2")


@dataclass(frozen=True)
class ReplayResult:
    """What a replay with `trainer` found. `comparison` is None when nothing was measured, and then `detail` says why.

    `differences` are the fields of the fingerprints that are not the same, as {field, recorded, here}; `flags` are
    those of any run. Throughputs are tokens per second, means over the runs' step times.
    """

    verdict: ReplayVerdict
    trainer: str
    recorded_tokens_per_sec: float
    measured_tokens_per_sec: float | None = None
    comparison: Comparison | None = None
    differences: tuple[Mapping[str, Any], ...] = ()
    flags: tuple[str, ...] = ()
    detail: str | None = None
    runs: tuple[Run, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The contract's object for `parlay replay --json`, with `detail` beside it."""
        found = self.comparison
        return {
            "schema": REPLAY_SCHEMA,
            "verdict": self.verdict.value,
            "trainer": self.trainer,
            "recorded": self.recorded_tokens_per_sec,
            "measured": self.measured_tokens_per_sec,
            "ratio": None if found is None else found.ratio,
            "ratio_low": None if found is None else found.low,
            "ratio_high": None if found is None else found.high,
            "differences": [dict(difference) for difference in self.differences],
            "flags": list(self.flags),
            "detail": self.detail,
        }


def replay(
    loaded: LoadedRecipe,
    launcher: Launcher,
    folder: SearchFolder,
    *,
    python: str,
    rules: ReplayRules = ReplayRules(),
    here: Cluster | None = None,
    watcher: ReplayWatcher | None = None,
) -> ReplayResult:
    """Measure the recipe's layout again, one run after the other, and compare.

    `folder` is new; its name is the id the attempts run under. `here` is the hardware at hand, None where it is not
    known. A run that cannot be measured ends the replay. On an interrupt, and where the watcher says so, the run in
    flight is cancelled, what may live on is noted, and KeyboardInterrupt raised. Raises LaunchRefused as the launcher
    does.
    """
    recorded, trainer = recorded_runs(loaded), _trainer_of(loaded)
    why = None if here is None else why_impossible(loaded.recipe.cluster, here)
    why = why or why_trainer_cannot(loaded) or why_no_tokens(loaded.spec())
    if why is not None:
        return ReplayResult(ReplayVerdict.IMPOSSIBLE, trainer, _tokens_per_sec(loaded, recorded), detail=why)
    folder.path.mkdir(parents=True, mode=0o700)
    shutil.copytree(loaded.code, folder.code, ignore=shutil.ignore_patterns("__pycache__"))
    runs = ReplayRuns(_program(loaded, folder, python), launcher, watcher or ReplayWatcher())
    verdicts: list[Verdict] = []
    while len(verdicts) < rules.repeats and all(v.state is TrialState.MEASURED for v in verdicts):
        trial = Trial(f"t{len(verdicts) + 1:04d}", loaded.recipe.layout, TrialKind.REPLAY)
        verdicts.append(runs.measure(trial))
    return _result(loaded, recorded, verdicts, rules)


def launcher_section(recipe: Recipe, kind: str | None) -> LauncherSection:
    """The launcher the recipe was measured under, with all its options, or one of another kind.

    What a table answered is replayed as plain processes. A launcher costs speed of its own, so the same one is the
    fair one.
    """
    recorded = restored(LauncherSection, dict(recipe.launcher))
    if kind in (None, recorded.kind) and recorded.kind != "recorded":
        return recorded
    return LauncherSection.model_validate({"kind": kind or "local", "slurm": recorded.slurm})


def recorded_runs(loaded: LoadedRecipe) -> list[Run]:
    """The runs recipe.yaml rests on; InputError when it names none, or one without a step time."""
    try:
        runs = [_run(run) for run in loaded.recipe.evidence["runs"]]
        if runs and all(run.step_time_s > 0 for run in runs):
            return runs
    except (KeyError, TypeError, AttributeError):
        pass
    raise InputError.of(
        "recipe",
        "evidence.runs names no run with a step time",
        key="evidence.runs",
        rule="a recipe rests on at least one run",
    )


def _run(measured: Mapping[str, Any]) -> Run:
    return Run(measured["step_time_s"], measured.get("step_time_low_s"), measured.get("step_time_high_s"))


def why_impossible(needed: Cluster, here: Cluster) -> str | None:
    """Why a recipe for one cluster says nothing on another, with the numbers; None when it can be run here."""
    if here.accelerator.name != needed.accelerator.name:
        return f"the recipe is for {needed.accelerator.name}, here is {here.accelerator.name}"
    if here.gpus_per_node < needed.gpus_per_node or here.num_nodes < needed.num_nodes:
        return (
            f"the recipe needs {counted(needed.num_nodes, 'node')} x {needed.gpus_per_node} {needed.accelerator.name}"
            f" = {needed.num_gpus}, here are {here.num_nodes} x {here.gpus_per_node} = {here.num_gpus}"
        )
    return None


def why_no_tokens(spec: TrialSpec) -> str | None:
    """Why the tokens it was measured on cannot be had again; None when they can, or when they were made up."""
    try:
        if spec.reads_tokens:
            require_tokens(spec.trainer["data"], spec.model)
    except InputError as error:
        return error.problems[0].message
    return None


def this_machine(needed: Cluster, environment: Mapping[str, str]) -> Cluster:
    """This one machine as far as it can be seen without asking its devices: their model is taken to be the recipe's.

    On a CPU any number of ranks can be started.
    """
    if needed.accelerator.name == "cpu":
        return Cluster(needed.accelerator, needed.gpus_per_node, 1)
    devices = visible_devices(environment)
    if not devices:
        return Cluster(ACCELERATORS["cpu"], os.cpu_count() or 1, 1)
    return Cluster(needed.accelerator, len(devices), 1)


def _program(loaded: LoadedRecipe, folder: SearchFolder, python: str) -> TrialProgram:
    spec = loaded.spec()
    return TrialProgram(
        folder=folder,
        model=spec.model,
        cluster=loaded.recipe.cluster,
        measure=spec.measure,
        python=python,
        trainer=spec.trainer,
        seed=spec.seed,
    )


def _result(
    loaded: LoadedRecipe, recorded: Sequence[Run], verdicts: Sequence[Verdict], rules: ReplayRules
) -> ReplayResult:
    outcomes = [v.outcome for v in verdicts if v.state is TrialState.MEASURED and v.outcome is not None]
    runs = tuple(_run(outcome.measured) for outcome in outcomes)
    before, trainer = _tokens_per_sec(loaded, recorded), _trainer_of(loaded)
    failed = next((v for v in verdicts if v.state is not TrialState.MEASURED), None)
    if failed is not None:
        why = f"{failed.reason}: {failed.excerpt}"
        return ReplayResult(_verdict_on_failure(failed), trainer, before, detail=why, runs=runs)
    found = compare(recorded, runs, rules.margin)
    differences = tuple(fingerprint_differences(loaded.recipe.fingerprint, outcomes[0].fingerprint))
    flags = tuple(dict.fromkeys(flag for outcome in outcomes for flag in outcome.flags))
    now = _tokens_per_sec(loaded, runs)
    return ReplayResult(found.verdict, trainer, before, now, found, differences, flags, runs=runs)


def _trainer_of(loaded: LoadedRecipe) -> str:
    return str(loaded.spec().trainer.get("kind", "parlay"))


def _verdict_on_failure(failed: Verdict) -> ReplayVerdict:
    """A layout that no longer fits cannot be run here; any other failure says nothing about its speed."""
    does_not_fit = failed.reason in (FailureReason.GPU_OOM, FailureReason.HOST_OOM, FailureReason.INVALID_LAYOUT)
    return ReplayVerdict.IMPOSSIBLE if does_not_fit else ReplayVerdict.INCONCLUSIVE


def _tokens_per_sec(loaded: LoadedRecipe, runs: Sequence[Run]) -> float:
    """Of the geometric mean of the runs' step times, so that ratios of throughputs are ratios of these."""
    return loaded.recipe.batch["tokens_per_step"] / math.exp(fmean(math.log(run.step_time_s) for run in runs))


def _bad(name: str, value: Any, rule: str) -> InputError:
    return InputError.of("replay", f"{name} is {value!r}", key=name, value=value, rule=rule)
