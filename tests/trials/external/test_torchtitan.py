"""torchtitan's own program under Parlay, on this machine's CPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from search_spaces.engines import TORCHTITAN
from search_spaces.layouts.layout import Layout
from tests.kit import ABSENT, LLAMA, TINY, TINY_SEARCH, search_file
from tests.orchestrator.cli.parlay import parlay
from tests.trials.external.patched_interpreter import interpreter_in
from tests.trials.external.ranks import start
from tests.trials.external.torchtitan_data import write_data
from tests.trials.train.trial_processes import make_spec
from trials.measure_rules import MeasureRules
from trials.trial import FailureReason, Flag, Outcome

pytest.importorskip("torchtitan", reason="torchtitan is not installed: the extra `trainers`")

pytestmark = [pytest.mark.processes, pytest.mark.walks, pytest.mark.timeout(600)]

MODEL = replace(TINY, **LLAMA, num_layers=2, vocab_size=128, seq_length=64, tied_embeddings=False)
RULES = MeasureRules(min_steps=5, max_steps=6, max_warmup_steps=3, ci_relative_width=1.0, time_limit_s=300.0)


@pytest.fixture(scope="module")
def python(tmp_path_factory) -> str:
    return str(interpreter_in(tmp_path_factory.mktemp("python"), "tests.trials.external.torchtitan_on_cpu"))


@pytest.fixture(scope="module")
def arguments(tmp_path_factory) -> list[str]:
    """A user's options: data and tokenizer."""
    data: Path = write_data(tmp_path_factory.mktemp("data"), MODEL.vocab_size)
    return [
        *("--hf_assets_path", str(data / "tokenizer")),
        *("--dataloader.dataset", "c4_test", "--dataloader.dataset_path", str(data / "texts")),
    ]


def run(tmp_path: Path, python: str, arguments: list[str], **layout: Any) -> tuple[Outcome, str]:
    wanted = {"micro_batch_size": 2, "attention_kernel": "flex", "engine": TORCHTITAN, **layout}
    trainer = {"kind": "torchtitan", "arguments": arguments}
    ranks = start(
        tmp_path, make_spec(Layout(**wanted).canonical(), model=MODEL, measure=RULES, trainer=trainer), python=python
    )
    ranks.wait(300.0)
    return ranks.outcome(), ranks.logs()


@pytest.mark.parametrize(
    "layout",
    [
        {"data_parallel": 2, "zero_stage": 3, "grad_accum_steps": 2},
        {"tensor_parallel": 2, "sequence_parallel": True},
        {"pipeline_parallel": 2, "grad_accum_steps": 2},
    ],
    ids=["sharded", "tensor", "pipeline"],
)
def test_it_trains_a_layout_that_its_ranks_prove(layout, tmp_path, python, arguments):
    outcome, logs = run(tmp_path, python, arguments, **layout)
    assert outcome.measured is not None, logs
    assert Flag.UNPROVEN not in outcome.flags, outcome.proof


def test_data_that_it_does_not_find_end_the_trial_with_the_cause(tmp_path, python):
    outcome, logs = run(tmp_path, python, ["--hf_assets_path", str(tmp_path / "nowhere")])
    assert outcome.reason is FailureReason.SCRIPT_ERROR, logs
    assert "nowhere" in (outcome.excerpt or "")


def test_a_search_ends_in_a_recipe_that_is_replayed(tmp_path, python, arguments):
    path = search_file(
        tmp_path,
        TINY_SEARCH,
        baseline=ABSENT,
        model={name: value for name, value in MODEL.to_json().items() if value not in (None, False)},
        space={
            "tensor_parallel": 1,
            "pipeline_parallel": 1,
            "zero_stage": 3,
            "micro_batch_size": [1, 2],
            "attention_kernel": "flex",
        },
        search={"sampler": "grid"},
        measure={"early_stopping": False, "max_steps": 8},
        tracking={"enabled": False},
        trainer={"kind": "torchtitan", "python": python, "arguments": arguments},
    )
    answer = parlay("run", path, "--json", cwd=tmp_path, timeout_s=500)
    assert answer.code == 0, answer.err
    assert (answer.json["trials"]["measured"], answer.json["trials"]["failed"]) == (2, 0), answer.err
    launched = (Path(answer.json["recipe"]) / "README.md").read_text()
    assert f"--hf_assets_path {arguments[1]}" in launched
    replayed = parlay("replay", answer.json["search_id"], "--repeats", "1", "--sessions", "1", "--json", cwd=tmp_path)
    assert replayed.json["measured"] is not None, replayed.err
