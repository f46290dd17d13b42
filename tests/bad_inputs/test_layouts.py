"""Lines 7 to 18 and 21: numbers that no layout or search can have."""

from __future__ import annotations

import pytest

from orchestrator.cli.main import run
from tests.bad_inputs.desk import Desk

AXES = ("tensor_parallel", "pipeline_parallel", "micro_batch_size", "num_nodes")
IN_TWO_STAGES = ("space.tensor_parallel=1", "space.pipeline_parallel=2")


@pytest.mark.bad_input(7, 10)
@pytest.mark.parametrize(
    ("baseline", "numbers"),
    [
        (
            "tensor_parallel: 3",
            "tensor 3 x pipeline 1 = 3 ranks do not divide the world: num_nodes 1 x gpus_per_node 2",
        ),
        ("micro_batch_size: 3", "micro batch 3 x data 2 = 6 sequences do not divide the global batch 8"),
        ("grad_accum_steps: 3", "micro batch 1 x accumulation 3 x data 2 = 6 sequences, but global_batch_size is 8"),
    ],
)
def test_a_baseline_that_does_not_come_out_is_told_with_all_numbers(desk: Desk, baseline, numbers):
    desk.write(more=f"baseline: {{{baseline}}}\n")
    assert numbers in desk.refused_run().about("baseline")["message"]


@pytest.mark.bad_input(7, 8, 9, 10, 11, 14, 21)
@pytest.mark.parametrize(
    ("overrides", "rule"),
    [
        (["space.tensor_parallel=7"], "world"),
        (["space.num_nodes=2"], "world"),
        (["space.tensor_parallel=2", "model.ffn_hidden_size=33"], "ffn"),
        (["space.tensor_parallel=2", "model.num_key_value_heads=1"], "kv_heads"),
        (["space.tensor_parallel=2", "model.vocab_size=63"], "vocab"),
        ([*IN_TWO_STAGES, "space.virtual_pipeline_stages=4"], "interleave"),
        ([*IN_TWO_STAGES, "model.num_layers=1"], "layers"),
        (["space.micro_batch_size=3"], "batch"),
        (["cluster.num_nodes=2", "space.tensor_parallel=4", "model.num_attention_heads=4"], "tp_across_nodes"),
    ],
)
def test_a_space_of_which_nothing_is_left_is_told_which_rules_took_how_many(desk: Desk, overrides, rule):
    problem = desk.refused_run(*overrides).about("space")
    assert f"{rule} removed " in problem["message"]
    assert f"{rule}: " in problem["fix"]


@pytest.mark.bad_input(11)
def test_tensor_wider_than_a_node_is_told_the_switch(desk: Desk):
    wide = ("cluster.num_nodes=2", "space.tensor_parallel=4", "model.num_attention_heads=4")
    assert "set space.allow_tensor_parallel_across_nodes" in desk.refused_run(*wide).about("space")["fix"]


@pytest.mark.bad_input(8)
def test_heads_that_do_not_share_the_width_are_told_with_both_numbers(desk: Desk):
    problem = desk.refused_run("model.num_attention_heads=3").about("model.hidden_size")
    assert (problem["value"], problem["rule"]) == (32, "hidden_size 32 must be a multiple of num_attention_heads 3")


@pytest.mark.bad_input(12, 13, 18)
@pytest.mark.parametrize(
    "key", ["global_batch_size", "space.tensor_parallel", "cluster.gpus_per_node", "search.max_trials"]
)
@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("0", 0), ("-1", -1), ("2.0", 2.0), ("true", True), ("'2'", "2"), ("null", None)),
        *(("1000000000000", 10**12), ("1e12", 1e12), (".nan", "nan"), (".inf", "inf"), ("1_000", "1_000")),
    ],
)
def test_a_count_is_a_whole_number_within_bounds(desk: Desk, key, text, value):
    assert desk.refused_run(f"{key}={text}").about(key)["value"] == value


@pytest.mark.bad_input(18)
@pytest.mark.parametrize("key", ["max_trials", "parallel_trials", "finalist_repeats", "budget_node_hours"])
@pytest.mark.parametrize("value", [0, -3])
def test_limits_of_a_search_are_positive(desk: Desk, key, value):
    assert desk.refused_run(f"search.{key}={value}").about(f"search.{key}")["value"] == value


@pytest.mark.bad_input(13)
@pytest.mark.parametrize("text", [".nan", ".inf", "-.inf", "1e12", "1_000"])
def test_a_number_with_a_fraction_is_finite_and_within_bounds(desk: Desk, text):
    assert desk.refused_run(f"search.budget_node_hours={text}").about("search.budget_node_hours")["value"] is not None


@pytest.mark.bad_input(15)
def test_a_space_over_a_million_points_names_the_switch(desk: Desk):
    axes = [f"space.{axis}={{min: 1, max: 64, step: 1}}" for axis in AXES]
    problem = desk.refused_run("cluster.num_nodes=64", *axes).about("space")
    assert "16777216 combinations of 64 num_nodes x 64 tensor_parallel" in problem["message"]
    assert "search.sample_space" in problem["fix"]


@pytest.mark.bad_input(16)
@pytest.mark.parametrize(
    ("axis", "key"),
    [
        ("[1, 2, 1]", ""),
        ("{min: 4, max: 1, step: 1}", ""),
        ("{min: 1, max: 4, step: 0}", ".step"),
        ("{min: 1, max: 4, factor: 1}", ".factor"),
        ("{min: 1, max: 4}", ""),
        ("[]", ""),
    ],
)
def test_an_axis_that_leads_nowhere_is_refused(desk: Desk, axis, key):
    desk.refused_run(f"space.tensor_parallel={axis}").about(f"space.tensor_parallel{key}")


@pytest.mark.bad_input(17)
def test_an_objective_nobody_knows_is_answered_with_the_known_ones(desk: Desk):
    problem = desk.refused_run("objective=speed").about("objective")
    assert problem["value"] == "speed"
    assert "tokens_per_sec, tokens_per_sec_per_gpu, node_hours_per_billion_tokens" in problem["rule"]


@pytest.mark.bad_input(19)
@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        (("measure.max_steps=20", "measure.max_warmup_steps=20"), "measure.max_warmup_steps"),
        (("measure.max_steps=20", "measure.min_steps=30"), "measure.min_steps"),
        (("measure.min_steps=4",), "measure.min_steps"),
    ],
)
def test_too_little_to_measure_is_refused(desk: Desk, overrides, key):
    assert desk.refused_run(*overrides).about(key)["value"] == int(overrides[-1].partition("=")[2])


@pytest.mark.bad_input(20)
@pytest.mark.parametrize("value", ["soon", "10:99", "0", "1.5", "1h30m", "-5", "400-00"])
def test_a_time_limit_in_a_wrong_form_is_told_the_grammar(desk: Desk, value):
    problem = desk.refused_run(f"measure.time_limit={value}").about("measure.time_limit")
    assert str(problem["value"]) == value
    assert "duration" in problem["rule"]


@pytest.mark.bad_input(21)
def test_a_world_of_another_size_than_nodes_times_gpus_has_no_key(desk: Desk):
    problem = desk.refused_run("cluster.num_gpus=3").about("cluster.num_gpus")
    assert "gpus_per_node, num_nodes" in problem["rule"]


@pytest.mark.bad_input(52)
@pytest.mark.parametrize(
    ("overrides", "key", "rule"),
    [
        (("model.num_layers=10001",), "model.num_layers", "at most 10000"),
        (("cluster.gpus_per_node=100000", "cluster.num_nodes=11"), "cluster.num_nodes", "at most 1000000 accelerators"),
    ],
)
def test_sizes_that_no_plan_would_come_to_an_end_with_are_refused(desk: Desk, overrides, key, rule):
    assert rule in desk.refused_run(*overrides).about(key)["rule"]


@pytest.mark.bad_input(52)
@pytest.mark.timeout(120)
def test_a_plan_with_sizes_at_the_ends_of_their_ranges_comes_to_an_end(desk: Desk):
    desk.write()
    sizes = ["model.num_layers=10000", "model.hidden_size=100000000", "model.num_attention_heads=100000000"]
    sizes += ["model.vocab_size=1000000000", "model.seq_length=1000000000", "global_batch_size=1000000000"]
    sizes += ["cluster.gpus_per_node=100000", "cluster.num_nodes=10", "space.pipeline_parallel=[1, 5000, 10000]"]
    words = [word for size in [*sizes, "space.tensor_parallel=[1, 100]"] for word in ("--set", size)]
    assert run(["plan", "search.yaml", *words]) == 0
    assert "on 1000000 ranks" in desk.capsys.readouterr().out
