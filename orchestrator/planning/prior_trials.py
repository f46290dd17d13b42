"""Warm start: trials of earlier searches on the same kind of machine, collected once and saved with the search."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from itertools import islice, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.config.schema.search_file import FROM_LEDGER, FROM_NOTHING
from orchestrator.config.spec import SearchSpec
from orchestrator.launchers.timeouts import result_with_timeout, submit_to_thread
from orchestrator.records.observations import INVALID, observed_trials
from orchestrator.search.samplers.cost_model_posterior import peak_memory_gib, step_terms
from search_spaces.cost_model.constants import typical_constants
from search_spaces.engines import is_emulated
from search_spaces.errors import ExternalError
from search_spaces.tables.measured_table import Observation, parse_table, read_table, render_table
from trials.files.folders import SearchFolder, write_text
from trials.files.text import plural
from trials.ledger.events import SearchRecord, replayed_table
from trials.ranks.software import cpu_name, gpu_name
from trials.trial import Trial

if TYPE_CHECKING:
    from trials.ledger.reader import LedgerReader

MAX_PRIOR_TRIALS = 60
"""Upper limit: more hardly improve the few constants, and each takes time."""
PLAN_TIMEOUT_S = 3.0
"""Seconds that a plan waits for a ledger."""
_MAX_LISTED, _MAX_SEARCHES = 200, 20
"""Newest searches of the ledger that are listed, and comparable ones that are read."""
_MAX_NAMED = 8
_SEARCH_ID, _TRIAL = "[a-z0-9][a-z0-9-]{0,60}", "t[0-9]{1,9}"
_GOLDEN_RATIO = 0.618033988749895
_MAX_STAGE_LAYERS = 10**6
"""Upper limit of layers times pipeline chunks: beyond, splitting them takes seconds."""
_MAX_VALUE = 1e12
"""Upper limit of plausible seconds and GiB."""
_UNREADABLE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""Errors raised by damaged or foreign rows, InputError included."""


@dataclass(frozen=True)
class PriorTrials:
    """Trials that ran or ran out of memory, up to MAX_PRIOR_TRIALS; `remarks` name what could not be used."""

    observations: tuple[Observation, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def summary(self) -> str | None:
        """Number of trials and the names of their searches, or of a table's sources; None without trials."""
        searches = _distinct(row.search_id for row in self.observations)
        names = searches or _distinct(row.source for row in self.observations)
        if not names:
            return None
        of_searches = "1 earlier search" if len(searches) == 1 else f"{len(searches)} earlier searches"
        more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
        whose = of_searches if searches else "a table"
        return f"{plural(len(self.observations), 'trial')} of {whose}: {', '.join(names[:_MAX_NAMED])}{more}"

    @property
    def messages(self) -> tuple[str, ...]:
        """Messages for the user at the start of the search."""
        loaded = () if self.summary is None else (f"warm start: {self.summary}",)
        return (*loaded, *self.remarks)


NO_PRIOR_TRIALS = PriorTrials()


def collect_prior_trials(spec: SearchSpec, ledger_url: str) -> PriorTrials:
    """Collect what `search.warm_start` asks for; InputError for an unreadable table.

    Problems of a ledger become remarks. A search simulated from a table learns nothing from the ledger, which may hold
    the answers.
    """
    if (table := spec.search.warm_start_table) is not None:
        return _of_table(spec, table)
    if spec.search.warm_start == FROM_NOTHING or spec.launcher.kind == "simulated":
        return NO_PRIOR_TRIALS
    from sqlalchemy.exc import SQLAlchemyError

    try:
        return _of_ledger(spec, ledger_url)
    except (ExternalError, SQLAlchemyError, *_UNREADABLE) as error:
        return _unavailable(error)


def collect_prior_trials_for_plan(spec: SearchSpec) -> PriorTrials:
    """Collect for a plan: nothing is created, and the ledger gets PLAN_TIMEOUT_S."""
    from trials.ledger.location import existing_ledger_url

    if spec.search.warm_start != FROM_LEDGER or spec.launcher.kind == "simulated":
        return collect_prior_trials(spec, "")
    try:
        url = existing_ledger_url(spec.ledger.url)
        if url is None:
            return NO_PRIOR_TRIALS
        return result_with_timeout(
            submit_to_thread(lambda: collect_prior_trials(spec, url), "earlier trials"), PLAN_TIMEOUT_S, "the ledger: "
        )
    except (OSError, *_UNREADABLE) as error:
        return _unavailable(error)


def save_prior_trials(folder: SearchFolder, prior_trials: PriorTrials) -> None:
    """Save what a new search learns from, so that a later driver learns the same."""
    if prior_trials.observations:
        write_text(folder.warm_start, render_table(prior_trials.observations, [f"warm start: {prior_trials.summary}"]))


def load_prior_trials(folder: SearchFolder) -> tuple[Observation, ...]:
    """Load what the search learns from, () without a file; InputError for a damaged file."""
    return read_table(folder.warm_start) if folder.warm_start.exists() else ()


def _unavailable(error: Exception) -> PriorTrials:
    return PriorTrials(remarks=(f"no warm start from the ledger: {str(error).splitlines()[0]}",))


def _of_table(spec: SearchSpec, table: Path) -> PriorTrials:
    from search_spaces.tables.benchmark_problem import measured_on

    rows = measured_on(read_table(table), spec.cluster)
    chosen, useless = _select(_spread_evenly(rows))
    emulated = sum(map(_is_emulated, rows))
    left_out = {
        f"{plural(useless, 'invalid row')} of {table.name}": useless,
        f"{plural(emulated, 'row')} of {table.name} that a CPU's emulation of a GPU measured": emulated,
    }
    return PriorTrials(chosen, tuple(f"warm start without {words}" for words, count in left_out.items() if count))


def _spread_evenly(rows: Sequence[Observation]) -> list[Observation]:
    """Reorder rows so that every prefix is spread evenly over the table: in a sorted one, neighbours are alike."""
    return [rows[index] for index in sorted(range(len(rows)), key=lambda index: index * _GOLDEN_RATIO % 1)]


def _of_ledger(spec: SearchSpec, ledger_url: str) -> PriorTrials:
    from trials.ledger.reader import LedgerReader

    with closing(LedgerReader(ledger_url)) as reader:
        seen = list(islice(_trials_by_search(spec, reader), _MAX_SEARCHES))
    rows = [(row, device) for one in seen for row, device in one.rows]
    ours = _device_here(spec) or next((device for _, device in rows if device is not None), None)
    chosen, useless = _select(row for row, device in rows if device is None or ours is None or device == ours)
    damaged = sum(one.damaged for one in seen) + useless
    remark = f"warm start without {plural(damaged, 'damaged record')} of the ledger"
    return PriorTrials(chosen, (remark,) if damaged else ())


@dataclass(frozen=True)
class _SearchTrials:
    """Rows of one search, newest first, each with its device if known, and the number of damaged trials."""

    rows: tuple[tuple[Observation, str | None], ...] = ()
    damaged: int = 0


def _trials_by_search(spec: SearchSpec, reader: LedgerReader) -> Iterator[_SearchTrials]:
    """Trials of every comparable search, newest first."""
    from trials.ledger.database import LedgerDamaged

    for search_id, data in reader.newest(_MAX_LISTED):
        try:
            if _is_comparable(data, spec):
                record, damaged = reader.readable(search_id)
                found = _trials_of(record, SearchSpec.from_json(data))
                yield replace(found, damaged=found.damaged + damaged)
        except (LedgerDamaged, *_UNREADABLE):
            yield _SearchTrials(damaged=1)


def _is_comparable(data: Mapping[str, Any], spec: SearchSpec) -> bool:
    """True if the trials of this spec.json apply to our machine: same accelerator, node size, trainer, memory limit of
    a rank and routing of experts, if any; and really run, not simulated from a table."""
    cluster, measure = data["cluster"], data["measure"]
    theirs = (cluster["accelerator"]["name"], cluster["gpus_per_node"], data["trainer"]["kind"])
    ours = (spec.cluster.accelerator.name, spec.cluster.gpus_per_node, spec.trainer.kind)
    is_limited_alike = measure["memory_limit_gib"] == spec.measure.memory_limit_gib
    is_routed_alike = measure.get("routing") in (None, spec.measure.routing)
    return theirs == ours and is_limited_alike and is_routed_alike and replayed_table(data["launcher"]) is None


def _trials_of(search: SearchRecord, spec: SearchSpec) -> _SearchTrials:
    observed = observed_trials(search, spec)
    devices = {trial.trial: device for trial in search.trials if (device := _device_of(trial)) is not None}
    usual = next(iter(devices.values()), None)
    messages = [row for row in reversed(observed.rows) if row.outcome in ("ok", "oom")]
    valid = [row for row in messages if _is_valid(row)]
    rows = tuple((row, devices.get(row.trial or "", usual)) for row in valid)
    return _SearchTrials(rows, observed.left_out.get(INVALID, 0) + len(messages) - len(valid))


def _device_of(trial: Trial) -> str | None:
    """Device name in the trial's outcome."""
    outcome = trial.last_attempt.outcome if trial.last_attempt else None
    return None if outcome is None else outcome.fingerprint.get("device")


def _device_here(spec: SearchSpec) -> str | None:
    """Device of this search's ranks if they run on this machine; None if unknown."""
    if not spec.launcher.ranks_run_here:
        return None
    with suppress(OSError):
        return cpu_name() if spec.cluster.accelerator.name == "cpu" else gpu_name(0)
    return None


def _is_valid(row: Observation) -> bool:
    """True if a search of ours may have tried the row's layout."""
    layout, model = row.layout, row.model
    is_named = re.fullmatch(_SEARCH_ID, row.search_id or "") and re.fullmatch(_TRIAL, row.trial or "")
    chunks = layout.pipeline_parallel * layout.virtual_pipeline_stages
    return bool(is_named) and chunks <= model.num_layers and layout.tensor_parallel <= model.num_attention_heads


def _select(rows: Iterable[Observation]) -> tuple[tuple[Observation, ...], int]:
    """Up to MAX_PRIOR_TRIALS rows that ran or ran out of memory, and the number of unusable rows skipped.

    Rows of an emulated device teach only the search that measured them: their times are the emulation's.
    Every problem contributes equally, its first rows first; each layout is taken once.
    """
    problems: dict[Any, dict[str, Observation]] = {}
    for row in rows:
        if row.outcome in ("ok", "oom") and not _is_emulated(row):
            problem = problems.setdefault((row.model, row.cluster, row.global_batch_size), {})
            problem.setdefault(row.layout.key, row)
    rounds = zip_longest(*(problem.values() for problem in problems.values()))
    candidates = (row for each in rounds for row in each if row is not None)
    chosen: list[Observation] = []
    useless = 0
    while more := list(islice(candidates, MAX_PRIOR_TRIALS - len(chosen))):
        usable = _as_saved(more)
        chosen += usable
        useless += len(more) - len(usable)
    return tuple(chosen), useless


def _is_emulated(row: Observation) -> bool:
    return is_emulated(row.layout.engine, row.cluster.accelerator.name)


def _as_saved(rows: Sequence[Observation]) -> list[Observation]:
    """The rows as a resumed search reads them back, a peak of 0 as unknown, without those that a table or the cost
    model cannot take."""
    small = [row for row in rows if _num_stage_layers(row) <= _MAX_STAGE_LAYERS]
    try:
        text = render_table([replace(row, peak_memory_gib=row.peak_memory_gib or None) for row in small])
        known = parse_table(text, "warm_start.csv")
        seconds, gib = (
            step_terms(known, [row.cluster for row in known]).seconds(typical_constants()),
            peak_memory_gib(known),
        )
        is_plausible = (seconds > 0) & (seconds < _MAX_VALUE) & (gib > 0) & (gib < _MAX_VALUE)
        return [row for row, is_fine in zip(known, is_plausible, strict=True) if is_fine]
    except _UNREADABLE:
        if len(small) < 2:
            return []
    half = len(small) // 2
    return [*_as_saved(small[:half]), *_as_saved(small[half:])]


def _num_stage_layers(row: Observation) -> int:
    return row.model.num_layers * row.layout.pipeline_parallel * row.layout.virtual_pipeline_stages


def _distinct(names: Iterable[str | None]) -> list[str]:
    return list(dict.fromkeys(name for name in names if name is not None))
