"""Warm start: selection of trials, their number, saving and loading, messages."""

from __future__ import annotations

import json
import socket
import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import replace

import pytest

from orchestrator.planning.candidates import candidates_of
from orchestrator.planning.plan import Estimates, plan_of, predictor, task_of
from orchestrator.planning.plan_notes import plan_notes
from orchestrator.planning.prior_trials import (
    PriorTrials,
    collect_prior_trials,
    collect_prior_trials_for_plan,
    load_prior_trials,
    save_prior_trials,
)
from orchestrator.records.observations import observed_trials
from search_spaces.errors import InputError
from search_spaces.layouts.layout import Layout
from search_spaces.tables.measured_table import render_table
from tests.orchestrator.past_searches import NOON, failed, layouts, measured, past, spec_in, write_ledger
from trials.files.folders import SearchFolder
from trials.trial import FailureReason

LARGE = ("s1-aaaaaa", "s2-aaaaaa", "s3-aaaaaa")
ON_SLURM = "launcher={kind: slurm}"
"""A search whose ranks' device is unknown."""


@pytest.fixture
def url(tmp_path) -> str:
    return f"sqlite:///{tmp_path}/ledger.db"


@pytest.fixture
def spec(tmp_path):
    return spec_in(tmp_path, ON_SLURM)


def three_trials(**changes):
    return tuple(measured(f"t000{n}", layout, **changes) for n, layout in enumerate(layouts()[:3], 1))


def test_the_trials_of_searches_on_such_a_machine_are_taken_newest_first(spec, url, tmp_path):
    other_model = spec_in(tmp_path, "model.num_layers=4")
    write_ledger(
        url,
        past(spec, *three_trials(), search_id="old-aaaaaa"),
        past(other_model, measured("t0001", layouts()[3]), search_id="new-bbbbbb", at=NOON + 60),
    )
    prior_trials = collect_prior_trials(spec, url)
    assert [(row.search_id, row.trial) for row in prior_trials.observations] == [
        ("new-bbbbbb", "t0001"),
        ("old-aaaaaa", "t0003"),
        ("old-aaaaaa", "t0002"),
        ("old-aaaaaa", "t0001"),
    ]
    assert prior_trials.summary == "4 trials of 2 earlier searches: new-bbbbbb, old-aaaaaa"
    assert prior_trials.remarks == ()


@pytest.mark.parametrize(
    "change",
    [
        "cluster.accelerator=a100-40gb",
        "cluster.gpus_per_node=4",
        "measure.memory_limit_gib=2",
        "trainer={kind: command, template: 'python train.py {tensor_parallel} {pipeline_parallel} {micro_batch_size}',"
        " log_rank: 0, patterns: megatron-lm}",
    ],
)
def test_another_machine_trainer_or_limit_teaches_nothing(spec, url, tmp_path, change):
    write_ledger(url, past(spec_in(tmp_path, ON_SLURM, change), measured("t0001", Layout())))
    assert collect_prior_trials(spec, url) == PriorTrials()


@pytest.mark.parametrize(("accelerator", "taught"), [("cpu", []), ("a100-40gb", ["t0001", "t0002"])])
def test_an_emulated_device_teaches_no_other_search(tmp_path, url, accelerator, taught):
    """Neither by its times nor by what ran out of memory, not even a search of the same engine."""
    spec = spec_in(tmp_path, ON_SLURM, f"cluster.accelerator={accelerator}", "space.engine=megatron-core")
    first, second = (replace(layout, engine="megatron-core") for layout in layouts()[:2])
    trials = (measured("t0001", first), failed("t0002", second, FailureReason.GPU_OOM))
    write_ledger(url, past(spec, *trials))
    assert sorted(row.trial or "" for row in collect_prior_trials(spec, url).observations) == taught
    (tmp_path / "table.csv").write_text(render_table(observed_trials(past(spec, *trials), spec).rows))
    from_table = spec_in(tmp_path, f"cluster.accelerator={accelerator}", "search.warm_start=table.csv")
    found = collect_prior_trials(from_table, url)
    assert len(found.observations) == len(taught)
    left_out = "warm start without 2 rows of table.csv that a CPU's emulation of a GPU measured"
    assert found.remarks == (() if taught else (left_out,))


def test_a_played_search_teaches_nothing_and_learns_nothing_from_the_ledger(spec, url, tmp_path):
    (tmp_path / "table.csv").write_text(render_table(observed_trials(past(spec, *three_trials()), spec).rows))
    played = spec_in(tmp_path, "launcher={kind: simulated, table: table.csv}")
    write_ledger(url, past(played, *three_trials(), search_id="played-aaaaaa"))
    assert collect_prior_trials(spec, url) == PriorTrials()
    write_ledger(url, past(spec, *three_trials()))
    assert len(collect_prior_trials(spec, url).observations) == 3
    assert collect_prior_trials(played, url) == PriorTrials()


def test_what_ran_here_is_taken_where_the_ranks_run_here(tmp_path, url, monkeypatch):
    monkeypatch.setattr("orchestrator.planning.prior_trials.cpu_name", lambda: "this CPU")
    spec, (first, second, third, *_) = spec_in(tmp_path), layouts()
    here, elsewhere = measured("t0001", first, device="this CPU"), measured("t0001", second, device="another CPU")
    unknown = measured("t0001", third, device=None)
    write_ledger(
        url,
        past(spec, here, search_id="here-aaaaaa"),
        past(spec, elsewhere, search_id="elsewhere-aaaaaa", at=NOON + 1),
        past(spec, unknown, search_id="unknown-aaaaaa", at=NOON + 2),
    )
    found = [row.search_id for row in collect_prior_trials(spec, url).observations]
    assert found == ["unknown-aaaaaa", "here-aaaaaa"]


def test_only_what_ran_or_ran_out_of_memory_teaches(spec, url):
    reasons = (FailureReason.GPU_OOM, FailureReason.HANG, FailureReason.TIME_LIMIT, FailureReason.JOB_LOST)
    trials = [failed(f"t000{n}", layouts()[n], reason) for n, reason in enumerate(reasons, 1)]
    write_ledger(url, past(spec, *trials))
    assert [(row.trial, row.outcome) for row in collect_prior_trials(spec, url).observations] == [("t0001", "oom")]


@pytest.mark.slow
def test_at_most_sixty_are_taken_as_many_of_each_problem_and_each_layout_once(spec, url, tmp_path):
    searches = []
    for number, count in enumerate((6, 40, 40, 40)):
        shape = spec_in(tmp_path, ON_SLURM, f"model.vocab_size={64 * (number + 1)}")
        buckets = [replace(layouts()[1], bucket_mib=mib) for mib in range(1, count + 1)]
        trials = [measured(f"t{n:04}", layout) for n, layout in enumerate([*buckets, *buckets], 1)]
        searches.append(past(shape, *trials, search_id=f"s{number}-aaaaaa", at=NOON + number))
    write_ledger(url, *searches)
    rows = collect_prior_trials(spec, url).observations
    assert Counter(row.search_id for row in rows) == {"s0-aaaaaa": 6, **dict.fromkeys(LARGE, 18)}
    newest = [row.trial for row in rows if row.search_id == "s3-aaaaaa"]
    assert newest == [f"t{n:04}" for n in range(80, 62, -1)]


@pytest.mark.bad_input(43)
def test_hostile_rows_are_left_out_and_counted(spec, url, tmp_path):
    write_ledger(url, past(spec, *three_trials()), past(spec, *three_trials(), search_id="gone-aaaaaa", at=NOON - 1))
    broken = {"t0001": ("step_time_s", 1e90), "t0002": ("peak_memory_gib", 1e300)}
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as database, database:
        for trial, (name, value) in broken.items():
            where = f"search_id = 'past-aaaaaa' AND trial = '{trial}'"
            (text,) = database.execute(f"SELECT outcome FROM attempt WHERE {where}").fetchone()
            outcome = json.loads(text)
            outcome["measured"][name] = value
            database.execute(f"UPDATE attempt SET outcome = ? WHERE {where}", (json.dumps(outcome),))
        database.execute("UPDATE trial SET state = 'eaten' WHERE search_id = 'gone-aaaaaa'")
    prior_trials = collect_prior_trials(spec, url)
    assert [row.trial for row in prior_trials.observations] == ["t0003"]
    (remark,) = prior_trials.remarks
    assert "damaged" in remark
    assert "5 damaged records" in remark  # a trial that cannot be read costs no other: two here, and all of the other


def test_none_asks_for_nothing(tmp_path, url):
    spec = spec_in(tmp_path, ON_SLURM, "search.warm_start=none")
    write_ledger(url, past(spec, *three_trials()))
    assert collect_prior_trials(spec, url) == PriorTrials()


@pytest.mark.slow
def test_a_table_is_taken_as_evenly_as_the_ledger_and_its_sources_are_reported(tmp_path, spec):
    (row, *_) = observed_trials(past(spec, *three_trials()), spec).rows
    row = replace(row, search_id=None, trial=None, source="somebody", peak_memory_gib=0.0)
    many = [
        replace(row, layout=replace(row.layout, bucket_mib=bucket), step_time_s=float(bucket))
        for bucket in range(1, 301)
    ]
    (tmp_path / "table.csv").write_text(render_table(many))
    prior_trials = collect_prior_trials(spec_in(tmp_path, "search.warm_start=table.csv"), "")
    assert prior_trials.summary == "60 trials of a table: somebody"
    times = sorted(row.step_time_s for row in prior_trials.observations)
    assert max(later - sooner for sooner, later in zip([0, *times], [*times, 301], strict=True)) < 12
    assert {row.peak_memory_gib for row in prior_trials.observations} == {None}


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda text: text.replace(",0.5,", ",fast,", 1), "table.csv:2: step_time_s: is 'fast'"),
        (lambda text: text.replace(",cpu,", ",h100-80gb,"), "no row of cpu with 2 GPUs a node"),
    ],
)
def test_a_bad_table_is_named_with_its_line_before_anything_is_made(tmp_path, spec, spoil, told):
    text = render_table(observed_trials(past(spec, *three_trials()), spec).rows)
    (tmp_path / "table.csv").write_text(spoil(text))
    with pytest.raises(InputError) as caught:
        spec_in(tmp_path, "search.warm_start=table.csv")
    assert told in str(caught.value)


def test_what_a_search_learns_from_is_frozen(spec, url, tmp_path):
    write_ledger(url, past(spec, *three_trials()))
    folder, prior_trials = SearchFolder(tmp_path), collect_prior_trials(spec, url)
    assert load_prior_trials(folder) == ()
    save_prior_trials(folder, prior_trials)
    assert load_prior_trials(folder) == prior_trials.observations
    assert folder.warm_start.read_text().startswith("# warm start: 3 trials of 1 earlier search: past-aaaaaa\n")
    folder.warm_start.write_text("no table")
    with pytest.raises(InputError, match=r"warm_start\.csv"):
        load_prior_trials(folder)


def test_a_plan_says_from_how_many_trials_of_whom_it_learnt(spec, url, tmp_path):
    write_ledger(url, past(spec, *three_trials(step_time_s=0.004)))
    space = candidates_of(spec)
    cold, taught = plan_of(spec, space), plan_of(spec, space, collect_prior_trials(spec, url))
    assert "uncalibrated" in plan_notes(cold)[0]
    assert plan_notes(taught)[0] == "the cost model is calibrated on 3 trials of 1 earlier search: past-aaaaaa"
    assert not any("uncalibrated" in note for note in plan_notes(taught))
    assert (taught.estimates.step_time_s != cold.estimates.step_time_s).any()
    assert cold.expected.guided is None
    assert taught.expected.guided > 0
    assert isinstance(taught.estimates, Estimates)


def test_predictions_of_other_constants_have_another_hash(tmp_path):
    spec = spec_in(tmp_path, ON_SLURM, "cluster.accelerator=a100-40gb", "space.precision=bf16")
    rows = observed_trials(past(spec, *three_trials()), spec).rows
    layout = candidates_of(spec).layouts[0]
    cold, taught, again = (predictor(task_of(spec, each))(layout) for each in ((), rows, rows))
    assert cold["model_hash"] != taught["model_hash"]
    assert cold["step_time_s"] != taught["step_time_s"]
    assert taught == again


def test_a_plan_reads_the_ledger_that_is_there(tmp_path, monkeypatch, url):
    monkeypatch.setattr("orchestrator.planning.prior_trials.cpu_name", lambda: "a CPU")
    spec = spec_in(tmp_path, f"ledger.url={url}")
    write_ledger(url, past(spec, *three_trials()))
    assert len(collect_prior_trials_for_plan(spec).observations) == 3


@pytest.mark.slow
def test_a_plan_waits_for_no_ledger_that_is_silent(tmp_path, monkeypatch):
    monkeypatch.setattr("orchestrator.planning.prior_trials.PLAN_TIMEOUT_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        spec = spec_in(tmp_path, f"ledger.url=postgresql://127.0.0.1:{silent.getsockname()[1]}/parlay")
        (remark,) = collect_prior_trials_for_plan(spec).remarks
    assert "no answer within" in remark or "not installed" in remark
