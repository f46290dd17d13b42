"""Refusals of a search file, each with position, rule and fix."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.samplers.factory import SAMPLERS
from orchestrator.search.experiment import other_software
from tests.kit import MINIMAL, loaded, refusal, refusals


def test_a_newer_search_file_is_refused(tmp_path: Path):
    assert refusal(tmp_path, "schema: parlay.search/2\n" + MINIMAL).rule == "one of parlay.search/1"


@pytest.mark.bad_input(7, 10)
@pytest.mark.parametrize(
    ("baseline", "code", "words"),
    [
        ("tensor_parallel: 3", "world", "tensor_parallel 3 x pipeline_parallel 1 = 3 does not divide the world size"),
        (
            "micro_batch_size: 5",
            "batch",
            "micro_batch_size 5 x data_parallel 4 = 20 does not divide global_batch_size 16",
        ),
    ],
)
def test_a_baseline_that_does_not_come_out_is_refused_with_all_numbers(tmp_path, baseline, code, words):
    problem = refusal(tmp_path, MINIMAL + f"baseline:\n  {baseline}\n")
    assert (problem.code, problem.key, problem.line) == (code, "baseline", 7)
    assert words in problem.message


def test_a_problem_says_file_line_key_value_rule_and_fix(tmp_path: Path):
    problem = refusal(tmp_path, MINIMAL + "search:\n  sampler: deephiper\n")
    assert problem.to_json() == {
        "code": "choice",
        "message": "is 'deephiper'",
        "rule": f"one of {', '.join(SAMPLERS)}",
        "fix": "did you mean deephyper?",
        "key": "search.sampler",
        "value": "deephiper",
        "file": str(tmp_path / "search.yaml"),
        "line": 8,
    }


def test_all_problems_of_all_sections_are_reported_at_once_in_the_files_order(tmp_path: Path):
    text = """\
name: Bad Name
model: {num_layers: four, hidden_size: 10, num_attention_heads: 3, vocab_size: 8}
cluster: {accelerator: abacus, gpus_per_node: 0, num_nodes: 1}
global_batch_size: 0
space:
  tensor_parallel: [1, 1]
  zero_stage: 4
search: {max_trails: 3}
tracking: {mlflow_uri: ./mlruns}
"""
    found = refusals(tmp_path, text)
    assert [(p.key, p.line) for p in found] == [
        ("name", 1),
        ("model.num_layers", 2),
        ("model.seq_length", 2),
        ("cluster.gpus_per_node", 3),
        ("global_batch_size", 4),
        ("space.tensor_parallel", 6),
        ("space.zero_stage", 7),
        ("search.max_trails", 8),
        ("tracking.mlflow_uri", 9),
    ]


@pytest.mark.bad_input(1)
@pytest.mark.parametrize(
    ("text", "key", "fix"),
    [
        ("serch: {}", "serch", "did you mean search?"),
        ("search: {max_trails: 3}", "search.max_trails", "did you mean max_trials?"),
        ("max_trials: 3", "max_trials", "did you mean search.max_trials?"),
        ("tensor_parallel: 3", "tensor_parallel", "did you mean space.tensor_parallel?"),
        ("tensor_paralel: 3", "tensor_paralel", "did you mean space.tensor_parallel?"),
        ("micro_batch_size: 3", "micro_batch_size", "did you mean space.micro_batch_size?"),
        ("launcher: {pbs: {}}", "launcher.pbs", "remove it"),
        ("baseline: {tensor_paralel: 2}", "baseline.tensor_paralel", "did you mean tensor_parallel?"),
        ("Search: {}", "Search", "did you mean search?"),
        ("measure: {time_limit_s: 10m}", "measure.time_limit_s", "did you mean time_limit?"),
    ],
)
def test_an_unknown_key_is_refused_with_a_suggestion(tmp_path: Path, text: str, key: str, fix: str):
    problem = refusal(tmp_path, MINIMAL + text + "\n")
    assert (problem.code, problem.key, problem.fix, problem.line) == ("unknown_key", key, fix, 7)


@pytest.mark.parametrize("where", ["  data_parallel: 2\n", "baseline: {data_parallel: 2}\n"])
def test_data_parallel_is_refused_with_why(tmp_path: Path, where: str):
    problem = refusal(tmp_path, MINIMAL + where)
    assert problem.code == "refused_key"
    assert "data_parallel is derived" in problem.rule


@pytest.mark.bad_input(6)
@pytest.mark.parametrize(
    ("line", "key", "rule"),
    [
        ("tracking: {enabled: yes}", "tracking.enabled", "true or false"),
        ("tracking: {enabled: on}", "tracking.enabled", "true or false"),
        ("search: {seed: 08}", "search.seed", "a whole number"),
        ("search: {seed: 1e3}", "search.seed", "a whole number"),
        ("search: {seed: '3'}", "search.seed", "a whole number"),
        ("search: {seed: 1_000}", "search.seed", "a whole number"),
        ("search: {seed: 12:30:00}", "search.seed", "a whole number"),
        ("trainer: {python: 3.11}", "trainer.python", "text"),
        ("constraints:", "constraints", "keys and values"),
        ("constraints: [1]", "constraints", "keys and values"),
    ],
)
def test_a_value_of_another_type_is_refused(tmp_path: Path, line: str, key: str, rule: str):
    problem = refusal(tmp_path, MINIMAL + line + "\n")
    assert (problem.code, problem.key, problem.rule, problem.line) == ("type", key, rule, 7)
    assert problem.fix


WITH_A_CLUSTER = MINIMAL.replace("this-machine", "{accelerator: cpu, gpus_per_node: 4, num_nodes: 1}")
COUNTS = (
    *("global_batch_size", "space.tensor_parallel", "space.micro_batch_size", "cluster.gpus_per_node"),
    *("search.max_trials", "search.parallel_trials", "search.finalist_repeats"),
)


@pytest.mark.bad_input(12, 18)
@pytest.mark.parametrize("key", COUNTS)
def test_a_count_is_a_whole_number_of_at_least_one(tmp_path: Path, key: str):
    for text, value in [("0", 0), ("-1", -1), ("2.0", 2.0), ("true", True), ("'2'", "2"), ("1_000", "1_000")]:
        problem = refusal(tmp_path, WITH_A_CLUSTER, f"{key}={text}")
        assert (problem.key, problem.value) == (key, value), text
        assert problem.rule in ("at least 1", "a whole number"), text
        assert problem.fix


@pytest.mark.parametrize("key", ["global_batch_size", "space.tensor_parallel", "search.max_trials"])
def test_a_count_that_is_null_is_none(tmp_path: Path, key: str):
    problem = refusal(tmp_path, MINIMAL, f"{key}=null")
    assert (problem.key, problem.value, problem.rule) == (key, None, "a whole number")


@pytest.mark.bad_input(13)
@pytest.mark.parametrize("key", [*COUNTS, "search.budget_node_hours", "measure.memory_limit_gib"])
def test_absurd_numbers_are_refused(tmp_path: Path, key: str):
    for text in ("1000000000000", "1e12", ".nan", ".inf", "-.inf", "1_000", "9" * 40):
        problem = refusal(tmp_path, WITH_A_CLUSTER, f"{key}={text}")
        assert (problem.key, problem.code in ("bounds", "type")) == (key, True), text
        assert problem.value is not None
        assert problem.fix


@pytest.mark.bad_input(13)
@pytest.mark.parametrize("value", ["0", "-1", ".nan", ".inf", "1e12", "true", "4GiB"])
def test_memory_to_stay_free_is_a_number_of_gib(tmp_path: Path, value: str):
    problem = refusal(tmp_path, MINIMAL, "measure.memory_limit_gib=8", f"constraints.min_free_memory_gib={value}")
    assert (problem.key, problem.code in ("bounds", "type")) == ("constraints.min_free_memory_gib", True)


def test_more_memory_to_stay_free_than_there_is_is_refused_with_both_numbers(tmp_path: Path):
    asked = "constraints.min_free_memory_gib=8"
    problem = refusal(tmp_path, MINIMAL, "measure.memory_limit_gib=8", asked)
    assert (problem.key, problem.value) == ("constraints.min_free_memory_gib", 8)
    assert "a rank can allocate 8 GiB" in problem.message
    assert problem.fix == "less than 8"
    on_a100 = MINIMAL.replace("this-machine", "{accelerator: a100-40gb, gpus_per_node: 4, num_nodes: 1}")
    assert "can allocate 37.99 GiB" in refusal(tmp_path, on_a100, "constraints.min_free_memory_gib=38").message


def test_memory_to_stay_free_of_what_nobody_knows_is_refused_with_what_to_set(tmp_path: Path):
    problem = refusal(tmp_path, MINIMAL, "constraints.min_free_memory_gib=1")
    assert "the memory of a rank on cpu is unknown" in problem.message
    assert problem.fix == "set measure.memory_limit_gib"
    theirs = ("trainer.kind=megatron-lm", "trainer.script=pretrain_gpt.py")
    problem = refusal(tmp_path, MINIMAL, "constraints.min_free_memory_gib=1", *theirs)
    assert problem.fix.startswith("remove it")


@pytest.mark.parametrize("patterns", ["deepspeed", "deepspeed-pipeline", "{step_time_s: 'took ([0-9.]+) s'}"])
def test_memory_to_stay_free_of_trials_that_cannot_say_what_they_took_is_refused(tmp_path: Path, patterns: str):
    on_a100 = MINIMAL.replace("this-machine", "{accelerator: a100-40gb, gpus_per_node: 4, num_nodes: 1}")
    theirs = ("trainer.kind=command", "trainer.template='train --tp {tensor_parallel}'")
    asked = "constraints.min_free_memory_gib=4"
    problem = refusal(tmp_path, on_a100, asked, *theirs, f"trainer.patterns={patterns}")
    assert (problem.code, problem.key) == ("contradiction", "constraints.min_free_memory_gib")
    told = "trainer.patterns={step_time_s: 'took ([0-9.]+) s', memory_gib: 'peak ([0-9.]+)'}"
    assert loaded(tmp_path, on_a100, asked, *theirs, told).memory_headroom is not None


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
def test_an_axis_that_leads_nowhere_is_refused_at_its_line(tmp_path: Path, axis: str, key: str):
    problem = refusal(tmp_path, MINIMAL + f"  micro_batch_size: {axis}\n")
    assert (problem.key, problem.line) == (f"space.micro_batch_size{key}", 7)
    assert problem.rule
    assert problem.fix


@pytest.mark.bad_input(17)
def test_an_unknown_objective_is_refused_with_the_known_ones(tmp_path: Path):
    problem = refusal(tmp_path, MINIMAL + "objective: tokens_per_second\n")
    assert (
        problem.rule == "one of tokens_per_sec, tokens_per_sec_per_gpu, node_hours_per_billion_tokens, joules_per_token"
    )
    assert problem.fix == "did you mean tokens_per_sec?"


@pytest.mark.bad_input(17)
@pytest.mark.parametrize(
    ("given", "key", "words"),
    [
        ("[]", "objective", "is an empty list"),
        ("[tokens_per_sec, tokens_per_sec]", "objective", "has a duplicate"),
        ("[tokens_per_sec, speed]", "objective[1]", "speed"),
        ("{tokens_per_sec: 1}", "objective", ""),
        ("3", "objective", "3"),
    ],
)
def test_a_list_of_objectives_holds_different_known_ones(tmp_path: Path, given: str, key: str, words: str):
    problem = refusal(tmp_path, MINIMAL + f"objective: {given}\n")
    assert problem.key == key
    assert words in problem.message
    assert "tokens_per_sec" in problem.rule + problem.fix or problem.rule.startswith("one objective, or a list")


@pytest.mark.bad_input(18)
@pytest.mark.parametrize("key", ["max_trials", "parallel_trials", "finalist_repeats", "budget_node_hours"])
@pytest.mark.parametrize("value", [0, -3])
def test_limits_are_positive(tmp_path: Path, key: str, value: int):
    problem = refusal(tmp_path, MINIMAL, f"search.{key}={value}")
    assert (problem.code, problem.key, problem.value) == ("bounds", f"search.{key}", value)


@pytest.mark.bad_input(19)
@pytest.mark.parametrize(
    ("measure", "key"),
    [
        ("{max_warmup_steps: 40}", "max_warmup_steps"),
        ("{max_steps: 10, max_warmup_steps: 10}", "max_warmup_steps"),
        ("{max_steps: 6, min_steps: 7}", "min_steps"),
        ("{min_steps: 4}", "min_steps"),
        ("{min_steps: 50}", "min_steps"),
        ("{ci_relative_width: 0}", "ci_relative_width"),
    ],
)
def test_too_little_to_measure_is_refused(tmp_path: Path, measure: str, key: str):
    problem = refusal(tmp_path, MINIMAL + f"measure: {measure}\n")
    assert (problem.key, f"{key}: {problem.value}" in measure) == (f"measure.{key}", True)
    assert problem.rule
    assert problem.fix


@pytest.mark.bad_input(20)
def test_a_time_limit_in_a_wrong_form_is_refused_with_the_grammar(tmp_path: Path):
    for text in ("soon", "10:99", "0", "1.5", "1h30m", "-5", "400-00", "12:30:00:00"):
        problem = refusal(tmp_path, MINIMAL, f"measure.time_limit={text}")
        assert (problem.code, problem.key, str(problem.value)) == ("duration", "measure.time_limit", text)
        assert "duration" in problem.rule


@pytest.mark.bad_input(27)
@pytest.mark.parametrize(
    "line", ["ledger: {url: 'postgresql://me:hunter2@db/l'}", "tracking: {mlflow_uri: 'https://me:hunter2@host'}"]
)
def test_credentials_in_an_address_are_refused_and_not_repeated(tmp_path: Path, line: str):
    problem = refusal(tmp_path, MINIMAL + line + "\n")
    assert (problem.code, problem.line) == ("secret", 7)
    assert "hunter2" not in str(problem)


@pytest.mark.bad_input(31)
@pytest.mark.parametrize(
    "name",
    [
        *("a/b", "../a", "..", ".a", "-a", "A", "a_b", "a b", "a" * 42, "", "x$(id)"),
        *("\N{CYRILLIC SMALL LETTER A}bc", "a\nb", "x\n"),
    ],
)
def test_a_search_name_outside_its_pattern_is_refused(tmp_path: Path, name: str):
    text = MINIMAL.replace("name: small", f"name: {json.dumps(name, ensure_ascii=False)}")
    problem = refusal(tmp_path, text)
    assert (problem.code, problem.rule) in [
        ("pattern", "1 to 41 characters of a-z, 0-9 and -, not beginning with -"),
        ("control_character", "text has only printable characters"),
    ]


@pytest.mark.parametrize("address", ["h:0", "h:65536", "-h:1", "--block:1", "h", "", "h:1 ", "automatic", "h:1x"])
def test_an_address_is_auto_or_a_host_and_a_port(tmp_path: Path, address: str):
    problem = refusal(tmp_path, MINIMAL, f"launcher.address={json.dumps(address)}")
    assert (problem.code, problem.rule) == ("pattern", "auto, or host:port with a port from 1 to 65535")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("global_batch_size=null", "is null"),
        ("search.seed=true", "is true"),
        ("measure.time_limit=false", "is false"),
        ("space.tensor_parallel=[null]", "is null"),
    ],
)
def test_a_value_is_reported_in_the_words_of_the_file(tmp_path: Path, override: str, message: str):
    assert refusal(tmp_path, MINIMAL, override).message == message


def test_a_control_character_in_a_key_is_reported_with_its_line(tmp_path: Path):
    problem = refusal(tmp_path, MINIMAL + '"a\\x07": 3\n')
    assert (problem.code, problem.key, problem.line) == ("control_character", None, 7)


@pytest.mark.parametrize("chunks", ["", "  virtual_pipeline_stages: 1\n"])
def test_an_interleaved_schedule_of_one_chunk_is_refused_and_not_taken_for_1f1b(tmp_path: Path, chunks: str):
    axis = "  pipeline_schedule: [1f1b, interleaved_1f1b]\n"
    problem = refusal(tmp_path, MINIMAL + chunks + axis)
    assert (problem.code, problem.key, problem.value) == (
        "contradiction",
        "space.pipeline_schedule",
        "interleaved_1f1b",
    )
    assert loaded(tmp_path, MINIMAL + axis + "  virtual_pipeline_stages: [1, 2]\n").space.virtual_pipeline_stages


@pytest.mark.parametrize(("chunks", "listed"), [("", "1"), ("1", "1"), ("[1, 4]", "1 or 4")])
def test_a_v_schedule_without_two_chunks_is_refused_with_the_fix(tmp_path: Path, chunks: str, listed: str):
    axes = "  pipeline_schedule: [1f1b, zbv]\n" + (f"  virtual_pipeline_stages: {chunks}\n" if chunks else "")
    problem = refusal(tmp_path, MINIMAL + axes)
    assert (problem.key, problem.value) == ("space.pipeline_schedule", "zbv")
    assert problem.message == f"is zbv with virtual_pipeline_stages {listed}"
    assert problem.fix == "set virtual_pipeline_stages to 2, or use 1f1b"
    two = "  pipeline_schedule: [1f1b, zbv]\n  virtual_pipeline_stages: [1, 2]\n"
    assert loaded(tmp_path, MINIMAL + two).space.pipeline_schedule == ("1f1b", "zbv")


@pytest.mark.parametrize(
    ("name", "value", "kind"), [("recompute_modules", "ops", "selective"), ("recompute_layers", 2, "full")]
)
def test_what_is_recomputed_is_refused_where_nothing_is_recomputed_so(
    tmp_path: Path, name: str, value: object, kind: str
):
    axis = f"  {name}: {value}\n"
    problem = refusal(tmp_path, MINIMAL + axis)
    assert (problem.code, problem.key, problem.value) == ("contradiction", f"space.{name}", value)
    assert problem.message == f"has no effect: space.activation_checkpointing has no {kind}"
    assert problem.fix == f"remove it, or add {kind} to space.activation_checkpointing"
    listed = f"  activation_checkpointing: [none, {kind}]\n"
    assert getattr(loaded(tmp_path, MINIMAL + axis + listed).space, name) == (value,)


def test_what_the_baseline_alone_recomputes_may_be_given_for_all(tmp_path: Path):
    text = MINIMAL + "  recompute_modules: mlp\nbaseline: {activation_checkpointing: selective}\n"
    assert loaded(tmp_path, text).space.recompute_modules == ("mlp",)


def test_a_baseline_with_an_interleaved_schedule_of_one_chunk_is_refused(tmp_path: Path):
    text = MINIMAL + "baseline: {pipeline_parallel: 2, pipeline_schedule: interleaved_1f1b}\n"
    problem = refusal(tmp_path, text)
    assert (problem.code, problem.key, problem.line) == ("contradiction", "baseline.pipeline_schedule", 7)


def test_a_baseline_on_more_nodes_than_there_are_is_told_so_first(tmp_path: Path):
    problem = refusal(tmp_path, MINIMAL + "baseline: {num_nodes: 3}\n")
    assert (problem.code, problem.message) == ("world", "num_nodes is 3, but the cluster has 1")
    assert problem.fix


def test_an_empty_tracking_address_is_said_to_be_empty(tmp_path: Path):
    assert refusal(tmp_path, MINIMAL, 'tracking.mlflow_uri=""').rule == "a tracking address must not be empty"


@pytest.mark.bad_input(34)
@pytest.mark.parametrize("url", ["mysql://db/l", "ledger.db", "sqllite:///l.db", "/home/me/l.db"])
def test_a_ledger_of_an_unknown_kind_is_refused(tmp_path: Path, url: str):
    problem = refusal(tmp_path, MINIMAL, f"ledger.url={url}")
    assert (problem.code, problem.key) == ("ledger_url", "ledger.url")


@pytest.mark.bad_input(35)
@pytest.mark.parametrize(
    ("uri", "fix"),
    [
        ("file:///tmp/mlruns", "sqlite:///mlflow.db"),
        ("./mlruns", "sqlite:///mlflow.db"),
        ("mlruns", "sqlite:///mlflow.db"),
        ("htttp://127.0.0.1:5000", "did you mean http?"),
        ("sqllite:///mlflow.db", "did you mean sqlite?"),
        ("postgrsql://db/mlflow", "did you mean postgresql?"),
        ("http://", "http://127.0.0.1:5000"),
    ],
)
def test_a_store_mlflow_does_not_have_is_refused_with_the_fix(tmp_path: Path, uri: str, fix: str):
    problem = refusal(tmp_path, MINIMAL, f"tracking.mlflow_uri='{uri}'")
    assert (problem.code, problem.key, problem.value) == ("mlflow_uri", "tracking.mlflow_uri", uri)
    assert fix in problem.fix


@pytest.mark.bad_input(49)
def test_an_unknown_path_in_set_is_refused_with_a_suggestion(tmp_path: Path):
    problem = refusal(tmp_path, MINIMAL, "serch.max_trials=3")
    assert (problem.file, problem.key, problem.fix) == ("--set", "serch", "did you mean search?")


@pytest.mark.parametrize("key", ["work_dir", "cluster"])
def test_the_home_of_somebody_who_is_not_there_is_refused(tmp_path: Path, key: str):
    problem = refusal(tmp_path, MINIMAL, f"{key}=~nobody-here/x")
    assert (problem.code, problem.key, problem.file) == ("path", key, "--set")


@pytest.mark.parametrize(
    ("launcher", "key"),
    [
        ("{kind: simulated}", "launcher.table"),
        ("{kind: local, address: 'h:1'}", "launcher.address"),
        ("{kind: ray, table: t.csv}", "launcher.table"),
        ("{kind: local, queue_wait_s: 3}", "launcher.queue_wait_s"),
        ("{kind: ray, address: 'http://h:1'}", "launcher.address"),
        ("{kind: pbs}", "launcher.kind"),
        ("{kind: simulated, table: missing.csv}", "launcher.table"),
        ("{kind: slurm_pilot, slurm: {shared_jobs: true}}", "launcher.slurm.shared_jobs"),
        ("{slurm: {shared_jobs: maybe}, kind: slurm}", "launcher.slurm.shared_jobs"),
    ],
)
def test_a_launcher_with_keys_of_another_kind_is_refused(tmp_path: Path, launcher: str, key: str):
    assert refusal(tmp_path, MINIMAL + f"launcher: {launcher}\n").key == key


def test_shared_jobs_of_another_launcher_are_refused_with_the_launcher_that_has_them(tmp_path: Path):
    problem = refusal(tmp_path, MINIMAL + "launcher:\n  kind: local\n  slurm:\n    shared_jobs: true\n")
    assert (problem.code, problem.key, problem.value) == ("contradiction", "launcher.slurm.shared_jobs", True)
    assert (problem.rule, problem.fix) == (
        "slurm.shared_jobs belongs to kind slurm",
        "remove it, or set launcher.kind to slurm",
    )
    assert problem.line == MINIMAL.count("\n") + 4


def test_an_unknown_preset_is_refused_with_a_suggestion(tmp_path: Path):
    problem = refusal(tmp_path, MINIMAL, "model=gpt2-tinny")
    assert (problem.code, problem.key, problem.fix) == ("unknown_preset", "model", "did you mean gpt2-tiny?")


@pytest.mark.bad_input(8)
@pytest.mark.parametrize(
    ("model", "key"),
    [
        ("{num_layers: 2, hidden_size: 30, num_attention_heads: 4, vocab_size: 8, seq_length: 8}", "model.hidden_size"),
        (
            "{num_layers: 2, hidden_size: 32, num_attention_heads: 4, num_key_value_heads: 3, vocab_size: 8,"
            " seq_length: 8}",
            "model.num_attention_heads",
        ),
        (
            "{num_layers: 2, hidden_size: 32, num_attention_heads: 4, gated_mlp: true, vocab_size: 8, seq_length: 8}",
            "model.ffn_hidden_size",
        ),
    ],
)
def test_a_model_whose_sizes_contradict_each_other_is_refused(tmp_path: Path, model: str, key: str):
    problem = refusal(tmp_path, MINIMAL.replace("gpt2-tiny", model))
    assert (problem.key, problem.line) == (key, 2)


@pytest.mark.bad_input(8)
def test_heads_that_do_not_share_the_width_are_reported_with_both_numbers(tmp_path: Path):
    model = "{num_layers: 2, hidden_size: 32, num_attention_heads: 3, vocab_size: 8, seq_length: 8}"
    problem = refusal(tmp_path, MINIMAL.replace("gpt2-tiny", model))
    assert (problem.value, problem.rule) == (32, "hidden_size 32 must be a multiple of num_attention_heads 3")


@pytest.mark.bad_input(21)
def test_a_world_of_another_size_than_nodes_times_gpus_has_no_key(tmp_path: Path):
    problem = refusal(tmp_path, WITH_A_CLUSTER, "cluster.num_gpus=3")
    assert problem.key == "cluster.num_gpus"
    assert "gpus_per_node, num_nodes" in problem.rule


@pytest.mark.bad_input(52)
@pytest.mark.parametrize(
    ("overrides", "key", "rule"),
    [
        (("model.num_layers=10001",), "model.num_layers", "at most 10000"),
        (("cluster.gpus_per_node=100000", "cluster.num_nodes=11"), "cluster.num_nodes", "at most 1000000 accelerators"),
    ],
)
def test_sizes_that_no_plan_would_come_to_an_end_with_are_refused(tmp_path: Path, overrides, key: str, rule: str):
    model = "{num_layers: 2, hidden_size: 32, num_attention_heads: 2, vocab_size: 8, seq_length: 8}"
    problem = refusal(tmp_path, WITH_A_CLUSTER.replace("gpt2-tiny", model), *overrides)
    assert (problem.key, rule in problem.rule, bool(problem.fix)) == (key, True, True)


@pytest.mark.bad_input(53)
@pytest.mark.parametrize(
    ("overrides", "key", "fix"),
    [
        (["space.engine=[torch, megatron-core]"], "space.engine", "give it one value"),
        (
            ["space.engine=megatron-core", "baseline={engine: torch}"],
            "baseline.engine",
            "use megatron-core, as the layouts that it is compared with",
        ),
        (
            ["space.engine=torch", "baseline={engine: megatron-core}"],
            "baseline.engine",
            "use torch, as the layouts that it is compared with",
        ),
    ],
)
def test_engines_are_not_compared_where_a_cpu_emulates_the_gpu_of_one(tmp_path: Path, overrides, key, fix):
    problem = refusal(tmp_path, MINIMAL, *overrides)
    assert (problem.code, problem.key, problem.value) == ("emulated_engine", key, ["megatron-core", "torch"])
    assert problem.message == "compares megatron-core and torch on cpu, which emulates the GPU of megatron-core"
    assert (problem.fix, "only on the device that they are written for" in problem.rule) == (fix, True)
    on_gpus = "cluster={accelerator: a100-80gb, gpus_per_node: 4, num_nodes: 1}"
    assert loaded(tmp_path, MINIMAL, *overrides, on_gpus).cluster.accelerator.name == "a100-80gb"


def test_engines_that_run_on_a_cpu_as_they_are_are_compared_there(tmp_path: Path):
    assert loaded(tmp_path, MINIMAL, "space.engine=[torch, deepspeed]").space.given_axes()["engine"]
    alone = loaded(tmp_path, MINIMAL, "space.engine=megatron-core", "baseline={}")
    assert alone.baseline is not None
    assert alone.baseline.engine == "megatron-core"


_ON_GPUS = "cluster={accelerator: a100-80gb, gpus_per_node: 4, num_nodes: 1}"


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ([], "has joules_per_token with cluster.accelerator cpu"),
        ([_ON_GPUS, "trainer={kind: megatron-lm, script: p.py}"], "has joules_per_token with trainer.kind megatron-lm"),
        ([_ON_GPUS, "launcher={kind: simulated, table: t.csv}"], "has joules_per_token with launcher.kind simulated"),
    ],
)
def test_energy_is_no_objective_where_nothing_measures_it(tmp_path: Path, overrides, words):
    found = refusals(tmp_path, MINIMAL + "objective: [tokens_per_sec, joules_per_token]\n", *overrides)
    assert words in [problem.message for problem in found if problem.key == "objective"]


_IN_IMAGE = "container: {runtime: pyxis, image: a.sqsh}"


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["launcher={kind: simulated, table: t.csv}"], "with launcher.kind simulated"),
        (["search.parallel_trials=2"], "with parallel trials"),
        ([f"launcher={{kind: slurm_pilot, slurm: {{{_IN_IMAGE}}}}}"], "with trials that share a job"),
        (["launcher={kind: slurm, slurm: {container: [shifter, --]}}"], "with a container's command"),
    ],
)
def test_a_second_stack_that_cannot_be_measured_in_turns_is_refused(tmp_path: Path, overrides, words):
    found = refusals(tmp_path, MINIMAL, "search.against=/opt/b/bin/python", *overrides)
    assert any(words in problem.message for problem in found if problem.key == "search.against")


def test_an_experiment_tries_its_layouts_with_both_stacks_and_measures_each_run_to_its_end(tmp_path: Path):
    spec = loaded(tmp_path, MINIMAL, "search.against=/opt/b/bin/python", "search.against_layouts=4")
    assert (spec.search.max_trials, spec.search.finalists, spec.measure.early_stopping) == (8, 8, False)
    assert other_software(spec) == {"python": "/opt/b/bin/python"}
    in_image = loaded(tmp_path, MINIMAL, f"launcher={{kind: slurm, slurm: {{{_IN_IMAGE}}}}}", "search.against=b.sqsh")
    assert other_software(in_image) == {"image": str(tmp_path / "b.sqsh")}


def test_a_number_of_layouts_without_a_second_stack_is_refused(tmp_path: Path):
    [problem] = refusals(tmp_path, MINIMAL, "search.against_layouts=4")
    assert (problem.key, problem.value, problem.message) == ("search.against_layouts", 4, "has no effect")


def test_the_path_of_a_second_stack_starts_from_the_files_folder(tmp_path: Path):
    """Ranks start in other folders."""

    def against(given: str, *overrides: str) -> str | None:
        return loaded(tmp_path, f"{MINIMAL}search: {{against: '{given}'}}\n", *overrides).search.against

    assert against("venv/bin/python") == str(tmp_path / "venv/bin/python")
    assert against("python3.12") == "python3.12", "a name is looked up on the node's PATH"
    image = f"launcher={{kind: slurm, slurm: {{{_IN_IMAGE}}}}}"
    assert against("./b.sqsh", image) == str(tmp_path / "b.sqsh")
    assert against("nvcr.io#nvidia/pytorch:25.10", image) == "nvcr.io#nvidia/pytorch:25.10"
