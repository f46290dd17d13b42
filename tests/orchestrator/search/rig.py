"""A search on a simulated clock whose attempts follow scripts and whose driver can be killed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.samplers.base import Sampler
from orchestrator.samplers.failing_settings import FailingSettingsSampler
from orchestrator.samplers.model_free import GridSampler
from orchestrator.samplers.paired import PairedSampler
from orchestrator.search.attempt_factory import AttemptFactory
from orchestrator.search.context import DriverCallbacks, SearchObjective
from orchestrator.search.driver import Driver
from orchestrator.search.event_store import EventStore
from orchestrator.search.fabric_check import FabricProgram
from orchestrator.search.own_job import OwnJob
from orchestrator.search.stopping import Limits
from search_spaces.hardware.cluster import ACCELERATORS, Cluster
from search_spaces.hardware.memory_headroom import MemoryHeadroom
from search_spaces.layouts.layout import Layout
from search_spaces.model_shape import ModelShape
from tests.orchestrator.scripted import Script, ScriptedLauncher
from trials.analysis.ranking import Objective
from trials.files.folders import SearchFolder
from trials.ledger.events import Event, EventKind
from trials.ledger.journal import Journal
from trials.ledger.writer import LedgerWriter
from trials.measure_rules import MeasureRules
from trials.trial import TrialSpec

MODEL = ModelShape(4, 64, 4, 4, 256, False, 256, 64, False, "learned", "layernorm")
RULES = MeasureRules(min_steps=5, time_limit_s=570.0)


LAYOUTS = tuple(
    Layout(tensor_parallel=tp, data_parallel=4 // tp, micro_batch_size=mb, grad_accum_steps=16 * tp // (4 * mb))
    for tp in (1, 2, 4)
    for mb in (1, 2, 4)
)


def speed_by_layout(spec: TrialSpec) -> Script:
    """Throughput of a layout; each of LAYOUTS is faster than the one before."""
    return Script(tokens_per_sec=1000.0 + 100 * LAYOUTS.index(spec.layout))


class Killed(BaseException):
    """Stands for a kill of the driver's process at this instruction."""


def raise_killed(now: bool) -> None:
    if now:
        raise Killed


def kill_after(killing: Event) -> DriverCallbacks:
    """Kill the driver right after this event."""
    return DriverCallbacks(on_event=lambda search, event: raise_killed(event.seq == killing.seq))


def every_event(events: list[Event]) -> list[Event]:
    return events


def the_last_of_each_kind(events: list[Event]) -> list[Event]:
    return list({event.kind: event for event in events}.values())


@dataclass
class Rig:
    """A search of nine layouts for one node of four ranks. `open_driver` can be called again, as after a crash."""

    path: Path
    launcher: ScriptedLauncher = field(default_factory=ScriptedLauncher)
    limits: Limits = field(default_factory=lambda: Limits(max_trials=9, parallel_trials=2))
    layouts: tuple[Layout, ...] = LAYOUTS
    first: tuple[Layout, ...] = ()
    callbacks: DriverCallbacks = field(default_factory=DriverCallbacks)
    num_nodes: int = 1
    fencing: int = 0
    headroom: MemoryHeadroom | None = None
    others: tuple[Objective, ...] = ()
    own_job: OwnJob | None = None
    fabric_check: FabricProgram | None = None
    software: Mapping[str, str] = field(default_factory=dict)
    """The other software of an experiment with `limits.max_trials` / 2 layouts."""

    def open_driver(self) -> Driver:
        folder = SearchFolder(self.path / "runs" / "rig-aaaaaa")
        folder.path.mkdir(parents=True, exist_ok=True)
        self.fencing += 1
        ledger = LedgerWriter(f"sqlite:///{self.path / 'ledger.db'}")
        history = EventStore(folder.search_id, Journal(folder.journal), ledger, self.fencing, self.launcher.now)
        if history.is_empty:
            spec = {"name": "rig", "folder": str(folder.path)}
            history.record(EventKind.SEARCH_CREATED, spec=spec, code_hash="0" * 64)
        cluster = Cluster(ACCELERATORS["cpu"], 4, self.num_nodes)
        baseline = self.first[0] if self.first else None
        program = AttemptFactory(folder, MODEL, cluster, RULES, "python3", baseline=baseline)
        goal = SearchObjective(Objective.TOKENS_PER_SEC, 16, self.first, self.headroom, self.others)
        sampler: Sampler = FailingSettingsSampler(self.layouts, GridSampler)
        if self.software:
            sampler = PairedSampler(sampler, self.software, self.limits.max_trials // 2)
        limits, callbacks = self.limits, self.callbacks
        parts = history, program, sampler, self.launcher, goal, limits, callbacks, self.own_job
        return Driver(*parts, fabric_check=self.fabric_check)
