"""What a search's end writes: its recipe, measured.csv, and the commands that are settled."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

from orchestrator.config.spec import SearchSpec
from orchestrator.diagnostics.preflight.trainer import python_of
from orchestrator.lifecycle.lock import SearchLock
from orchestrator.recipe.build import RecipeSource
from orchestrator.recipe.write import write_recipe
from orchestrator.records.observations import write_measured_table
from orchestrator.search.attempt_factory import AttemptFactory
from trials.analysis.verdict import baseline_of
from trials.files.folders import SearchFolder
from trials.ledger.events import SearchRecord
from trials.ledger.reader import LedgerReader


def write_missing(lock: SearchLock, spec: SearchSpec, search: SearchRecord) -> None:
    """Settle commands and write recipe and measured.csv of an ended search, which a killed driver may have left out."""
    settle_commands(lock, search)
    if not lock.folder.recipe.exists():
        write_best_recipe(lock.folder, spec, search)
    write_measured_table(lock.folder, spec, search)  # replaces an export from while it ran


def settle_commands(lock: SearchLock, search: SearchRecord) -> None:
    """Mark the commands to an ended search as settled: they are done, or came too late."""
    with closing(LedgerReader(lock.ledger_url)) as reader:
        pending = reader.pending_commands(search.search_id)
    if pending:
        lock.ledger.settle_commands(search.search_id, pending[-1].id, time.time())


def write_best_recipe(folder: SearchFolder, spec: SearchSpec, search: SearchRecord) -> Path | None:
    """Write the recipe of the best layout so far and return its path; None where nothing was measured."""
    ranking = spec.ranking_of(search.trials)
    best = ranking.best
    if best is None or best.first.last_attempt is None:
        return None
    baseline = baseline_of(search, ranking, spec.baseline_key)
    trial_spec = attempt_factory_of(folder, spec).spec(best.first, best.first.last_attempt)
    return write_recipe(folder.recipe, RecipeSource(search, best, trial_spec, ranking, baseline), folder.code)


def attempt_factory_of(folder: SearchFolder, spec: SearchSpec) -> AttemptFactory:
    """Create the factory of the search's attempts."""
    return AttemptFactory(
        folder,
        spec.model,
        spec.cluster,
        spec.measure,
        python_of(spec),
        trainer=spec.trainer.for_trials(),
        seed=spec.search.seed,
        baseline=spec.baseline,
    )
