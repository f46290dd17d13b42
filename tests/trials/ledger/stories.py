"""Searches told event by event, for tests: by hand with `Story`, or drawn by Hypothesis with `stories`."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

from hypothesis import strategies as st

from search_spaces.layouts.layout import Layout
from tests.kit import metrics
from trials.ledger.events import FABRIC_CHECK, EndReason, Event, EventKind, SearchRecord, SearchState
from trials.ledger.fold import apply_event
from trials.ledger.journal import Journal
from trials.trial import Attempt, FailureReason, Outcome, OutcomeStatus, Trial, TrialKind, TrialState

SEARCH_ID = "story-aaaaaa"
NOON = 1_780_000_000.0


class Story:
    """A search in progress: every method adds one event, a second after the last, and returns it."""

    def __init__(self, search_id: str = SEARCH_ID):
        self.search_id = search_id
        self.steps: list[tuple[Event, SearchRecord]] = []
        self.search: SearchRecord | None = None
        self.fencing = 1

    @property
    def events(self) -> list[Event]:
        return [event for event, _ in self.steps]

    @property
    def now(self) -> float:
        return NOON + len(self.steps)

    def add(self, kind: EventKind, /, **data) -> Event:
        event = Event(len(self.steps) + 1, self.fencing, self.now, kind, data)
        self.search = apply_event(self.search, self.search_id, event)
        self.steps.append((event, self.search))
        return event

    def create(self, **spec) -> Event:
        return self.add(EventKind.SEARCH_CREATED, spec=spec, code_hash="c0de")

    def propose(
        self,
        trial: str = "t0001",
        layout: Layout | None = None,
        prediction: dict | None = None,
        kind: str = "search",
    ) -> Event:
        values = {"layout": (layout or Layout()).to_json(), "kind": kind, "prediction": prediction}
        return self.add(EventKind.TRIAL_PROPOSED, trial=trial, **values)

    def submit(self, trial: str = "t0001", attempt: str = "a1", **changes) -> Event:
        values = {"nonce": "0" * 32, "num_nodes": 1, "time_limit_s": 60.5, "reserved_s": 90.0}
        values |= {"is_step": False, "exclude": ["n7"]}
        return self.add(EventKind.ATTEMPT_SUBMITTED, trial=trial, attempt=attempt, **values | changes)

    def launch(self, trial: str = "t0001", attempt: str = "a1", job_id: str | None = "4711") -> Event:
        return self.add(EventKind.ATTEMPT_LAUNCHED, trial=trial, attempt=attempt, job_id=job_id)

    def run(self, trial: str = "t0001", attempt: str = "a1", **changes) -> Event:
        values = {"started_at": self.now, "nodes": ["n1", "n2"]}
        return self.add(EventKind.ATTEMPT_RUNNING, trial=trial, attempt=attempt, **values | changes)

    def requeue(self, trial: str = "t0001", attempt: str = "a1", restart: int = 1, node_hours: float = 0.0) -> Event:
        values = {"restart": restart, "node_hours": node_hours}
        return self.add(EventKind.ATTEMPT_REQUEUED, trial=trial, attempt=attempt, **values)

    def wait(self, trial: str, attempt: str, waits_for: str | None) -> Event:
        return self.add(EventKind.ATTEMPT_WAITS, trial=trial, attempt=attempt, waits_for=waits_for)

    def lose_sight(self, trial: str, attempt: str, since: float | None) -> Event:
        return self.add(EventKind.ATTEMPT_UNKNOWN, trial=trial, attempt=attempt, unknown_since=since)

    def measure(self, trial: str = "t0001", attempt: str = "a1", tokens_per_sec: float = 1000.0) -> Event:
        measured = metrics(tokens_per_sec, 0.1, startup_parts_s={"import": 0.1})
        told = {"flags": ("time_limit",), "measured": measured, "step_times_s": (0.1, 0.2)}
        if trial == FABRIC_CHECK:
            told = {"fabric": {"nodes": ["n1"], "times": []}}
        outcome = Outcome(self.search_id, trial, attempt, "0" * 32, OutcomeStatus.MEASURED, **told)
        return self.end_attempt(trial, attempt, state="measured", reason=None, outcome=outcome.to_json())

    def fail(
        self, trial: str = "t0001", attempt: str = "a1", reason: FailureReason = FailureReason.JOB_LOST, excerpt=None
    ) -> Event:
        return self.end_attempt(trial, attempt, state="failed", reason=reason, excerpt=excerpt)

    def end_attempt(self, trial: str, attempt: str, **data) -> Event:
        unknown = {"outcome": None, "excerpt": None, "nodes": [], "leaves": [], "started_at": None}
        data = {**unknown, "ended_at": self.now, "node_hours": 1 / 3, "billed_hours": 4 / 3, **data}
        return self.add(EventKind.ATTEMPT_ENDED, trial=trial, attempt=attempt, **data)

    def end_trial(self, trial: str = "t0001") -> Event:
        last = self.search.trial(trial).last_attempt
        state, reason = (last.state, last.reason) if last else (TrialState.FAILED, FailureReason.INVALID_LAYOUT)
        return self.add(EventKind.TRIAL_ENDED, trial=trial, state=state, reason=reason)

    def best(self, trial: str | None) -> Event:
        return self.add(EventKind.BEST_CHANGED, trial=trial)

    def submit_pilot(self, pilot: str = "p0001", num_nodes: int = 2, reserved_s: float = 900.0) -> Event:
        return self.add(EventKind.PILOT_SUBMITTED, pilot=pilot, num_nodes=num_nodes, reserved_s=reserved_s)

    def end_pilot(self, pilot: str, node_hours: float) -> Event:
        return self.add(
            EventKind.PILOT_ENDED, pilot=pilot, job_id="4711", node_hours=node_hours, billed_hours=16 * node_hours
        )

    def propose_check(self) -> Event:
        return self.propose(FABRIC_CHECK, Layout(num_nodes=2, data_parallel=8), kind=TrialKind.CHECK)

    def conclude_check(self, links: dict | None = None) -> Event:
        found = {"slow_nodes": ["n2"], "num_available": 3, "findings": ["n2 is slow"], "links": links}
        return self.add(EventKind.FABRIC_CHECK, **found)

    def take_over(self) -> Event:
        return self.add(EventKind.DRIVER_TOOK_OVER, host="login2", pid=4711)

    def set_state(self, state: SearchState, reason: EndReason | None = None, detail: str | None = None) -> Event:
        return self.add(EventKind.SEARCH_STATE, state=state, end_reason=reason, detail=detail)


def measured_story(search_id: str = SEARCH_ID, **spec) -> Story:
    """A search of one trial, measured at the second attempt, and completed: every kind of event but six."""
    story = Story(search_id)
    story.create(**spec)
    story.set_state(SearchState.RUNNING)
    story.propose(prediction={"step_time_s": 0.25})
    for attempt in ("a1", "a2"):
        story.submit(attempt=attempt)
        story.launch(attempt=attempt)
        if attempt == "a1":
            story.fail(excerpt="the node went away")
    story.run(attempt="a2")
    story.measure(attempt="a2")
    story.end_trial()
    story.best("t0001")
    story.set_state(SearchState.COMPLETED, EndReason.MAX_TRIALS)
    return story


def written(path: Path, events: list[Event]) -> Journal:
    """The journal at this path after these events, which are appended to it."""
    journal = Journal(path)
    for event in events:
        journal.append(event)
    return journal


def with_a_value(journal: str, kind: str, path: str, value: str) -> str:
    """The journal with a value of the first event of this kind replaced by this JSON, with a correct checksum."""
    lines = journal.splitlines()
    place = next(n for n, line in enumerate(lines) if f'"kind":"{kind}"' in line)
    *way, last = path.split(".")
    event = json.loads(lines[place])
    del event["crc32"]
    inner = event
    for name in way:
        inner = inner[name]
    inner[last] = "HERE"
    line = json.dumps(event, separators=(",", ":"))[:-1].replace('"HERE"', value)
    lines[place] = f'{line},"crc32":"{zlib.crc32(line.encode()):08x}"}}'
    return "\n".join(lines) + "\n"


@st.composite
def stories(draw, search_id: str = SEARCH_ID) -> Story:
    """Any valid search of up to thirty events, and as many changes of driver."""
    story = Story(search_id)
    story.create(**draw(st.dictionaries(st.text(max_size=4), _JSON, max_size=3)))
    for _ in range(draw(st.integers(0, 30))):
        draw(st.sampled_from(_continuations(story, draw)))()
        if draw(st.sampled_from((False, False, False, True))):
            story.fencing += 1
            story.take_over()
    return story


_TEXT = st.text(max_size=8) | st.sampled_from(("\x00", "\ud800", "'; DROP TABLE search; --", "überläuft\n\ttäglich"))
_JSON = (
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats(allow_nan=False, allow_infinity=False) | _TEXT
)


_SECONDS = st.floats(0.0, 1e6)


def _continuations(story: Story, draw) -> list[Callable[[], Event]]:
    """The events that may legally follow."""
    number = len(story.search.trials) + 1
    layout = Layout(micro_batch_size=number, pipeline_parallel=2, pipeline_schedule="gpipe")
    state, reason = draw(st.sampled_from(SearchState)), draw(st.none() | st.sampled_from(EndReason))
    nexts: list[Callable[[], Event]] = [
        lambda: story.set_state(state, reason, draw(st.none() | _TEXT)),
        # Not in the order of their names: the ledger has to keep the order they were proposed in.
        lambda: story.propose(f"t{9999 - number:04d}", layout, draw(st.none() | st.just({"step_time_s": 0.1}))),
        lambda: story.best(draw(st.sampled_from([None, *(t.trial for t in story.search.trials if t.measured)]))),
        lambda: story.submit_pilot(f"p{1 + len(story.search.pilots):04d}", draw(st.integers(1, 9)), draw(_SECONDS)),
    ]
    nexts += [partial(story.end_pilot, name, draw(_SECONDS)) for name in story.search.open_pilots]
    check = story.search.fabric_check
    if check is None:
        nexts.append(story.propose_check)
    elif check.trial.state is TrialState.MEASURED and check.findings is None:
        nexts.append(lambda: story.conclude_check(draw(st.none() | st.just({"domains": [], "fabric": None}))))
    for trial in (*story.search.trials, *(() if check is None else (check.trial,))):
        if not trial.state.is_ended:
            nexts += _continuations_of_trial(story, draw, trial)
    return nexts


def _continuations_of_trial(story: Story, draw, trial: Trial) -> list[Callable[[], Event]]:
    last = trial.last_attempt
    if last is not None and not last.state.is_ended:
        return _continuations_of_attempt(story, draw, last)
    name = f"a{len(trial.attempts) + 1}"
    nexts = [lambda: story.end_trial(trial.trial)]
    return nexts if last and last.state is TrialState.MEASURED else [*nexts, lambda: story.submit(trial.trial, name)]


def _continuations_of_attempt(story: Story, draw, attempt: Attempt) -> list[Callable[[], Event]]:
    name = (attempt.trial, attempt.attempt)
    nexts: list[Callable[[], Event]] = [
        lambda: story.run(*name),
        lambda: story.wait(*name, draw(st.none() | _TEXT)),
        lambda: story.lose_sight(*name, draw(st.none() | st.floats(0, 2e9))),
        lambda: story.measure(*name, tokens_per_sec=draw(st.floats(1, 1e9))),
        lambda: story.fail(*name, reason=draw(st.sampled_from(FailureReason)), excerpt=draw(st.none() | _TEXT)),
    ]
    if attempt.state is not TrialState.SUBMITTED:
        node_hours = attempt.earlier_node_hours + draw(st.floats(0, 1e3))
        nexts.append(lambda: story.requeue(*name, restart=attempt.restart + 1, node_hours=node_hours))
    if attempt.state is not TrialState.RUNNING:
        nexts.append(lambda: story.launch(*name, job_id=draw(st.none() | st.just("4711"))))
    return nexts
