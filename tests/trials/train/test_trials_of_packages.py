"""Trials by engines that are packages, in real ranks: measured, profiled, stopped early, out of memory, hanging, with a
dead rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial

import pytest

from search_spaces.engines import ACCELERATE, MEGATRON_CORE, TORCHTITAN
from search_spaces.layouts.layout import Layout
from search_spaces.model_shape import ModelShape
from search_spaces.rules.check import engine_violations
from tests.kit import LLAMA
from tests.trials.train.parity import needs_accelerate, needs_megatron, needs_torchtitan
from tests.trials.train.ranks import WarmRanks
from tests.trials.train.trial_processes import MODEL, RULES, WITH_EXPERTS, RunningTrial, make_spec
from trials.ranks.engine_packages import packages_of
from trials.ranks.software import package_version
from trials.trial import FailureReason, Flag, TrialState

pytestmark = [pytest.mark.processes, pytest.mark.walks, pytest.mark.timeout(300)]


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
        pytest.param(TORCHTITAN, marks=needs_torchtitan),
        pytest.param(ACCELERATE, marks=needs_accelerate),
    ],
)
def engine(request) -> Iterator[Engine]:
    kernel, model, stage = ("flex", replace(MODEL, **LLAMA), 2) if request.param == TORCHTITAN else ("math", MODEL, 1)
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


def test_beyond_the_memory_limit_a_rank_is_out_of_memory(begin, engine):
    large = replace(engine.model, hidden_size=1024, ffn_hidden_size=4096, vocab_size=32768)
    trial = begin(make_spec(engine.small, model=large, measure=replace(RULES, memory_limit_gib=0.8)))
    trial.wait_for_outcome()
    assert set(trial.wait()) == {1}
    assert trial.result().reason is FailureReason.GPU_OOM


@pytest.mark.parametrize(
    ("routing", "skew"), [pytest.param("balanced", 1.0, marks=pytest.mark.nightly), ("skewed(1.5)", 1.5)]
)
def test_experts_have_the_loads_that_were_asked_for(begin, engine, routing, skew):
    if engine.name == ACCELERATE:
        assert any(engine_violations(engine.small, WITH_EXPERTS))
        return
    split = {"data_parallel": 2, "expert_parallel": 2, "expert_tensor_parallel": 1, "activation_checkpointing": "full"}
    sequence = {"sequence_parallel": True, "zero_stage": 2} if engine.name == TORCHTITAN else {"tensor_parallel": 1}
    spec = make_spec(
        replace(engine.small, **split | sequence), model=WITH_EXPERTS, measure=replace(RULES, routing=routing)
    )
    trial = begin(spec)
    assert not any(trial.wait()), trial.logs()
    metrics, is_drawn = trial.outcome().metrics, engine.name == MEGATRON_CORE and routing == "balanced"
    assert metrics.expert_tokens_mean == spec.global_batch_size * WITH_EXPERTS.seq_length * 2 / 4
    most = pytest.approx(skew * metrics.expert_tokens_mean, rel=0.2 if is_drawn else 0.0)
    assert metrics.expert_tokens_most == most
    assert trial.result().state is TrialState.MEASURED
