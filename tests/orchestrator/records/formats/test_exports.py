"""Exports of a search, read by the programs that they are for."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import replace

import pytest

from orchestrator.config.spec import SearchSpec
from orchestrator.records.formats.deephyper import deephyper_results
from orchestrator.records.formats.registry import export_search, written_format
from orchestrator.records.formats.trial_table import COLUMNS, csv_text, parquet_bytes, trial_rows
from search_spaces.layouts.layout import LAYOUT_FIELDS
from tests.orchestrator.past_searches import failed, layouts, measured, past, pruned, spec_in
from trials.analysis.ranking import Objective
from trials.ledger.events import SearchRecord
from trials.trial import FailureReason, Trial

SLOW, FAST = {"tokens_per_sec": 100.0, "step_time_s": 1.28}, {"tokens_per_sec": 400.0, "step_time_s": 0.32}


@pytest.fixture
def spec(tmp_path) -> SearchSpec:
    return spec_in(tmp_path)


@pytest.fixture
def search(spec) -> SearchRecord:
    """Two measured trials, a pruned one, two failed ones and one that waits."""
    first, second, third, fourth, fifth, sixth = layouts()[:6]
    return past(
        spec,
        measured("t0001", first, **SLOW),
        measured("t0002", second, **FAST),
        pruned("t0003", third, step_time_s=0.9, tokens_per_sec=142.2),
        failed("t0004", fourth, FailureReason.GPU_OOM),
        failed("t0005", fifth, FailureReason.CANCELLED_BY_USER),
        Trial("t0006", sixth),
    )


def read(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_a_number_that_no_column_holds_is_unknown(spec):
    """A failed trial's outcome is untrusted input."""
    wild = {"warmup_steps": 10**30, "loss_first": 10**400, "loss_last": math.inf, "epoch_s": math.nan}
    rows = trial_rows(past(spec, measured("t0001", layouts()[0], **SLOW, **wild)))
    assert [rows[0][name] for name in wild] == [None] * 4
    assert parquet_bytes(rows)


def test_tidy_csv_has_a_row_a_trial_with_all_that_is_known_of_it(search):
    rows = read(csv_text(trial_rows(search)))
    assert [tuple(row) for row in rows] == [COLUMNS] * 6
    assert [row["state"] for row in rows] == ["measured", "measured", "failed", "failed", "cancelled", "proposed"]
    assert [row["reason"] for row in rows] == ["", "", "pruned", "gpu_oom", "cancelled_by_user", ""]
    assert [row["tokens_per_sec"] for row in rows] == ["100.0", "400.0", "142.2", "", "", ""]
    slow = rows[0]
    assert (slow["micro_batch_size"], slow["sequence_parallel"], slow["bucket_mib"]) == ("1", "0", "")
    assert (slow["queue_wait_s"], slow["duration_s"], slow["num_attempts"]) == ("12.0", "30.0", "1")
    assert float(slow["node_hours_per_billion_tokens"]) == pytest.approx(1e9 / 3600 / 100)
    assert slow["started_at"] == "2026-05-28T20:26:52.000000Z"


@pytest.mark.security("csv_cells")
def test_a_word_that_a_spreadsheet_would_run_is_quoted(search):
    named = replace(search.trials[0].attempts[0], nodes=("=HYPERLINK(1)",), job_id="@SUM(A1)")
    (row,) = read(csv_text(trial_rows(replace(search, trials=(search.trials[0].with_attempt(named),)))))
    assert (row["nodes"], row["job_id"]) == ("'=HYPERLINK(1)", "'@SUM(A1)")


def test_parquet_keeps_the_types_of_columns_of_which_nothing_is_known(search):
    import pandas

    frame = pandas.read_parquet(io.BytesIO(parquet_bytes(trial_rows(search))))
    assert tuple(frame.columns) == COLUMNS
    assert frame["tokens_per_sec"].max() == 400.0
    assert str(frame["started_at"].dtype) == "datetime64[us, UTC]"
    assert str(frame["started_at"][0]) == "2026-05-28 20:26:52+00:00"
    kinds = {name: frame[name].dtype.kind for name in ("hfu", "sequence_parallel", "tensor_parallel")}
    assert kinds == {"hfu": "f", "sequence_parallel": "b", "tensor_parallel": "i"}


@pytest.mark.slow
@pytest.mark.timeout(120)  # DeepHyper takes its time to be imported
def test_deephypers_own_tools_read_its_results(search, spec, tmp_path):
    from deephyper.analysis import hpo

    made = export_search(search, spec, written_format("deephyper"))
    assert (made.rows, made.left_out) == (5, {"in_flight": 1})
    path = tmp_path / "results.csv"
    path.write_bytes(made.content)
    frame = hpo.read_results_from_csv(str(path))
    worked, broke = hpo.filter_failed_objectives(frame)
    assert list(worked["objective"]) == [100.0, 400.0]
    assert list(broke["objective"]) == ["F_pruned", "F_gpu_oom", "F_cancelled_by_user"]
    best, value = hpo.parameters_at_max(frame)
    assert (value, best["micro_batch_size"], best["data_parallel"]) == (400.0, 2, 2)
    assert set(best) == set(LAYOUT_FIELDS)
    assert list(frame["job_id"]) == [0, 1, 2, 3, 4]
    assert list(frame["job_status"]) == ["DONE"] * 4 + ["CANCELLED"]
    assert list(frame["m:timestamp_submit"]) == [0.0] * 5
    assert list(frame["m:timestamp_gather"]) == [42.0] * 5
    assert frame["m:peak_memory_gib"].max() == 0.25


def test_what_is_minimised_is_negative_and_several_goals_have_a_column_each(search, spec):
    both = (Objective.TOKENS_PER_SEC, Objective.NODE_HOURS_PER_BILLION_TOKENS)
    rows = read(deephyper_results(search, replace(spec, objectives=both)).content.decode())
    assert [row["objective_0"] for row in rows] == ["100.0", "400.0", "F_pruned", "F_gpu_oom", "F_cancelled_by_user"]
    assert float(rows[0]["objective_1"]) == pytest.approx(-1e9 / 3600 / 100)
    assert rows[3]["objective_1"] == "F_gpu_oom"
    assert "objective" not in rows[0]


@pytest.mark.slow
@pytest.mark.timeout(120)  # optuna and its tables
def test_optuna_reads_its_study(search, spec, tmp_path):
    import optuna

    made = export_search(search, spec, written_format("optuna"))
    assert (made.rows, made.left_out) == (5, {"in_flight": 1})
    (tmp_path / "study.db").write_bytes(made.content)
    study = optuna.load_study(study_name="past-aaaaaa", storage=f"sqlite:///{tmp_path}/study.db")
    states = [trial.state.name for trial in study.trials]
    assert states == ["COMPLETE", "COMPLETE", "PRUNED", "FAIL", "FAIL"]
    assert (study.direction.name, study.metric_names) == ("MAXIMIZE", ["tokens_per_sec"])
    assert (study.best_value, study.best_trial.user_attrs["trial"]) == (400.0, "t0002")
    best, failed_one = study.best_trial, study.trials[3]
    assert best.params["micro_batch_size"] == 2
    assert best.distributions["micro_batch_size"] == optuna.distributions.IntDistribution(1, 8, log=True)
    assert best.distributions["tensor_parallel"] == optuna.distributions.IntDistribution(1, 2, log=True)
    assert "engine" not in best.params
    assert best.user_attrs["engine"] == "torch"
    assert (failed_one.values, failed_one.user_attrs["reason"]) == (None, "gpu_oom")
    assert failed_one.params.keys() == best.params.keys()
    assert best.duration.total_seconds() == 30
    assert best.user_attrs["step_time_s"] == 0.32


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_study_of_several_goals_has_a_direction_for_each(search, spec, tmp_path):
    import optuna

    from orchestrator.records.formats.optuna_study import optuna_study

    both = (Objective.NODE_HOURS_PER_BILLION_TOKENS, Objective.TOKENS_PER_SEC)
    made = optuna_study(search, replace(spec, objectives=both))
    (tmp_path / "study.db").write_bytes(made.content)
    study = optuna.load_study(study_name="past-aaaaaa", storage=f"sqlite:///{tmp_path}/study.db")
    assert [direction.name for direction in study.directions] == ["MINIMIZE", "MAXIMIZE"]
    assert [trial.user_attrs["trial"] for trial in study.best_trials] == ["t0002"]


def test_a_search_without_an_ended_trial_has_no_rows(spec):
    waiting = past(spec, Trial("t0001", layouts()[0]))
    assert export_search(waiting, spec, written_format("deephyper")).rows == 0
    assert export_search(waiting, spec, written_format("measured")).left_out == {"in_flight": 1}
