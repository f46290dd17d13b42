"""Export of a search as an Optuna study in SQLite, for optuna-dashboard. The only file that imports optuna."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from dashboards.columns import objective_of
from orchestrator.config.spec import SearchSpec
from orchestrator.records.formats.trial_table import TIMES, ExportResult, ended_rows
from search_spaces.layouts.layout import LAYOUT_FIELDS
from trials.analysis.ranking import Objective
from trials.analysis.verdict import has_stopped_early
from trials.ledger.events import SearchRecord
from trials.trial import Trial, TrialState

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial


def optuna_study(search: SearchRecord, spec: SearchSpec) -> ExportResult:
    """A database with a study of the search's finished trials, named by the search's id.

    Parameters are the layout fields that differ between trials or have several values in the space: integers as such,
    everything else as categories. Other fields and columns are user attributes. Pruned trials are PRUNED, other
    failures FAIL.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    ended, left_out = ended_rows(search)
    objectives, axes = spec.objectives, spec.space.given_axes() if spec.candidates is None else {}
    distributions = _distributions([trial for trial, _ in ended], axes)
    storage = optuna.storages.RDBStorage("sqlite:///:memory:")
    study = optuna.create_study(
        storage=storage, study_name=search.search_id, directions=[_direction(each) for each in objectives]
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        study.set_metric_names([objective.value for objective in objectives])
    study.set_user_attr("parlay.search_id", search.search_id)
    study.set_user_attr("parlay.state", str(search.state))
    for trial, row in ended:
        study.add_trial(_frozen_trial(search, trial, row, objectives, distributions))
    connection: Any = storage.engine.raw_connection().driver_connection
    content = connection.serialize()
    storage.remove_session()
    storage.engine.dispose()
    return ExportResult(content, len(ended), left_out)


def _direction(objective: Objective) -> Literal["minimize", "maximize"]:
    return "minimize" if objective.is_minimised else "maximize"


def _distributions(ended: Sequence[Trial], axes: Mapping[str, Sequence[Any]]) -> dict[str, BaseDistribution]:
    """Distribution of each parameter over its searched and tried values."""
    found = {}
    for name in LAYOUT_FIELDS:
        values = list(dict.fromkeys([*axes.get(name, ()), *(getattr(trial.layout, name) for trial in ended)]))
        if len(values) > 1:
            found[name] = _distribution(values)
    return found


def _distribution(values: list[Any]) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, IntDistribution

    if all(type(value) is int for value in values):
        # Degrees and batches are searched in powers of two, which a logarithmic scale spaces evenly.
        return IntDistribution(min(values), max(values), log=min(values) >= 1)
    return CategoricalDistribution(values)


def _frozen_trial(
    search: SearchRecord,
    trial: Trial,
    row: Mapping[str, Any],
    objectives: Sequence[Objective],
    distributions: Mapping[str, BaseDistribution],
) -> FrozenTrial:
    from optuna.trial import FrozenTrial

    began, ended = _times(search, trial)
    values = [value for objective in objectives if (value := objective_of(trial, objective)) is not None]
    known = {name: value for name, value in row.items() if value is not None}
    return FrozenTrial(
        number=-1,
        trial_id=-1,
        state=_state(trial),
        value=None,
        values=values or None,
        datetime_start=began,
        datetime_complete=ended,
        params={name: getattr(trial.layout, name) for name in distributions},
        distributions=dict(distributions),
        user_attrs={name: value for name, value in known.items() if name not in (*distributions, *TIMES)},
        system_attrs={},
        intermediate_values={},
    )


def _state(trial: Trial) -> Any:
    from optuna.trial import TrialState as Theirs

    if trial.state is TrialState.MEASURED:
        return Theirs.COMPLETE
    return Theirs.PRUNED if has_stopped_early(trial) else Theirs.FAIL


def _times(search: SearchRecord, trial: Trial) -> tuple[datetime, datetime]:
    """Begin and end, in naive local time as in Optuna."""
    last = trial.last_attempt
    began = (last.started_at or last.submitted_at if last else None) or trial.proposed_at or search.created_at
    ended = (last.ended_at if last else None) or began
    return datetime.fromtimestamp(began), datetime.fromtimestamp(max(began, ended))
