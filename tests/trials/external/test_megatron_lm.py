"""The real pretrain_gpt.py of both versions under Parlay, on this machine's CPU."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from importlib.util import find_spec
from itertools import starmap
from pathlib import Path
from statistics import fmean
from types import MappingProxyType
from typing import Any

import pytest

from search_spaces.engines import MEGATRON_CORE
from search_spaces.hardware.cluster import ACCELERATORS, Cluster
from search_spaces.layouts.layout import Layout
from search_spaces.tables.measured_table import Observation, render_table
from tests.kit import ABSENT, TINY, TINY_SEARCH, search_file
from tests.orchestrator.cli.parlay import parlay, parlay_here
from tests.trials.external.megatron_on_cpu.start import GIVEN, SCRIPT
from tests.trials.external.patched_interpreter import interpreter_in
from tests.trials.external.ranks import local_spec, start
from tests.trials.external.test_program import await_no_process_in
from tests.trials.train.parity import Parity
from tests.trials.train.ranks import WarmRanks
from tests.trials.train.trial_processes import RunningTrial
from trials.attempt_result import expected_proof
from trials.diagnostics.parity_cases import named_case
from trials.diagnostics.selftest import CPU_TOLERANCES, SEED, Case
from trials.files.folders import read_json, read_lines
from trials.measure_rules import MeasureRules
from trials.measurement.step_log import StepPhase, StepRecord
from trials.ranks.cuda_connections import ONE
from trials.trial import Outcome, OutcomeStatus, TrialSpec

pytestmark = [pytest.mark.processes, pytest.mark.minutes, pytest.mark.timeout(600)]

TAG, MAIN = VERSIONS = ("core_v0.16.1", "main")
ARGUMENTS = (
    *("--transformer-impl", "local", "--distributed-backend", "gloo", "--use-cpu-initialization"),
    # The first needs Apex's kernel, the second a reduction of NCCL.
    *("--no-gradient-accumulation-fusion", "--no-gradient-reduce-div-fusion"),
)
"""Options of a training on a CPU."""
RULES = MeasureRules(min_steps=5, max_steps=6, max_warmup_steps=4, ci_relative_width=1.0, time_limit_s=300.0)
TP2, PP2, DP2 = {"tensor_parallel": 2}, {"pipeline_parallel": 2}, {"data_parallel": 2}
LAYOUTS = (
    {**TP2},
    {**TP2, "sequence_parallel": True, "activation_checkpointing": "full"},
    {**PP2},
    {**PP2, "virtual_pipeline_stages": 2, "activation_checkpointing": "selective"},
    {**DP2, "overlap_comm": True},
    {**DP2, "zero_stage": 1, "overlap_comm": True, "bucket_mib": 1},
    {**DP2, "zero_stage": 2},
    {**DP2, "zero_stage": 3, "activation_checkpointing": "full"},
)
UNPROVEN = {"local_parameters_sum", "parameters"}


@pytest.fixture(scope="module")
def python(tmp_path_factory) -> Path:
    if find_spec("megatron") is None:
        pytest.skip("megatron-core is not installed: the extra `trainers`")
    return interpreter_in(tmp_path_factory.mktemp("python"), "tests.trials.external.megatron_on_cpu.start")


@pytest.fixture(scope="module")
def script_of(tmp_path_factory) -> Callable[[str], Path]:
    """The real script by version (a tag or branch), in a copy of the checkout."""
    source = Path(os.environ.get("PARLAY_DOWNLOADS", "no downloads"), "Megatron-LM")
    folder = tmp_path_factory.mktemp("megatron")

    def script(version: str) -> Path:
        if not (source / ".git").exists():
            pytest.skip("no downloads: PARLAY_DOWNLOADS names no folder with a checkout of Megatron-LM")
        if not (copy := folder / version).exists():
            copy.mkdir()
            wanted = [version, "--", "megatron", ":(top,glob)*.py"]
            archive = subprocess.run(["git", "-C", source, "archive", *wanted], check=True, capture_output=True).stdout
            subprocess.run(["tar", "-x", "-C", copy], input=archive, check=True)
        return copy / SCRIPT

    return script


def layout_of(batch: int, **fields: Any) -> Layout:
    return Layout(
        micro_batch_size=1, grad_accum_steps=batch // fields.get("data_parallel", 1), engine="megatron-lm", **fields
    ).canonical()


def spec_of(script: Path, layout: Layout, **fields: Any) -> TrialSpec:
    trainer = {"kind": "megatron-lm", "script": str(script), "arguments": list(ARGUMENTS)}
    return local_spec(layout, trainer, RULES, **fields)


@pytest.fixture
def run(tmp_path, python) -> Callable[..., tuple[Outcome, RunningTrial]]:
    def run_to_the_end(
        spec: TrialSpec, environment=MappingProxyType({}), supervisor: str = "trials.external"
    ) -> tuple[Outcome, RunningTrial]:
        ranks = start(tmp_path, spec, program=(supervisor,), environment=environment, python=str(python))
        ranks.wait(300.0)
        await_no_process_in(ranks.folder.path)
        return ranks.outcome(), ranks

    return run_to_the_end


def assert_proven(outcome: Outcome, spec: TrialSpec) -> None:
    """The log shows everything of the layout but the parameters."""
    proof = dict(outcome.proof)
    assert set(proof["unproven"]) in (UNPROVEN, set())  # the newest checkout of main proves these, too
    assert {name: proof[name] for name in expected_proof(spec).keys() - UNPROVEN} == {
        name: value for name, value in expected_proof(spec).items() if name not in UNPROVEN
    }
    assert proof["global_batch_size"] == spec.global_batch_size
    assert proof["vocab_size"] == spec.model.vocab_size
    assert all(check["agrees"] for check in proof["cross_checks"])


@pytest.mark.walks
@pytest.mark.parametrize("version", VERSIONS)
def test_a_search_measures_every_layout_and_ends_in_a_recipe_that_is_replayed(tmp_path, python, script_of, version):
    (tmp_path / "layouts.csv").write_text(table_of([layout_of(4, **fields) for fields in LAYOUTS]))
    trainer = {"kind": "megatron-lm", "python": str(python), "script": str(script_of(version))}
    path = search_file(tmp_path, TINY_SEARCH, **SEARCH, trainer=trainer | {"arguments": list(ARGUMENTS)})
    answer = parlay("run", path, "--json", cwd=tmp_path, timeout_s=500)
    assert answer.code == 0, answer.err
    assert answer.json["trials"]["measured"] == len(LAYOUTS), answer.err
    searched = Path(answer.json["recipe"]).parent
    for attempt in searched.glob("trials/*/a1"):
        spec = TrialSpec.from_json(read_json(attempt / "spec.json"))
        outcome = Outcome.from_json(read_json(attempt / "outcome.r0.json"))
        assert_proven(outcome, spec)
        assert 0.1 < outcome.metrics.peak_memory_gib < 8
    words = (searched / "recipe/README.md").read_text()
    assert "**Megatron-LM**, measured with this trainer on an emulated device (`megatron_args.txt`)" in words
    replayed = parlay_here("replay", answer.json["search_id"], *ONCE, "--json", cwd=tmp_path).json
    assert replayed["trainer"] == "megatron-lm"
    assert replayed["measured"] > 0  # as fast again or not, on two busy cores


ONCE = ("--repeats", "1", "--sessions", "1")
SEARCH = {
    "model": {"num_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 512, "seq_length": 32},
    "global_batch_size": 4,
    "baseline": {"engine": "megatron-lm"},
    "space": dict.fromkeys(("tensor_parallel", "pipeline_parallel", "micro_batch_size"), ABSENT)
    | {"candidates": "layouts.csv"},
    "search": {"sampler": "grid", "max_trials": 8},
    "measure": {"max_warmup_steps": 4, "early_stopping": False},
    "tracking": {"enabled": False},
}


def table_of(layouts: list[Layout]) -> str:
    """Layouts as a measured table, which a search takes its candidates from."""
    cluster = Cluster(ACCELERATORS["cpu"], 2, 1)
    return render_table(
        Observation("tiny", "here", "tiny", TINY, cluster, 4, layout, "ok", step_time_s=1.0) for layout in layouts
    )


def test_four_ranks_are_measured_and_ended(run, script_of):
    spec = spec_of(script_of(MAIN), layout_of(4, **TP2, **PP2, sequence_parallel=True))
    outcome, ranks = run(spec)
    assert outcome.status is OutcomeStatus.MEASURED
    assert_proven(outcome, spec)
    records = read_lines(StepRecord, ranks.folder.metrics())
    assert [record.phase for record in records[:1]] == [StepPhase.WARMUP]
    assert records[-1].loss < records[0].loss
    assert list(outcome.metrics.startup_parts_s) == ["rendezvous", "build", "first_step", "warmup"]


@pytest.mark.parametrize("version", VERSIONS)
def test_fully_sharded_gradients_in_bf16_are_summed_in_fp32(run, script_of, version):
    spec = spec_of(script_of(version), layout_of(4, **DP2, zero_stage=2, precision="bf16"))
    unfused = [*ARGUMENTS, "--no-masked-softmax-fusion"]  # the fused one needs a kernel
    outcome, ranks = run(replace(spec, trainer=spec.trainer | {"arguments": unfused}))
    assert outcome.status is OutcomeStatus.MEASURED, ranks.logs()
    said = next(line for line in ranks.folder.rank_log(0).read_text().splitlines() if POLICY[version][0] in line)
    assert POLICY[version][1] in said


POLICY = {
    TAG: ("Setting up DistributedDataParallel with config", "grad_reduce_in_fp32=True"),
    MAIN: ("Setting up Megatron-FSDP MixedPrecisionPolicy with config", "main_grads_dtype=torch.float32"),
}
"""Line about Megatron-FSDP's gradients, and what it has to say."""


AS_PLAIN = (
    *("--lr", "1.0e-3", "--lr-decay-style", "constant", "--adam-beta2", "0.95", "--adam-eps", "1.0e-4"),
    *("--clip-grad", "0.5"),
)
"""Settings of the plain GPT's optimizer."""


@pytest.fixture(scope="module")
def megatron_core_losses(python) -> Iterator[Callable[[Case], list[float]]]:
    """Losses of a case's layout by Parlay's own engine megatron-core, on real ranks."""
    with closing(WarmRanks(MEGATRON_CORE)) as ranks:

        def losses(case: Case) -> list[float]:
            trained = Parity(ranks).train(replace(case, layout=replace(case.layout, engine=MEGATRON_CORE)))
            return list(starmap(mean_loss, zip(*(rank.losses for rank in trained), strict=True)))

        yield losses


def mean_loss(*of_ranks: float | None) -> float:
    return fmean(loss for loss in of_ranks if loss is not None)


@pytest.mark.walks
@pytest.mark.parametrize(
    ("version", "shape", "fields"),
    [
        (TAG, "gpt2", {**TP2, "sequence_parallel": True}),
        (MAIN, "gpt2", {**PP2, "virtual_pipeline_stages": 3}),
        (MAIN, "gpt2", {**DP2, "zero_stage": 1}),
        (MAIN, "gpt2", {**DP2, "zero_stage": 3}),
        (TAG, "mixtral", {**DP2, "expert_parallel": 2}),
        (MAIN, "deepseek-moe", {**DP2, "expert_parallel": 2, "zero_stage": 1}),
        (MAIN, "mixtral", {**TP2, "sequence_parallel": True, "expert_tensor_parallel": 2}),
    ],
)
def test_its_losses_are_those_of_a_plain_gpt_and_of_engine_megatron_core(
    run, script_of, megatron_core_losses, version, shape, fields, record_property
):
    import torch

    from trials.train.parallel.device import Device
    from trials.train.selftest.training import train_reference

    case = named_case("reference", shape, **fields)
    expected = {"plain": train_reference(case, Device(torch.device("cpu"))).losses}
    if case.layout.zero_stage < 2:  # the engine has no Megatron-FSDP
        expected["megatron-core"] = megatron_core_losses(case)
    spec = spec_of(script_of(version), replace(case.layout, engine="megatron-lm"), seed=SEED)
    arguments = [*ARGUMENTS, *AS_PLAIN, "--no-rope-fusion"]  # the fused rotation is Transformer Engine's
    spec = replace(spec, model=case.model, trainer=spec.trainer | {"arguments": arguments})
    outcome, ranks = run(spec, {GIVEN: "yes", **ONE})  # as Megatron's own launch scripts set
    assert outcome.status is OutcomeStatus.MEASURED, ranks.logs()
    records = read_lines(StepRecord, ranks.folder.metrics())
    assert len(records) >= 7
    for name, losses in expected.items():
        logged = [losses[0], fmean(losses[:2]), *losses[2:]]  # as it logs the second iteration
        difference = max(abs(record.loss - loss) for record, loss in zip(records, logged, strict=False))
        record_property(f"difference from {name}", difference)
        assert difference <= CPU_TOLERANCES["fp32"], name
