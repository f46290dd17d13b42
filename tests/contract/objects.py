"""Objects of docs/contract.md: what each `{{name}}` of template.md stands for."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

from dashboards.mlflow.runs import RunStatus
from dashboards.trial_text import FLAG_DESCRIPTIONS
from orchestrator.answers import cluster, comparison, planning, searches
from orchestrator.common.exit_codes import ExitCode
from orchestrator.comparison.compare import CompareVerdict
from orchestrator.comparison.speed_ratio import ReplayVerdict
from orchestrator.comparison.stacks import StackVerdict
from orchestrator.diagnostics.doctor.finding import Area, Level
from orchestrator.interop.export_formats import ExportFormat
from orchestrator.interop.table_export import COLUMNS as TIDY_COLUMNS
from orchestrator.planning.forecast import Scaling
from orchestrator.planning.plan import Fits
from orchestrator.recipe.exports import Export, ExportStatus
from orchestrator.recipe.recipe import RECIPE_SCHEMA, Recipe
from orchestrator.records.ledger_rebuild import RebuildResult
from orchestrator.schema.notify import NotifyEvent
from orchestrator.search.lease import LEASE_SCHEMA, Lease
from orchestrator.service import models
from search_spaces.layouts.layout import Layout
from search_spaces.model_shape import ModelShape
from search_spaces.tables.measured_table import OPTIONAL_COLUMNS, REQUIRED_COLUMNS
from trials import outcome_types, trial
from trials.analysis.best_layout import Choice
from trials.analysis.finals import FinalsEnding
from trials.analysis.ranking import Objective
from trials.analysis.verdict import DisplayState, VerdictKind
from trials.diagnostics.calibration import MEASUREMENTS_SCHEMA, GroupTime, Measurements, PairTime, Product, ProductRate
from trials.diagnostics.fabric import FABRIC_SCHEMA, Exchange, ExchangeTime, FabricTimes
from trials.diagnostics.node_probe import NODE_PROBE_SCHEMA, NodeProbeReport, RankProbe
from trials.diagnostics.selftest import CASES_SCHEMA, RESULTS_SCHEMA, Case, CaseResult, ExpectedResult, Results
from trials.failure_policy import policy_of
from trials.files.folders import AttemptFolder, SearchFolder
from trials.ledger.commands import CommandKind
from trials.ledger.events import EVENT_SCHEMA, EndReason, Event, EventKind, SearchState
from trials.ledger.tables import AttemptRow, CommandRow, SearchRow, TrialRow
from trials.measure_rules import MeasureRules
from trials.measurement.node_metrics import NodeSample
from trials.measurement.step_log import StepPhase, StepRecord
from trials.pilot import files as pilot
from trials.ranks.startup import StartupPart
from trials.trial import OUTCOME_SCHEMA, SPEC_SCHEMA, FailureReason, Flag, Outcome, TrialSpec


@dataclass(frozen=True)
class Folder:
    """A folder whose class names its paths as properties. `example` is an instance, `rows` are further paths."""

    title: str
    text: str
    example: Any
    rows: tuple[tuple[str, str], ...] = ()


def _typed(*modules: ModuleType) -> tuple[type, ...]:
    """The classes that these modules define, in their order; a class follows those that it uses."""
    return tuple(
        kind
        for module in modules
        for kind in vars(module).values()
        if inspect.isclass(kind) and kind.__module__ == module.__name__
    )


OBJECTS: Mapping[str, tuple[type, ...]] = {
    "layout": (Layout,),
    "model": (ModelShape,),
    "search_file": (Objective,),
    "states": (
        *(SearchState, EndReason, FinalsEnding, trial.TrialState, FailureReason, Flag, trial.TrialKind),
        *(DisplayState, VerdictKind, Choice),
        *(ReplayVerdict, CompareVerdict, StackVerdict, ExitCode),
    ),
    "trial_files": (
        *(TrialSpec, MeasureRules, trial.Rendezvous, Outcome, trial.OutcomeStatus),
        *_typed(outcome_types),
        StartupPart,
        *(StepRecord, StepPhase, NodeSample),
    ),
    "journal": (Event, EventKind, Lease),
    "pilot_files": (
        *(pilot.PilotPlan, pilot.StepFileKind, pilot.StepRequest, pilot.StepStart, pilot.StepEnd),
        pilot.StepEndReason,
    ),
    "ledger": (SearchRow, TrialRow, AttemptRow, CommandRow, CommandKind),
    "recipe": (Recipe, Export, ExportStatus),
    "diagnostics": (
        *(Measurements, ProductRate, Product, GroupTime, PairTime, NodeProbeReport, RankProbe),
        *(FabricTimes, ExchangeTime, Exchange),
        *(Case, ExpectedResult, Results, CaseResult),
    ),
    "mlflow": (RunStatus,),
    "answers": (
        *_typed(searches, planning, comparison, cluster),
        *(RebuildResult, NotifyEvent, Fits, Scaling, ExportFormat, Area, Level),
    ),
    "service": (
        *(models.SubmitRequest, models.ResumeRequest, models.HealthAnswer, models.DriverAnswer, models.TrialsAnswer),
        *(models.TrialAnswer, models.AttemptAnswer, models.RecipeAnswer, models.AcceptedAnswer),
    ),
}

FOLDERS: Mapping[str, Folder] = {
    "search_folder": Folder(
        "Search folder",
        "`WORK_DIR/SEARCH_ID/`. Exports go there, too: `results.csv`, `trials.csv`, `trials.parquet`, `study.db`.",
        SearchFolder(Path("/runs/s")),
    ),
    "attempt_folder": Folder(
        "Attempt folder",
        "`SEARCH_ID/trials/t0001/a1/`. A trial writes here only. r is the restart, n the trial's node in rank order.",
        AttemptFolder(Path("/runs/s/trials/t0001/a1")),
        (
            ("`job.sh`, `setup.sh`", "Script of the job; content of `setup_file`."),
            ("`rank-00000.log`", "Output of a rank."),
            ("`metrics.r0.jsonl`", "A StepRecord a line."),
            ("`rank_times.r0.json`", "Median and p95 of the compute time of every rank, where ranks were compared."),
            ("`system.n0.r0.jsonl`", "A NodeSample a line, of the first 16 nodes."),
            ("`outcome.r0.json`", "An Outcome."),
        ),
    ),
    "pilot_folder": Folder(
        "Pilot folder",
        "`SEARCH_ID/pilots/p0001/`, of a search under slurm_pilot.",
        pilot.PilotFolder(Path("/runs/s/pilots/p0001")),
        (
            ("`job.sh`, `job.log`", "Script and log of the job."),
            ("`steps/t0001.a1.<StepFileKind>`", "Files of a step, each renamed into place."),
        ),
    ),
}

COLUMNS: Mapping[str, tuple[str, ...]] = {
    "required_columns": REQUIRED_COLUMNS,
    "optional_columns": OPTIONAL_COLUMNS,
    "tidy_columns": TIDY_COLUMNS,
}

SCHEMAS: Mapping[type, str] = {
    TrialSpec: SPEC_SCHEMA,
    Outcome: OUTCOME_SCHEMA,
    Event: EVENT_SCHEMA,
    Lease: LEASE_SCHEMA,
    Recipe: RECIPE_SCHEMA,
    pilot.PilotPlan: pilot.PILOT_SCHEMA,
    Measurements: MEASUREMENTS_SCHEMA,
    NodeProbeReport: NODE_PROBE_SCHEMA,
    FabricTimes: FABRIC_SCHEMA,
    Case: CASES_SCHEMA,
    Results: RESULTS_SCHEMA,
}
"""Schema ids of objects that have no field for it."""

MEANINGS: Mapping[type[Enum], Mapping[Any, str]] = {
    Flag: FLAG_DESCRIPTIONS,
    FailureReason: {reason: policy_of(reason).explanation for reason in FailureReason},
}
"""Descriptions of enum members that people see elsewhere, too."""
