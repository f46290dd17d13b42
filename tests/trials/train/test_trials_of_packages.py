"""Trials by engines that are packages, in real ranks: measured, profiled, stopped early, out of memory, hanging, with a
dead rank."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial

import pytest

from search_spaces.engines import ACCELERATE, MEGATRON_CORE, TORCHTITAN
from search_spaces.layouts.layout import Layout
from search_spaces.model_shape import ModelShape
from tests.trials.train.parity import needs_accelerate, needs_megatron, needs_torchtitan
from tests.trials.train.ranks import WarmRanks
from tests.trials.train.trial_processes import ENDLESS, MODEL, RULES, RunningTrial, best_of, faulty, make_spec
from trials.files.folders import SearchFolder, write_json
from trials.ranks.engine_packages import packages_of
from trials.ranks.software import package_version
from trials.trial import FailureReason, Flag, TrialState

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

LLAMA = replace(MODEL, position_embedding="rotary", norm="rmsnorm", gated_mlp=True)


@dataclass(frozen=True)
class Engine:
    """An engine's warm ranks, a model that it trains, and layouts of two and of four ranks."""

    ranks: WarmRanks
    model: ModelShape
    small: Layout
    large: Layout

    @property
    def name(self) -> str:
        return self.small.engine


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(MEGATRON_CORE, marks=needs_megatron),
        pytest.param(TORCHTITAN, marks=[needs_torchtitan, pytest.mark.walks]),
        pytest.param(ACCELERATE, marks=[needs_accelerate, pytest.mark.walks]),
    ],
)
def engine(request) -> Iterator[Engine]:
    kernel, model, stage = ("flex", LLAMA, 2) if request.param == TORCHTITAN else ("math", MODEL, 1)
    plain = Layout(engine=request.param, attention_kernel=kernel, micro_batch_size=2, grad_accum_steps=2)
    if request.param == ACCELERATE:
        small = replace(plain, data_parallel=2, zero_stage=3)
        large = replace(small, data_parallel=4, data_parallel_replicas=2)
    else:
        small = replace(plain, tensor_parallel=2)
        large = replace(plain, pipeline_parallel=2, data_parallel=2, zero_stage=stage)
    with closing(WarmRanks(request.param)) as warm:
        yield Engine(warm, model, small, large)


@pytest.fixture
def begin(start, engine) -> Callable[..., RunningTrial]:
    return partial(start, warm=engine.ranks)


def test_a_trial_is_measured_profiled_and_proven(begin, engine):
    trial = begin(make_spec(engine.large, model=engine.model, measure=replace(RULES, profile=True)))
    assert trial.wait() == [0, 0, 0, 0], trial.logs()
    outcome, result = trial.outcome(), trial.result()
    assert result.state is TrialState.MEASURED
    parameters = engine.model.parameters
    assert outcome.proof["local_parameters_sum"] == outcome.proof["optimizer_parameters_sum"] == parameters
    degrees = (engine.large.pipeline_parallel, engine.large.data_parallel)
    assert (outcome.proof["pipeline_parallel"], outcome.proof["data_parallel"]) == degrees
    assert outcome.proof["micro_batches_per_step"] == 2
    assert Flag.EMULATED_DEVICE in outcome.flags
    expected = {MEGATRON_CORE: {"megatron_layers": "local"}}.get(
        engine.name, {package: package_version(package) for package in packages_of(engine.name)}
    )
    assert {name: outcome.fingerprint[name] for name in expected} == expected
    parts = outcome.metrics.time_s
    assert sum(parts.values()) == pytest.approx(outcome.metrics.step_time_s, rel=1e-6)
    is_pipeline = engine.large.pipeline_parallel > 1
    assert min(parts["compute"], parts["data_parallel"], parts["optimizer"], *[parts["pipeline"]] * is_pipeline) > 0


@pytest.mark.walks
def test_a_trial_that_cannot_be_the_best_ends_itself(begin, engine, tmp_path):
    spec = make_spec(engine.small, model=engine.model, measure=ENDLESS)
    search = SearchFolder(tmp_path / spec.search_id)
    search.path.mkdir()
    write_json(search.best, best_of(spec, 1e12))
    trial = begin(spec)
    assert trial.wait() == [0, 0], trial.logs()
    assert trial.outcome().measured.measured_steps >= 6
    assert trial.result().reason is FailureReason.PRUNED


def test_beyond_the_memory_limit_a_rank_is_out_of_memory(begin, engine):
    large = replace(engine.model, hidden_size=1024, ffn_hidden_size=4096, vocab_size=32768)
    trial = begin(make_spec(engine.small, model=large, measure=replace(RULES, memory_limit_gib=0.8)))
    trial.wait_for_outcome()
    assert set(trial.wait()) == {1}
    assert trial.result().reason is FailureReason.GPU_OOM


def test_an_error_in_one_rank_is_a_script_error(begin, engine):
    trial = begin(
        make_spec(engine.small, model=engine.model, measure=ENDLESS),
        program=faulty("fail_in_the_third_step_of_rank_1"),
    )
    outcome = trial.wait_for_outcome()
    assert trial.wait() == [1, 1]
    assert (outcome.reason, outcome.rank) == (FailureReason.SCRIPT_ERROR, 1)


def test_a_rank_that_sleeps_is_a_hang(begin, engine):
    rules = replace(ENDLESS, time_limit_s=80.0)
    trial = begin(
        make_spec(engine.small, model=engine.model, measure=rules), program=faulty("sleep_in_the_third_step_of_rank_1")
    )
    outcome = trial.wait_for_outcome()
    assert trial.wait() == [1, 1]
    assert trial.result().reason is FailureReason.HANG
    assert "all_reduce" in outcome.excerpt + trial.logs()


def test_a_killed_rank_ends_the_others(begin, engine):
    trial = begin(make_spec(engine.small, model=engine.model, measure=ENDLESS))
    trial.wait_for_steps(2)
    os.kill(trial.ranks[1].pid, signal.SIGKILL)
    outcome = trial.wait_for_outcome()
    assert trial.wait() == [1, -signal.SIGKILL]
    assert (outcome.reason, outcome.rank) == (FailureReason.NODE_FAILURE, 0)
