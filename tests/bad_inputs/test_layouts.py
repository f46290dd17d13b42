"""Lines 7 to 21 and 52: numbers that a layout or search cannot have."""

from __future__ import annotations

import json

import pytest

from orchestrator.cli.main import run
from tests.bad_inputs.cli import Cli

AXES = ("tensor_parallel", "pipeline_parallel", "micro_batch_size", "num_nodes")
IN_TWO_STAGES = ("space.tensor_parallel=1", "space.pipeline_parallel=2")


NOTHING_LEFT = [
    (["space.tensor_parallel=7"], "world"),
    (["space.num_nodes=2"], "world"),
    (["space.tensor_parallel=2", "model.ffn_hidden_size=33"], "ffn"),
    (["space.tensor_parallel=2", "model.num_key_value_heads=1"], "kv_heads"),
    (["space.tensor_parallel=2", "model.vocab_size=63"], "vocab"),
    ([*IN_TWO_STAGES, "space.virtual_pipeline_stages=4"], "interleave"),
    ([*IN_TWO_STAGES, "model.num_layers=1"], "layers"),
    (["space.micro_batch_size=3"], "batch"),
    (["cluster.num_nodes=2", "space.tensor_parallel=4", "model.num_attention_heads=4"], "tp_across_nodes"),
]


@pytest.mark.bad_input(7, 8, 9, 10, 11, 14, 21)
def test_a_space_of_which_nothing_is_left_is_told_which_rules_took_how_many(cli: Cli):
    for overrides, rule in NOTHING_LEFT:
        problem = cli.refused_run(*overrides).about("space")
        assert (f"{rule} rejected " in problem["message"], f"{rule}: " in problem["fix"]) == (True, True), overrides


NOT_BUILT_BY_MEGATRON_CORE = [
    ([*IN_TWO_STAGES, "model.num_layers=3"], "megatron-core.layers"),
    (
        ["model.position_embedding=rotary", "model.hidden_size=34", "model.num_attention_heads=2"],
        "megatron-core.rotary",
    ),
    (["space.tensor_parallel=2", "space.pipeline_parallel=1", "model.vocab_size=63"], "vocab"),
    (["space.tensor_parallel=2", "space.pipeline_parallel=1", "model.num_key_value_heads=1"], "kv_heads"),
    (["space.attention_kernel=flash", "space.precision=bf16"], "gpu_only"),
    (["space.zero_stage=2", "space.tensor_parallel=1", "space.pipeline_parallel=1"], "megatron-core.zero_stage"),
]


@pytest.mark.bad_input(54)
def test_shapes_and_kernels_that_megatron_core_has_not_are_told_with_their_rule(cli: Cli):
    for overrides, rule in NOT_BUILT_BY_MEGATRON_CORE:
        problem = cli.refused_run("space.engine=megatron-core", *overrides).about("space")
        assert (f"{rule} rejected " in problem["message"], f"{rule}: " in problem["fix"]) == (True, True), overrides


@pytest.mark.bad_input(11)
def test_tensor_wider_than_a_node_is_told_the_switch(cli: Cli):
    wide = ("cluster.num_nodes=2", "space.tensor_parallel=4", "model.num_attention_heads=4")
    assert "set space.allow_tensor_parallel_across_nodes" in cli.refused_run(*wide).about("space")["fix"]


@pytest.mark.bad_input(12, 13, 17, 18, 19, 20)
def test_all_numbers_that_cannot_be_are_reported_at_once_with_value_rule_and_fix(cli: Cli):
    """One case of each; tests/orchestrator/config/test_loader_refusals.py has the whole table."""
    wrong = {"global_batch_size": 0, "cluster.gpus_per_node": 10**12, "space.tensor_parallel": 0}
    wrong |= {"search.max_trials": -3, "measure.min_steps": 4, "measure.time_limit": "soon", "objective": "speed"}
    refusal = cli.refused_run(*(f"{key}={json.dumps(value)}" for key, value in wrong.items()))
    assert {key: refusal.about(key)["value"] for key in wrong} == wrong
    assert len(refusal.problems) == len(wrong)


@pytest.mark.bad_input(15)
def test_a_space_over_a_million_points_names_the_switch(cli: Cli):
    axes = [f"space.{axis}={{min: 1, max: 64, step: 1}}" for axis in AXES]
    problem = cli.refused_run("cluster.num_nodes=64", *axes).about("space")
    assert "16777216 combinations of 64 num_nodes x 64 tensor_parallel" in problem["message"]
    assert "search.sample_space" in problem["fix"]


@pytest.mark.slow
@pytest.mark.bad_input(52)
@pytest.mark.timeout(120)
def test_a_plan_with_sizes_at_the_ends_of_their_ranges_comes_to_an_end(cli: Cli):
    cli.write()
    sizes = ["model.num_layers=10000", "model.hidden_size=100000000", "model.num_attention_heads=100000000"]
    sizes += ["model.vocab_size=1000000000", "model.seq_length=1000000000", "global_batch_size=1000000000"]
    sizes += ["cluster.gpus_per_node=100000", "cluster.num_nodes=10", "space.pipeline_parallel=[1, 5000, 10000]"]
    words = [word for size in [*sizes, "space.tensor_parallel=[1, 100]"] for word in ("--set", size)]
    assert run(["plan", "search.yaml", *words]) == 0
    assert "on 1000000 ranks" in cli.capsys.readouterr().out
