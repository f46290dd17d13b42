"""Searches built from events, for the tests of the dashboards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from search_spaces.layouts.layout import Layout
from tests.kit import metrics
from tests.trials.ledger.stories import Story
from trials.files.folders import SearchFolder, json_line
from trials.ledger.events import EndReason, Event, EventKind, SearchRecord, SearchState
from trials.measurement.node_metrics import NodeSample
from trials.measurement.step_log import MetricsWriter, StepPhase, StepRecord
from trials.trial import FailureReason, Outcome, OutcomeStatus, utc_text

SEARCH_ID = "tiny-abcdef"
START = 1_700_000_000.0


class SearchUnderTest(Story):
    """A search told event by event, ten seconds apart; `records` are what it was after each of its `events`.
    `billed_hours` are those of the attempts that end from now on."""

    def __init__(self, spec: dict[str, Any] | None = None):
        super().__init__(SEARCH_ID)
        self.billed_hours: float | None = None
        self.records: list[SearchRecord] = []
        self.create(**(spec or {"name": "tiny", "search": {"seed": 1}}))
        self.set_state(SearchState.RUNNING)

    @property
    def now(self) -> float:
        return START + 10 * (len(self.events) + 1)

    @property
    def record(self) -> SearchRecord:
        return self.records[-1]

    def add(self, kind: EventKind, /, **data: Any) -> Event:
        event = super().add(kind, **data)
        assert self.search is not None
        self.records.append(self.search)
        return event

    event = add

    def start(self, layout: Layout, kind: str = "search", prediction: dict[str, Any] | None = None) -> str:
        """Propose and start the next trial; its name."""
        trial = f"t{len(self.record.trials) + 1:04d}"
        self.propose(trial, layout, prediction, kind)
        self._start_attempt(trial, "a1")
        return trial

    def _start_attempt(self, trial: str, attempt: str) -> None:
        self.submit(trial, attempt)
        self.launch(trial, attempt, f"job-{trial}-{attempt}")
        self.run(trial, attempt, started_at=self.now - 10, nodes=["node1", "node2"])

    def submit(self, trial: str = "t0001", attempt: str = "a1", **changes: Any) -> Event:
        return super().submit(trial, attempt, **{"time_limit_s": 600.0, "reserved_s": None, "exclude": []} | changes)

    def measure(  # type: ignore[override]
        self, trial: str, tokens_per_sec: float, flags: tuple[str, ...] = (), slowest_rank: Any = None, **fields: Any
    ) -> None:
        """End the trial with this speed, to within 2 %; `fields` are other names of outcome.measured."""
        ends = {"tokens_per_sec_low": tokens_per_sec * 0.98, "tokens_per_sec_high": tokens_per_sec * 1.02}
        known = {**ends, "peak_memory_gib": 1.5, "startup_parts_s": {"import": 1.25}}
        measured = metrics(**{"tokens_per_sec": tokens_per_sec, "step_time_s": 1000 / tokens_per_sec} | known | fields)
        names = (SEARCH_ID, trial, self._attempt(trial), "0" * 32)
        told = {"flags": flags, "measured": measured, "slowest_rank": slowest_rank}
        outcome = Outcome(*names, OutcomeStatus.MEASURED, **told)
        self._end_attempt(trial, "measured", None, outcome.to_json(), None)
        self.end_trial(trial)

    def prune(self, trial: str, tokens_per_sec: float) -> None:
        """End the trial as one that stopped itself when it had seen this speed, to within 2 %."""
        measured = metrics(tokens_per_sec, 1000 / tokens_per_sec, tokens_per_sec_high=tokens_per_sec * 1.02)
        said = f"{tokens_per_sec:,.0f} tokens/s"
        self.fail(trial, FailureReason.PRUNED, said, outcome={"measured": measured})

    def fail(  # type: ignore[override]
        self,
        trial: str,
        reason: FailureReason,
        excerpt: str = "it broke",
        again: bool = False,
        outcome: dict[str, Any] | None = None,
    ) -> None:
        """End the trial's attempt with this reason; `again` starts its next attempt instead of ending the trial.

        `outcome` are fields of the outcome that a rank wrote; None: none did.
        """
        state = "cancelled" if reason.value.startswith("cancelled") else "failed"
        attempt = self._attempt(trial)
        told = None
        if outcome is not None:
            names = (SEARCH_ID, trial, attempt, "0" * 32)
            told = Outcome(*names, OutcomeStatus.FAILED, reason=reason, excerpt=excerpt, **outcome).to_json()
        self._end_attempt(trial, state, reason, told, excerpt)
        if again:
            self._start_attempt(trial, f"a{int(attempt[1:]) + 1}")
        else:
            self.end_trial(trial)

    def end(self, state: str = "completed", end_reason: str = "max_trials", detail: str | None = None) -> None:
        self.set_state(SearchState(state), EndReason(end_reason), detail)

    def _attempt(self, trial: str) -> str:
        return self.record.trial(trial).last_attempt.attempt

    def _end_attempt(self, trial: str, state: str, reason: str | None, outcome: Any, excerpt: str | None) -> None:
        told = {"state": state, "reason": reason, "outcome": outcome, "excerpt": excerpt}
        cost = {"ended_at": self.now - 1, "node_hours": 0.25, "billed_hours": self.billed_hours}
        self.end_attempt(trial, self._attempt(trial), **told, **cost)


def ended_search() -> SearchUnderTest:
    """One trial measured at once, one after a lost node, one out of memory, one pruned; and it is over."""
    search = SearchUnderTest()
    first, second, third, fourth = (search.start(Layout(micro_batch_size=size)) for size in (1, 2, 4, 8))
    search.measure(first, 1000.0)
    search.fail(second, FailureReason.NODE_FAILURE, again=True)
    search.fail(third, FailureReason.GPU_OOM, excerpt="Traceback\ntorch.OutOfMemoryError")
    search.measure(second, 1600.0)
    search.fail(fourth, FailureReason.PRUNED)
    search.best(second)
    search.end()
    return search


def search_folder(root: Path, record: SearchRecord, num_steps: int = 3) -> SearchFolder:
    """The folder such a search leaves: its file, and for every attempt a spec, a log, steps and a node's samples."""
    folder = SearchFolder(root / SEARCH_ID)
    folder.path.mkdir(parents=True)
    folder.yaml.write_text("name: tiny\n")
    used = [{"cpu_utilization_percentage": 10.0 * (number % 10)} for number in range(num_steps)]
    samples = [json_line(NodeSample(START + 100 + 5 * n, values)) for n, values in enumerate(used)]
    for trial in record.trials:
        for attempt in trial.attempts:
            place = folder.attempt(trial.trial, attempt.attempt)
            place.path.mkdir(parents=True)
            place.spec.write_text(json.dumps({"attempt": attempt.attempt}))
            place.rank_log(0).write_text(f"log of {trial.trial}.{attempt.attempt}\n")
            place.system(0).write_bytes(b"".join(samples))
            writer = MetricsWriter(place.metrics())
            for step in range(1, num_steps + 1):
                writer.write(measured_step(step))
            writer.close()
    return folder


def measured_step(step: int) -> StepRecord:
    return StepRecord(step, StepPhase.MEASURED, utc_text(START + 100 + step), 0.5, 0.4, 7.0 - step, 1.0, 64)
