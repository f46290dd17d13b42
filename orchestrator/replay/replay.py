"""Replay: the recipe's layout measured again, and a verdict."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from orchestrator.config.answer import Answer, AnswerPart
from orchestrator.config.schema.launcher import LauncherSection
from orchestrator.launchers.base import Launcher
from orchestrator.launchers.local.launcher import visible_devices
from orchestrator.recipe.read import LoadedRecipe
from orchestrator.recipe.recipe import Recipe
from orchestrator.replay.measured_layout import recorded_runs, runs_of, start_of
from orchestrator.replay.other_trainer import other_trainer_error
from orchestrator.replay.requirement import NodeHourBudget, Requirement, RequirementAnswer, RequirementVerdict
from orchestrator.replay.runs import ReplayCallbacks, ReplayRuns
from orchestrator.replay.software import fingerprint_differences
from orchestrator.replay.speed_ratio import (
    SESSION_S,
    Comparison,
    Ratios,
    ReplayVerdict,
    Run,
    by_session,
    compare_runs,
    ratio_fields,
    step_time_of,
)
from orchestrator.search.attempt_factory import AttemptFactory
from search_spaces.errors import ExternalError, InputError
from search_spaces.hardware.cluster import ACCELERATORS, Cluster
from search_spaces.schema.durations import format_duration
from search_spaces.schema.validation import restore
from trials.attempt_result import AttemptResult, program_change
from trials.data.indexed_dataset import require_tokens
from trials.failure_policy import Cause, policy_of
from trials.files.folders import SearchFolder
from trials.files.path_owners import FolderIdentity
from trials.files.text import plural
from trials.trial import Flag, Outcome, Trial, TrialKind, TrialSpec, TrialState, utc_text

MIN_SESSIONS = 3
"""Sessions needed for a verdict slower or faster: two may fall into the same slow hour."""


@dataclass(frozen=True)
class ReplayRules:
    """Runs per session, and the relative change of speed that still counts as the same (`margin`).

    While it is not reproduced a layout is measured again in another session, `session_interval_s` later, up to
    `sessions`. A verdict slower or faster takes `MIN_SESSIONS` at least, where `sessions` allows as many. With
    `require` the sessions end once the requirement is met or failed.
    """

    repeats: int = 5
    margin: float = 0.05
    sessions: int = 5
    session_interval_s: float = SESSION_S
    require: Requirement | None = None

    def __post_init__(self) -> None:
        for name, value, most in (("repeats", self.repeats, 100), ("sessions", self.sessions, 20)):
            if type(value) is not int or not 1 <= value <= most:
                raise _bad(name, value, f"a whole number from 1 to {most}")
        if not 0 < self.margin <= 0.2:
            raise _bad("margin", self.margin, "more than 0 and at most 0.2")
        if not self.session_interval_s >= SESSION_S:
            raise _bad(
                "session_interval",
                format_duration(self.session_interval_s),
                f"at least {format_duration(SESSION_S)}, so that runs count as another session",
            )


class ReplaySession(AnswerPart):
    """One measurement session."""

    started_at: str | None
    runs: int
    ratio: float
    fast_ratio: float | None


class Difference(AnswerPart):
    """A field of the fingerprint that differs."""

    field: str
    recorded: Any
    here: Any


class ReplayAnswer(Ratios, Answer):
    """Printed by replay, also replay.json in its folder: the throughput of the new runs over the recorded ones."""

    schema_: Literal["parlay.replay/1"] = "parlay.replay/1"
    verdict: ReplayVerdict
    trainer: str
    """Kind of the trainer that ran."""
    recorded: float | None
    """Recorded tokens/s, the mean over sessions, as in the ratio; the recipe has the median over the runs."""
    measured: float | None
    """Tokens/s of the new runs, likewise."""
    sessions: list[ReplaySession]
    differences: list[Difference]
    flags: list[Flag]
    """Those of the new runs."""
    detail: str | None
    """Reason why it is impossible or ended early."""
    requirement: RequirementAnswer | None = None
    """What `--require` asked; null without it."""


class ReplayStopped(KeyboardInterrupt):
    """A replay was stopped; `answer` covers the runs so far and is inconclusive."""

    def __init__(self, answer: ReplayAnswer):
        super().__init__("the replay was stopped before it had a verdict")
        self.answer = _inconclusive(answer, "stopped before it had a verdict")


def impossible_replay(
    loaded: LoadedRecipe, here: Cluster | None, rules: ReplayRules = ReplayRules()
) -> ReplayAnswer | None:
    """The answer for a layout that cannot be measured here; None if it can, as far as is known before a run.

    `here` is the available hardware, None if unknown.
    """
    asked = _Replay(loaded, recorded_runs(loaded), rules)
    why = None if here is None else cluster_mismatch_reason(loaded.recipe.cluster, here)
    why = why or other_trainer_error(loaded) or dataset_error(loaded.spec())
    return None if why is None else asked.answer(ReplayVerdict.IMPOSSIBLE, detail=why)


def replay(
    loaded: LoadedRecipe,
    launcher: Launcher,
    folder: SearchFolder,
    *,
    python: str,
    rules: ReplayRules = ReplayRules(),
    callbacks: ReplayCallbacks | None = None,
) -> ReplayAnswer:
    """Measure the recipe's layout again and compare; repeat in further sessions until the result is clear.

    Call it only where `impossible_replay` returns None. `folder` is new; its name is the id the attempts run under. A
    run that cannot be launched or measured ends the replay with the runs before it; without any the launcher's
    ExternalError is raised. On an interrupt, or when `callbacks` request a stop, the run in flight is cancelled, one
    that may still run is noted, and ReplayStopped is raised.
    """
    folder.path.mkdir(parents=True, mode=0o700)
    shutil.copytree(loaded.code, folder.code, ignore=shutil.ignore_patterns("__pycache__"))
    program = replay_program(loaded, folder, python)
    budget = _budget(rules, program, launcher, loaded.recipe.layout.num_nodes)
    asked = _Replay(loaded, recorded_runs(loaded), rules, budget)
    runs = ReplayRuns(program, launcher, callbacks or ReplayCallbacks(), budget)
    try:
        return _measure_sessions(asked, runs)
    except KeyboardInterrupt as interrupt:
        raise ReplayStopped(asked.answer_of(runs.results)) from interrupt
    except ExternalError as refusal:
        if not runs.results:
            raise
        return _inconclusive(asked.answer_of(runs.results), str(refusal))


@dataclass(frozen=True)
class _Replay:
    """A replay that was asked for: the recipe, the runs that it records, the rules, and the budget of a requirement."""

    loaded: LoadedRecipe
    recorded: Sequence[Run]
    rules: ReplayRules
    budget: NodeHourBudget | None = None

    def answer_of(self, results: Sequence[AttemptResult]) -> ReplayAnswer:
        """The answer after these runs. A failed run is the last one, and makes the others inconclusive."""
        outcomes = [v.outcome for v in results if v.state is TrialState.MEASURED and v.outcome is not None]
        failed = next((v for v in results if v.state is not TrialState.MEASURED), None)
        found = self._compared(outcomes)
        if failed is None:
            return found
        update = {"verdict": _verdict_on_failure(failed), "detail": f"{failed.reason}: {failed.excerpt}"}
        return found.model_copy(update={**update, "requirement": self._requirement(None, outcomes)})

    def _compared(self, outcomes: Sequence[Outcome]) -> ReplayAnswer:
        """The measured runs beside the recorded ones; inconclusive without any, impossible for another program."""
        if not outcomes:
            return self.answer(ReplayVerdict.INCONCLUSIVE)
        if (change := self.program_change(outcomes[-1])) is not None:
            why = f"it is another program than the recorded one: {change}"
            return self.answer(ReplayVerdict.IMPOSSIBLE, outcomes, detail=why)
        runs = runs_of((outcome, start_of(outcome.started_at)) for outcome in outcomes)
        found = compare_runs(self.recorded, runs, self.rules.margin)
        return self.answer(found.verdict, outcomes, runs, found)

    def answer(
        self,
        verdict: ReplayVerdict,
        outcomes: Sequence[Outcome] = (),
        runs: Sequence[Run] = (),
        found: Comparison | None = None,
        detail: str | None = None,
    ) -> ReplayAnswer:
        seen = fingerprint_differences(self.loaded.recipe.fingerprint, outcomes[-1].fingerprint) if outcomes else ()
        return ReplayAnswer(
            verdict=verdict,
            trainer=str(self.loaded.spec().trainer["kind"]),
            recorded=self._tokens_per_sec(self.recorded),
            measured=self._tokens_per_sec(runs) if runs else None,
            **ratio_fields(found),
            sessions=[] if found is None else list(_sessions(runs, found)),
            differences=[Difference(field=pair.field, recorded=pair.a, here=pair.b) for pair in seen],
            flags=list(dict.fromkeys(flag for outcome in outcomes for flag in outcome.flags)),
            detail=detail,
            requirement=self._requirement(found, outcomes),
        )

    def _requirement(self, found: Comparison | None, outcomes: Sequence[Outcome]) -> RequirementAnswer | None:
        """What is known of the requirement so far; inconclusive without a comparison."""
        asked, budget = self.rules.require, self.budget
        if asked is None:
            return None
        return RequirementAnswer(
            required=asked.ratio,
            verdict=RequirementVerdict.INCONCLUSIVE if found is None else asked.verdict(found),
            node_hours=0.0 if budget is None else budget.node_hours,
            node_hours_used=0.0 if budget is None else budget.used,
            nodes=[*(outcomes[-1].fingerprint.get("hosts") or ())] if outcomes else [],
            slow=[],
            search_of_nodes=None,
        )

    def program_change(self, outcome: Outcome | None) -> str | None:
        """Difference between the recorded program and this run's; None with another trainer, whose program is its
        own."""
        if outcome is None or self.loaded.trainer is not None:
            return None
        return program_change(self.loaded.recipe.fingerprint, outcome.fingerprint)

    def _tokens_per_sec(self, runs: Sequence[Run]) -> float:
        """Throughput by the mean step time that verdicts use, so that ratios of throughput and of step time agree."""
        return self.loaded.recipe.batch["tokens_per_step"] / step_time_of(by_session(runs))


def _sessions(runs: Sequence[Run], found: Comparison) -> Iterator[ReplaySession]:
    for number, session in enumerate(by_session(runs)):
        yield ReplaySession(
            started_at=None if session.started_s is None else utc_text(session.started_s),
            runs=len(session.runs),
            ratio=found.speed.by_session[number],
            fast_ratio=None if found.fast is None else found.fast.by_session[number],
        )


def _inconclusive(answer: ReplayAnswer, detail: str) -> ReplayAnswer:
    return answer.model_copy(update={"verdict": ReplayVerdict.INCONCLUSIVE, "detail": detail})


def _measure_sessions(asked: _Replay, runs: ReplayRuns) -> ReplayAnswer:
    """Measure session after session, until there is a verdict or the last session is over."""
    rules = asked.rules
    for number in range(1, rules.sessions + 1):
        with runs.session():
            _measure_at_session(asked, runs)
        answer = asked.answer_of(runs.results)
        if answer.ratio is None or number == rules.sessions or _is_settled(answer, number):
            break
        runs.pause(rules.session_interval_s, _repeat_reason(answer, rules))
    return answer


def _measure_at_session(asked: _Replay, runs: ReplayRuns) -> None:
    """Measure the runs of one session; a failed run is the last, and one of another program."""
    for _ in range(asked.rules.repeats):
        trial = Trial(f"t{len(runs.results) + 1:04d}", asked.loaded.recipe.layout, TrialKind.REPLAY)
        result = runs.measure(trial)
        if result.state is not TrialState.MEASURED or asked.program_change(result.outcome) is not None:
            return


def _is_settled(found: ReplayAnswer, sessions: int) -> bool:
    """True if no further session is needed."""
    if found.detail is not None:
        return True
    if found.requirement is not None:
        return found.requirement.verdict is not RequirementVerdict.INCONCLUSIVE
    if found.verdict is ReplayVerdict.REPRODUCED:
        return True
    return found.verdict is not ReplayVerdict.INCONCLUSIVE and sessions >= MIN_SESSIONS


def _repeat_reason(found: ReplayAnswer, rules: ReplayRules) -> str:
    return (
        f"{found.ratio:.3f} times as fast (95 % interval {found.ratio_low:.3f} to {found.ratio_high:.3f}), which may be"
        f" a temporary effect: measuring again in {format_duration(rules.session_interval_s)}"
    )


def launcher_section(recipe: Recipe, kind: str | None) -> LauncherSection:
    """The launcher of the recipe's search, with all its options, or one of another kind.

    The default is the same launcher, since a launcher affects speed. A simulated search is replayed as plain processes.
    """
    recorded = restore(LauncherSection, dict(recipe.launcher))
    if kind in (None, recorded.kind) and recorded.kind != "simulated":
        return recorded
    return LauncherSection.model_validate({"kind": kind or "local", "slurm": recorded.slurm})


def cluster_mismatch_reason(needed: Cluster, here: Cluster) -> str | None:
    """Difference of hardware, with the numbers, that keeps the recipe from running here; None if it can run."""
    if here.accelerator.name != needed.accelerator.name:
        return f"the recipe is for {needed.accelerator.name}, here is {here.accelerator.name}"
    if here.gpus_per_node < needed.gpus_per_node or here.num_nodes < needed.num_nodes:
        return (
            f"the recipe needs {plural(needed.num_nodes, 'node')} x {needed.gpus_per_node} {needed.accelerator.name}"
            f" = {needed.num_gpus}, here are {here.num_nodes} x {here.gpus_per_node} = {here.num_gpus}"
        )
    return None


def dataset_error(spec: TrialSpec) -> str | None:
    """Error of the dataset that was measured; None if it is usable, or the tokens were synthetic."""
    try:
        if spec.reads_tokens:
            require_tokens(spec.trainer["data"], spec.model)
    except InputError as error:
        return error.problems[0].message
    return None


def this_machine(needed: Cluster, environment: Mapping[str, str]) -> Cluster:
    """This machine, as far as it is known without querying its devices: their model is assumed to be the recipe's.

    On a CPU any number of ranks can be started.
    """
    if needed.accelerator.name == "cpu":
        return Cluster(needed.accelerator, needed.gpus_per_node, 1)
    devices = visible_devices(environment)
    if not devices:
        return Cluster(ACCELERATORS["cpu"], os.cpu_count() or 1, 1)
    return Cluster(needed.accelerator, len(devices), 1)


def replay_program(loaded: LoadedRecipe, folder: SearchFolder, python: str) -> AttemptFactory:
    """What the runs of a replay share."""
    spec = loaded.spec()
    return AttemptFactory(
        folder=folder,
        model=spec.model,
        cluster=loaded.recipe.cluster,
        measure=replace(spec.measure, energy=False),  # speeds are compared, wherever the replay runs
        python=python,
        trainer=spec.trainer,
        seed=spec.seed,
        taken=FolderIdentity.at(folder.path),
    )


def _budget(rules: ReplayRules, program: AttemptFactory, launcher: Launcher, num_nodes: int) -> NodeHourBudget | None:
    """The budget of a requirement, by default what two sessions may take at most; None without one."""
    if rules.require is None:
        return None
    reserved_s = launcher.reservation_node_s(program.time_limit_s, num_nodes)
    return NodeHourBudget(rules.require.node_hours or 2 * rules.repeats * reserved_s / 3600)


def _verdict_on_failure(failed: AttemptResult) -> ReplayVerdict:
    """Impossible for a layout that no longer fits; any other failure says nothing about its speed."""
    cannot_run = policy_of(failed.reason).cause is Cause.LAYOUT
    return ReplayVerdict.IMPOSSIBLE if cannot_run else ReplayVerdict.INCONCLUSIVE


def _bad(name: str, value: Any, rule: str) -> InputError:
    fix = "leave it out for the default"
    return InputError.of("replay", f"{name} is {value!r}", key=name, value=value, rule=rule, fix=fix)
