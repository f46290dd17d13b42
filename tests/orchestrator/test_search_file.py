from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from orchestrator.search_file import (
    SearchSpec,
    candidates_of,
    json_schema,
    load_search_file,
    located,
    require_affordable,
)
from orchestrator.search_reference import reference
from orchestrator.search_spec import SEARCH_SCHEMA
from search_spaces import presets, space
from search_spaces.errors import InputError, Problem
from search_spaces.layout import Layout
from search_spaces.measured import render_table
from search_spaces.memory_floor import MemoryFloor
from tests.search_spaces.tables import only
from trials.ranking import Objective

MINIMAL = """\
name: small
model: gpt2-tiny
cluster: this-machine
global_batch_size: 16
space:
  tensor_parallel: [1, 2]
"""


def write(folder: Path, text: str = MINIMAL) -> Path:
    path = folder / "search.yaml"
    path.write_text(text)
    return path


def loaded(folder: Path, text: str = MINIMAL, *overrides: str) -> SearchSpec:
    return load_search_file(write(folder, text), overrides)


def problems(folder: Path, text: str = MINIMAL, *overrides: str) -> tuple[Problem, ...]:
    with pytest.raises(InputError) as caught:
        loaded(folder, text, *overrides)
    return caught.value.problems


def the_problem(folder: Path, text: str = MINIMAL, *overrides: str) -> Problem:
    (problem,) = problems(folder, text, *overrides)
    return problem


def test_a_few_lines_are_a_search_and_the_rest_is_default(tmp_path: Path):
    spec = loaded(tmp_path)
    assert spec.model.ffn_hidden_size == 4 * spec.model.hidden_size
    assert spec.cluster.num_gpus == 4
    assert spec.objective is Objective.TOKENS_PER_SEC
    assert (spec.search.sampler, spec.search.max_trials, spec.search.parallel_trials) == ("guided", 30, 1)
    assert (spec.launcher.kind, spec.tracking.experiment, spec.trainer.kind) == ("ray", "parlay", "parlay")
    assert spec.measure.time_limit_s == 600
    assert spec.work_dir == Path.cwd() / "runs"
    assert spec.baseline is None
    assert len(candidates_of(spec).feasible) == 2


def test_the_quickstart_has_many_layouts_and_a_legal_baseline_among_them():
    path = Path(presets.__file__).parent / "searches" / "quickstart.yaml"
    spec = load_search_file(path)
    layouts = candidates_of(spec).feasible
    assert spec.baseline in layouts
    assert len(layouts) > spec.search.max_trials >= 8
    assert {layout.global_batch_size for layout in layouts} == {spec.global_batch_size}
    for field in ("tensor_parallel", "pipeline_parallel", "data_parallel", "micro_batch_size", "grad_accum_steps"):
        assert len({getattr(layout, field) for layout in layouts}) >= 3


def test_a_spec_is_frozen(tmp_path: Path):
    spec = loaded(tmp_path)
    with pytest.raises(FrozenInstanceError):
        spec.name = "other"
    with pytest.raises(ValueError, match="frozen"):
        spec.search.max_trials = 1


EVERYTHING = """\
schema: parlay.search/1
name: every-key
model:
  num_layers: 4
  hidden_size: 128
  num_attention_heads: 8
  vocab_size: 512
  seq_length: 64
cluster: {accelerator: a100-80gb, gpus_per_node: 4, num_nodes: 2}
global_batch_size: 64
baseline: {tensor_parallel: 2, micro_batch_size: 4, precision: fp32}
space:
  num_nodes: [1, 2]
  tensor_parallel: {min: 1, max: 4, factor: 2}
  micro_batch_size: {min: 2, max: 8, step: 2}
  bucket_mib: [null, 25]
  engine: [torch, deepspeed]
  allow_tensor_parallel_across_nodes: true
objective: node_hours_per_billion_tokens
constraints: {max_nodes: 2, min_free_memory_gib: 0.5}
search: {sampler: grid, max_trials: 5, budget_node_hours: 1.5, max_wall_time: 1-12, seed: 7, sample_space: true,
  finalists: 4, finalist_repeats: 3}
measure: {min_steps: 5, max_steps: 10, max_warmup_steps: 3, time_limit: 90s, memory_limit_gib: 1.5}
trainer: {kind: parlay, python: /opt/python}
launcher: {kind: ray, address: "10.0.0.1:6379"}
tracking: {enabled: false, mlflow_uri: "http://127.0.0.1:5000", experiment: ours}
ledger: {url: "postgresql://parlay@db/ledger"}
work_dir: /scratch/runs
"""


def test_every_key_arrives(tmp_path: Path):
    spec = loaded(tmp_path, EVERYTHING)
    assert spec.space.tensor_parallel == (1, 2, 4)
    assert spec.space.micro_batch_size == (2, 4, 6, 8)
    assert spec.space.bucket_mib == (None, 25)
    assert spec.search.max_wall_time_s == 36 * 3600
    assert (spec.search.finalists, spec.search.finalist_repeats) == (4, 3)
    assert spec.measure.time_limit_s == 90
    assert spec.measure.memory_limit_gib == 1.5
    assert spec.trainer.python == "/opt/python"
    assert spec.work_dir == Path("/scratch/runs")
    assert spec.constraints.max_nodes == 2
    assert spec.memory_floor == MemoryFloor(capacity_gib=1.5, min_free_gib=0.5)


@pytest.mark.parametrize("text", [MINIMAL, EVERYTHING])
def test_a_search_written_down_is_read_back_the_same(tmp_path: Path, text: str):
    spec = loaded(tmp_path, text)
    written = json.loads(json.dumps(spec.to_json(), allow_nan=False))
    assert written["schema"] == SEARCH_SCHEMA
    assert SearchSpec.from_json(written) == spec
    assert candidates_of(SearchSpec.from_json(written)).feasible == candidates_of(spec).feasible


def test_what_is_written_down_holds_no_name_of_a_preset_and_every_axis(tmp_path: Path):
    written = loaded(tmp_path).to_json()
    assert written["model"]["num_layers"] == 4
    assert written["cluster"]["accelerator"]["name"] == "cpu"
    assert written["space"]["engine"] == ["torch"]
    assert written["search"]["max_trials"] == 30


@pytest.mark.parametrize("schema", ["parlay.search/2", "parlay.recipe/1", None])
def test_a_newer_or_other_search_json_is_refused(tmp_path: Path, schema: str | None):
    with pytest.raises(InputError, match=r"this Parlay reads parlay\.search/1"):
        SearchSpec.from_json(loaded(tmp_path).to_json() | {"schema": schema})


def test_the_search_record_is_read_like_search_json(tmp_path: Path):
    spec = loaded(tmp_path)
    assert SearchSpec.from_json(spec.to_json() | {"folder": "/runs/small-abcdef"}) == spec


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ({"model": None}, "is no search"),
        ({"cluster": {"gpus_per_node": 4}}, "accelerator is missing"),
        ({"measure": {"min_step": 3}}, "min_step"),
        ({"search": []}, "keys and values"),
        ({"baseline": {"tensor": 1}}, "unknown layout field 'tensor'"),
        ({"objective": "speed"}, "'speed' is not a valid Objective"),
        ({"candidates": 3}, "is no search"),
        ({"name": 3}, "name is 3"),
        ({"global_batch_size": "16"}, "global_batch_size is '16'"),
        ({"work_dir": None}, "work_dir is null"),
    ],
)
def test_a_damaged_search_json_is_refused_with_what_is_wrong(tmp_path: Path, damage, words: str):
    with pytest.raises(InputError, match=words):
        SearchSpec.from_json(loaded(tmp_path).to_json() | damage)


@pytest.mark.parametrize("key", ["name", "model", "space", "launcher", "baseline", "candidates", "work_dir"])
def test_a_search_json_without_one_of_its_keys_is_refused_by_its_name(tmp_path: Path, key: str):
    written = loaded(tmp_path).to_json()
    del written[key]
    with pytest.raises(InputError, match=f"{key} is missing"):
        SearchSpec.from_json(written)


@pytest.mark.parametrize("data", [[], None, "", {}, {"name": "small"}], ids=json.dumps)
def test_what_is_no_search_json_is_refused(data: Any):
    with pytest.raises(InputError):
        SearchSpec.from_json(data)


def test_the_text_that_was_read_is_kept_and_not_written_down(tmp_path: Path):
    spec = loaded(tmp_path, MINIMAL, "search.max_trials=3")
    assert spec.yaml_text == MINIMAL
    assert "yaml_text" not in spec.to_json()


def test_an_error_found_later_gets_file_and_line_of_its_key(tmp_path: Path):
    spec = loaded(tmp_path, MINIMAL + "search: {max_trials: 3,\n  seed: 2}\n", "launcher.kind=local")
    keys = ["search.seed", "search.parallel_trials", "space.tensor_parallel[1]", "launcher.kind", "trainer.python"]
    found = located(InputError(*(Problem("x", "x", key=key) for key in keys)), spec)
    file = str(tmp_path / "search.yaml")
    assert [(p.file, p.line) for p in found.problems] == [
        (file, 8),
        (file, 7),
        (file, 6),
        ("--set", None),
        (None, None),
    ]
    table = InputError.of("cell", "is bad", key="search", file="table.csv")
    assert located(table, spec).problems == table.problems
    assert located(table, SearchSpec.from_json(spec.to_json())).problems == table.problems


def test_a_budget_below_one_trial_is_refused_with_the_numbers(tmp_path: Path):
    text = MINIMAL.replace("this-machine", "{accelerator: cpu, gpus_per_node: 4, num_nodes: 4}")
    text += "  num_nodes: [2, 4]\nsearch:\n  budget_node_hours: 0.25\n"
    spec = loaded(tmp_path, text)
    with pytest.raises(
        InputError, match=r"0\.25 node-hours do not pay for one trial: num_nodes 2 x \d+ s = 0\.\d+ "
    ) as caught:
        require_affordable(spec, candidates_of(spec))
    assert caught.value.problems[0].line == 9
    for override in ("search.budget_node_hours=1", "search.budget_node_hours=null"):
        affordable = loaded(tmp_path, text, override)
        require_affordable(affordable, candidates_of(affordable))


def test_a_newer_search_file_is_refused(tmp_path: Path):
    assert the_problem(tmp_path, "schema: parlay.search/2\n" + MINIMAL).rule == "one of parlay.search/1"


def test_the_baseline_takes_what_it_does_not_say_from_the_space_and_the_batch(tmp_path: Path):
    text = MINIMAL + "  engine: deepspeed\nbaseline: {tensor_parallel: 2, micro_batch_size: 4}\n"
    baseline = loaded(tmp_path, text).baseline
    assert baseline == Layout(
        tensor_parallel=2, data_parallel=2, micro_batch_size=4, grad_accum_steps=2, engine="deepspeed"
    )


@pytest.mark.bad_input(7, 10)
@pytest.mark.parametrize(
    ("baseline", "code", "words"),
    [
        ("tensor_parallel: 3", "world", "tensor 3 x pipeline 1 = 3 ranks do not divide the world: num_nodes 1 x"),
        ("micro_batch_size: 5", "batch", "micro batch 5 x data 4 = 20 sequences do not divide the global batch 16"),
    ],
)
def test_rows_7_and_10_a_baseline_that_does_not_come_out_is_refused_with_all_numbers(tmp_path, baseline, code, words):
    problem = the_problem(tmp_path, MINIMAL + f"baseline:\n  {baseline}\n")
    assert (problem.code, problem.key, problem.line) == (code, "baseline", 7)
    assert words in problem.message


@pytest.mark.bad_input(10)
def test_row_10_a_baseline_of_another_global_batch_is_refused(tmp_path: Path):
    spec = loaded(tmp_path, MINIMAL + "baseline: {micro_batch_size: 1, grad_accum_steps: 3}\n")
    with pytest.raises(InputError, match="= 12 sequences, but global_batch_size is 16") as caught:
        candidates_of(spec)
    assert caught.value.problems[0].line == 7


def test_accumulation_as_an_axis_frees_the_global_batch(tmp_path: Path):
    layouts = candidates_of(loaded(tmp_path, MINIMAL + "  grad_accum_steps: [4, 8]\n")).feasible
    assert {layout.global_batch_size for layout in layouts} == {8, 16, 32}


def test_a_problem_says_file_line_key_value_rule_and_fix(tmp_path: Path):
    problem = the_problem(tmp_path, MINIMAL + "search:\n  sampler: deephiper\n")
    assert problem.to_json() == {
        "code": "choice",
        "message": "is 'deephiper'",
        "rule": "one of guided, deephyper, deephyper_filtered, model_order, random, grid",
        "fix": "did you mean deephyper?",
        "key": "search.sampler",
        "value": "deephiper",
        "file": str(tmp_path / "search.yaml"),
        "line": 8,
    }


def test_all_problems_of_all_sections_are_told_at_once_in_the_files_order(tmp_path: Path):
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
    found = problems(tmp_path, text)
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
def test_row_1_an_unknown_key_is_refused_with_a_suggestion(tmp_path: Path, text: str, key: str, fix: str):
    problem = the_problem(tmp_path, MINIMAL + text + "\n")
    assert (problem.code, problem.key, problem.fix, problem.line) == ("unknown_key", key, fix, 7)


@pytest.mark.parametrize("where", ["  data_parallel: 2\n", "baseline: {data_parallel: 2}\n"])
def test_data_parallel_is_refused_with_why(tmp_path: Path, where: str):
    problem = the_problem(tmp_path, MINIMAL + where)
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
def test_row_6_a_value_of_another_type_is_refused(tmp_path: Path, line: str, key: str, rule: str):
    problem = the_problem(tmp_path, MINIMAL + line + "\n")
    assert (problem.code, problem.key, problem.rule, problem.line) == ("type", key, rule, 7)
    assert problem.fix


@pytest.mark.bad_input(12)
@pytest.mark.parametrize("value", ["0", "-1", "2.0", "true", "null", "'2'", "1_000"])
@pytest.mark.parametrize("key", ["space.tensor_parallel", "space.micro_batch_size", "global_batch_size"])
def test_row_12_a_count_is_a_whole_number_of_at_least_one(tmp_path: Path, key: str, value: str):
    problem = the_problem(tmp_path, MINIMAL, f"{key}={value}")
    assert problem.rule in ("at least 1", "a whole number")
    assert problem.key == key


@pytest.mark.bad_input(13)
@pytest.mark.parametrize("value", ["1000000000000", "1e12", ".nan", ".inf", "1_000", "9" * 40])
@pytest.mark.parametrize(
    "key", ["global_batch_size", "space.tensor_parallel", "search.budget_node_hours", "measure.memory_limit_gib"]
)
def test_row_13_absurd_numbers_are_refused(tmp_path: Path, key: str, value: str):
    assert the_problem(tmp_path, MINIMAL, f"{key}={value}").code in ("bounds", "type")


@pytest.mark.bad_input(13)
@pytest.mark.parametrize("value", ["0", "-1", ".nan", ".inf", "1e12", "true", "4GiB"])
def test_row_13_memory_to_stay_free_is_a_number_of_gib(tmp_path: Path, value: str):
    problem = the_problem(tmp_path, MINIMAL, "measure.memory_limit_gib=8", f"constraints.min_free_memory_gib={value}")
    assert (problem.key, problem.code in ("bounds", "type")) == ("constraints.min_free_memory_gib", True)


def test_more_memory_to_stay_free_than_there_is_is_refused_with_both_numbers(tmp_path: Path):
    asked = "constraints.min_free_memory_gib=8"
    problem = the_problem(tmp_path, MINIMAL, "measure.memory_limit_gib=8", asked)
    assert (problem.key, problem.value) == ("constraints.min_free_memory_gib", 8)
    assert "a rank's allocations may take 8 GiB" in problem.message
    assert problem.fix == "less than 8"
    on_a100 = MINIMAL.replace("this-machine", "{accelerator: a100-40gb, gpus_per_node: 4, num_nodes: 1}")
    assert "may take 37.99 GiB" in the_problem(tmp_path, on_a100, "constraints.min_free_memory_gib=38").message


def test_memory_to_stay_free_of_what_nobody_knows_is_refused_with_what_to_set(tmp_path: Path):
    problem = the_problem(tmp_path, MINIMAL, "constraints.min_free_memory_gib=1")
    assert "nobody knows how much memory a rank on cpu has" in problem.message
    assert problem.fix == "set measure.memory_limit_gib"
    theirs = ("trainer.kind=megatron-lm", "trainer.script=pretrain_gpt.py")
    problem = the_problem(tmp_path, MINIMAL, "constraints.min_free_memory_gib=1", *theirs)
    assert problem.fix.startswith("remove it")


@pytest.mark.parametrize("patterns", ["deepspeed", "deepspeed-pipeline", "{step_time_s: 'took ([0-9.]+) s'}"])
def test_memory_to_stay_free_of_trials_that_cannot_say_what_they_took_is_refused(tmp_path: Path, patterns: str):
    on_a100 = MINIMAL.replace("this-machine", "{accelerator: a100-40gb, gpus_per_node: 4, num_nodes: 1}")
    theirs = ("trainer.kind=command", "trainer.template='train --tp {tensor_parallel}'")
    asked = "constraints.min_free_memory_gib=4"
    problem = the_problem(tmp_path, on_a100, asked, *theirs, f"trainer.patterns={patterns}")
    assert (problem.code, problem.key) == ("contradiction", "constraints.min_free_memory_gib")
    told = "trainer.patterns={step_time_s: 'took ([0-9.]+) s', memory_gib: 'peak ([0-9.]+)'}"
    assert loaded(tmp_path, on_a100, asked, *theirs, told).memory_floor is not None


@pytest.mark.bad_input(14)
def test_row_14_an_empty_space_is_refused_before_anything_runs(tmp_path: Path):
    spec = loaded(tmp_path, MINIMAL.replace("[1, 2]", "8"))
    with pytest.raises(InputError, match="world removed 1") as caught:
        candidates_of(spec)
    (problem,) = caught.value.problems
    assert (problem.file, problem.line, problem.key) == (str(tmp_path / "search.yaml"), 5, "space")


@pytest.mark.bad_input(15)
def test_row_15_a_space_over_a_million_points_needs_the_switch_and_is_drawn_by_the_seed(tmp_path, monkeypatch):
    monkeypatch.setattr(space, "MOST_POINTS", 50)
    axes = ["space.tensor_parallel=[1, 2, 4]", "space.micro_batch_size={min: 1, max: 30, step: 1}"]
    with pytest.raises(InputError, match="90 combinations of 3 tensor_parallel x 30 micro_batch_size"):
        candidates_of(loaded(tmp_path, MINIMAL, *axes))
    drawn = [loaded(tmp_path, MINIMAL, *axes, "search.sample_space=true", f"search.seed={seed}") for seed in (1, 1, 2)]
    one, again, other = (candidates_of(spec) for spec in drawn)
    assert one.is_sampled
    assert one.rejected_by_rule == again.rejected_by_rule != other.rejected_by_rule


@pytest.mark.bad_input(16)
@pytest.mark.parametrize("axis", ["[1, 2, 1]", "{min: 4, max: 1, step: 1}", "{min: 1, max: 4, step: 0}", "[]"])
def test_row_16_an_axis_that_leads_nowhere_is_refused_at_its_line(tmp_path: Path, axis: str):
    problem = the_problem(tmp_path, MINIMAL + f"  micro_batch_size: {axis}\n")
    assert problem.key.startswith("space.micro_batch_size")
    assert problem.line == 7


@pytest.mark.bad_input(17)
def test_row_17_an_unknown_objective_is_refused_with_the_known_ones(tmp_path: Path):
    problem = the_problem(tmp_path, MINIMAL + "objective: tokens_per_second\n")
    assert problem.rule == "one of tokens_per_sec, tokens_per_sec_per_gpu, node_hours_per_billion_tokens"
    assert problem.fix == "did you mean tokens_per_sec?"


@pytest.mark.bad_input(17)
@pytest.mark.parametrize(
    ("given", "key", "words"),
    [
        ("[]", "objective", "is an empty list"),
        ("[tokens_per_sec, tokens_per_sec]", "objective", "names one twice"),
        ("[tokens_per_sec, speed]", "objective[1]", "speed"),
        ("{tokens_per_sec: 1}", "objective", ""),
        ("3", "objective", "3"),
    ],
)
def test_row_17_a_list_of_objectives_holds_different_known_ones(tmp_path: Path, given: str, key: str, words: str):
    problem = the_problem(tmp_path, MINIMAL + f"objective: {given}\n")
    assert problem.key == key
    assert words in problem.message
    assert "tokens_per_sec" in problem.rule + problem.fix or problem.rule.startswith("one objective, or a list")


def test_several_objectives_are_kept_in_their_order_and_the_first_decides(tmp_path: Path):
    several = "objective: [node_hours_per_billion_tokens, tokens_per_sec]\n"
    spec = loaded(tmp_path, MINIMAL + several)
    assert spec.objectives == (Objective.NODE_HOURS_PER_BILLION_TOKENS, Objective.TOKENS_PER_SEC)
    assert spec.objective is Objective.NODE_HOURS_PER_BILLION_TOKENS
    written = spec.to_json()
    assert written["objective"] == ["node_hours_per_billion_tokens", "tokens_per_sec"]
    assert SearchSpec.from_json(written) == spec
    assert loaded(tmp_path, MINIMAL + "objective: [tokens_per_sec]\n").to_json()["objective"] == "tokens_per_sec"
    jsonschema.validate(yaml.safe_load(MINIMAL + several), json_schema())


@pytest.mark.parametrize(("nodes", "count"), [("2", 1), ("[1, 2]", 2)])
def test_it_is_known_how_many_numbers_of_nodes_there_are(tmp_path: Path, nodes: str, count: int):
    two = "cluster={accelerator: cpu, gpus_per_node: 4, num_nodes: 2}"
    assert loaded(tmp_path, MINIMAL, two, f"space.num_nodes={nodes}").num_node_counts == count


@pytest.mark.bad_input(18)
@pytest.mark.parametrize("key", ["search.max_trials", "search.parallel_trials", "search.budget_node_hours"])
@pytest.mark.parametrize("value", ["0", "-3"])
def test_row_18_limits_are_positive(tmp_path: Path, key: str, value: str):
    problem = the_problem(tmp_path, MINIMAL, f"{key}={value}")
    assert (problem.code, problem.key) == ("bounds", key)


@pytest.mark.bad_input(19)
@pytest.mark.parametrize(
    ("measure", "key"),
    [
        ("{max_warmup_steps: 40}", "measure.max_warmup_steps"),
        ("{max_steps: 10}", "measure.max_warmup_steps"),
        ("{min_steps: 4}", "measure.min_steps"),
        ("{min_steps: 50}", "measure.min_steps"),
        ("{ci_relative_width: 0}", "measure.ci_relative_width"),
    ],
)
def test_row_19_too_little_to_measure_is_refused(tmp_path: Path, measure: str, key: str):
    assert the_problem(tmp_path, MINIMAL + f"measure: {measure}\n").key == key


@pytest.mark.bad_input(20)
@pytest.mark.parametrize("value", ["soon", "10:99", "0", "1.5", "1h30m"])
def test_row_20_a_time_limit_in_a_wrong_form_is_refused_with_the_grammar(tmp_path: Path, value: str):
    problem = the_problem(tmp_path, MINIMAL, f"measure.time_limit={value}")
    assert (problem.code, problem.key) == ("duration", "measure.time_limit")


@pytest.mark.bad_input(27)
@pytest.mark.parametrize(
    "line", ["ledger: {url: 'postgresql://me:hunter2@db/l'}", "tracking: {mlflow_uri: 'https://me:hunter2@host'}"]
)
def test_row_27_credentials_in_an_address_are_refused_and_not_repeated(tmp_path: Path, line: str):
    problem = the_problem(tmp_path, MINIMAL + line + "\n")
    assert (problem.code, problem.line) == ("secret", 7)
    assert "hunter2" not in str(problem)


@pytest.mark.bad_input(31)
@pytest.mark.parametrize(
    "name", ["a/b", "../a", ".a", "-a", "A", "a_b", "a b", "a" * 42, "", "\N{CYRILLIC SMALL LETTER A}bc", "a\nb"]
)
def test_row_31_a_search_name_outside_its_pattern_is_refused(tmp_path: Path, name: str):
    text = MINIMAL.replace("name: small", f"name: {json.dumps(name, ensure_ascii=False)}")
    problem = the_problem(tmp_path, text)
    assert (problem.code, problem.rule) in [
        ("pattern", "1 to 41 of a-z, 0-9 and -, of which the first is no -"),
        ("control_character", "text is shown in terminals and pages, so it is printable"),
    ]


@pytest.mark.parametrize("address", ["h:0", "h:65536", "-h:1", "--block:1", "h", "", "h:1 ", "automatic", "h:1x"])
def test_an_address_is_auto_or_a_host_and_a_port(tmp_path: Path, address: str):
    problem = the_problem(tmp_path, MINIMAL, f"launcher.address={json.dumps(address)}")
    assert (problem.code, problem.rule) == ("pattern", "auto, or host:port with a port from 1 to 65535")


@pytest.mark.parametrize("address", ["auto", "node-1.cluster:65535", "10.0.0.1:1"])
def test_a_running_cluster_is_named_by_its_address(tmp_path: Path, address: str):
    assert loaded(tmp_path, MINIMAL, f"launcher.address={address}").launcher.address == address


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("global_batch_size=null", "is null"),
        ("search.seed=true", "is true"),
        ("measure.time_limit=false", "is false"),
        ("space.tensor_parallel=[null]", "is null"),
    ],
)
def test_a_value_is_told_in_the_words_of_the_file(tmp_path: Path, override: str, message: str):
    assert the_problem(tmp_path, MINIMAL, override).message == message


def test_a_control_character_in_a_key_is_told_with_its_line(tmp_path: Path):
    problem = the_problem(tmp_path, MINIMAL + '"a\\x07": 3\n')
    assert (problem.code, problem.key, problem.line) == ("control_character", None, 7)


@pytest.mark.parametrize("chunks", ["", "  virtual_pipeline_stages: 1\n"])
def test_an_interleaved_schedule_of_one_chunk_is_refused_and_not_taken_for_1f1b(tmp_path: Path, chunks: str):
    axis = "  pipeline_schedule: [1f1b, interleaved_1f1b]\n"
    problem = the_problem(tmp_path, MINIMAL + chunks + axis)
    assert (problem.code, problem.key, problem.value) == (
        "contradiction",
        "space.pipeline_schedule",
        "interleaved_1f1b",
    )
    assert loaded(tmp_path, MINIMAL + axis + "  virtual_pipeline_stages: [1, 2]\n").space.virtual_pipeline_stages


def test_a_baseline_with_an_interleaved_schedule_of_one_chunk_is_refused(tmp_path: Path):
    text = MINIMAL + "baseline: {pipeline_parallel: 2, pipeline_schedule: interleaved_1f1b}\n"
    problem = the_problem(tmp_path, text)
    assert (problem.code, problem.key, problem.line) == ("contradiction", "baseline.pipeline_schedule", 7)


def test_a_baseline_on_more_nodes_than_there_are_is_told_so_first(tmp_path: Path):
    problem = the_problem(tmp_path, MINIMAL + "baseline: {num_nodes: 3}\n")
    assert (problem.code, problem.message) == ("world", "3 nodes are asked for, the cluster has 1")
    assert problem.fix


def test_an_empty_tracking_address_is_said_to_be_empty(tmp_path: Path):
    assert the_problem(tmp_path, MINIMAL, 'tracking.mlflow_uri=""').rule == "an address is not empty"


def test_a_search_name_of_41_characters_is_the_longest(tmp_path: Path):
    assert loaded(tmp_path, MINIMAL, f"name={'a' * 41}").name == "a" * 41


@pytest.mark.bad_input(34)
@pytest.mark.parametrize("url", ["mysql://db/l", "ledger.db", "sqllite:///l.db", "/home/me/l.db"])
def test_row_34_a_ledger_of_an_unknown_kind_is_refused(tmp_path: Path, url: str):
    problem = the_problem(tmp_path, MINIMAL, f"ledger.url={url}")
    assert (problem.code, problem.key) == ("ledger_url", "ledger.url")


@pytest.mark.parametrize("url", ["sqlite:////home/me/l.db", "postgresql://me@db/l", "postgresql+psycopg://db/l"])
def test_a_ledger_in_sqlite_or_postgres_is_accepted(tmp_path: Path, url: str):
    assert loaded(tmp_path, MINIMAL, f"ledger.url={url}").ledger.url == url


@pytest.mark.bad_input(35)
@pytest.mark.parametrize(
    ("uri", "fix"),
    [
        ("file:///tmp/mlruns", "sqlite:///mlflow.db"),
        ("./mlruns", "sqlite:///mlflow.db"),
        ("mlruns", "sqlite:///mlflow.db"),
        ("htttp://127.0.0.1:5000", "did you mean http?"),
        ("sqllite:///mlflow.db", "did you mean sqlite?"),
        ("http://", "http://127.0.0.1:5000"),
    ],
)
def test_row_35_a_store_mlflow_does_not_have_is_refused_with_the_fix(tmp_path: Path, uri: str, fix: str):
    problem = the_problem(tmp_path, MINIMAL, f"tracking.mlflow_uri='{uri}'")
    assert (problem.code, problem.key) == ("mlflow_uri", "tracking.mlflow_uri")
    assert fix in problem.fix


@pytest.mark.parametrize(
    "uri", ["sqlite:///mlflow.db", "http://127.0.0.1:5000", "https://host", "postgresql+psycopg2://db/x", "databricks"]
)
def test_a_store_mlflow_has_is_accepted(tmp_path: Path, uri: str):
    assert loaded(tmp_path, MINIMAL, f"tracking.mlflow_uri={uri}").tracking.mlflow_uri == uri


@pytest.mark.bad_input(49)
def test_row_49_an_unknown_path_in_set_is_refused_with_a_suggestion(tmp_path: Path):
    problem = the_problem(tmp_path, MINIMAL, "serch.max_trials=3")
    assert (problem.file, problem.key, problem.fix) == ("--set", "serch", "did you mean search?")


@pytest.mark.parametrize("key", ["work_dir", "cluster"])
def test_the_home_of_somebody_who_is_not_there_is_refused(tmp_path: Path, key: str):
    problem = the_problem(tmp_path, MINIMAL, f"{key}=~nobody-here/x")
    assert (problem.code, problem.key, problem.file) == ("path", key, "--set")


def test_set_wins_over_the_file(tmp_path: Path):
    assert loaded(tmp_path, MINIMAL, "search.max_trials=3", "model=gpt2-124m").model.num_layers == 12


@pytest.mark.parametrize(
    ("launcher", "key"),
    [
        ("{kind: recorded}", "launcher.table"),
        ("{kind: local, address: 'h:1'}", "launcher.address"),
        ("{kind: ray, table: t.csv}", "launcher.table"),
        ("{kind: local, queue_wait_s: 3}", "launcher.queue_wait_s"),
        ("{kind: ray, address: 'http://h:1'}", "launcher.address"),
        ("{kind: pbs}", "launcher.kind"),
        ("{kind: recorded, table: missing.csv}", "launcher.table"),
    ],
)
def test_a_launcher_with_keys_of_another_kind_is_refused(tmp_path: Path, launcher: str, key: str):
    assert the_problem(tmp_path, MINIMAL + f"launcher: {launcher}\n").key == key


def test_an_unknown_preset_is_refused_with_a_suggestion(tmp_path: Path):
    problem = the_problem(tmp_path, MINIMAL, "model=gpt2-tinny")
    assert (problem.code, problem.key, problem.fix) == ("unknown_preset", "model", "did you mean gpt2-tiny?")


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
    problem = the_problem(tmp_path, MINIMAL.replace("gpt2-tiny", model))
    assert (problem.key, problem.line) == (key, 2)


def test_a_cluster_file_is_found_from_the_search_files_folder(tmp_path: Path):
    (tmp_path / "ours.yaml").write_text("accelerator: A100-SXM4-80GB\ngpus_per_node: 4\nnum_nodes: 3\n")
    spec = loaded(tmp_path, MINIMAL.replace("this-machine", "ours.yaml"), "global_batch_size=24")
    assert (spec.cluster.accelerator.name, spec.cluster.num_gpus) == ("a100-80gb", 12)


def test_mistakes_in_a_cluster_file_are_told_with_its_own_lines(tmp_path: Path):
    (tmp_path / "ours.yaml").write_text("accelerator: cpu\ngpus_per_node: 0\nnodes: 3\n")
    found = problems(tmp_path, MINIMAL.replace("this-machine", "./ours.yaml"))
    assert {p.file for p in found} == {str(tmp_path / "ours.yaml")}
    assert [(p.key, p.line) for p in found] == [("num_nodes", None), ("gpus_per_node", 2), ("nodes", 3)]


def test_a_cluster_file_that_is_not_there_is_refused(tmp_path: Path):
    problem = the_problem(tmp_path, MINIMAL.replace("this-machine", "ours.yaml"))
    assert "cannot be read: No such file" in str(problem)


TABLE_SEARCH = """\
name: from-a-table
model:
  num_layers: 16
  hidden_size: 2048
  num_attention_heads: 32
  ffn_hidden_size: 8192
  gated_mlp: true
  vocab_size: 131072
  seq_length: 4096
cluster: dgx-h100
global_batch_size: 256
space: {candidates: table.csv}
launcher: {kind: recorded, table: table.csv}
"""


def test_a_measured_table_is_a_closed_set_that_no_longer_depends_on_the_file(tmp_path: Path):
    rows = only({}, {"tensor_parallel": "4", "data_parallel": "1", "grad_accum_steps": "64"})
    (tmp_path / "table.csv").write_text(render_table(rows))
    spec = loaded(tmp_path, TABLE_SEARCH)
    assert spec.candidates == tuple(row.layout for row in rows)
    assert spec.launcher.table == str(tmp_path / "table.csv")
    (tmp_path / "table.csv").unlink()
    again = SearchSpec.from_json(json.loads(json.dumps(spec.to_json())))
    assert candidates_of(again).feasible == spec.candidates


def test_a_table_without_a_row_for_this_search_is_refused(tmp_path: Path):
    (tmp_path / "table.csv").write_text(render_table(only({})))
    found = problems(tmp_path, TABLE_SEARCH, "global_batch_size=128")
    assert [(p.code, p.key, p.line) for p in found] == [("no_measurement", "space.candidates", 12)]
    (tmp_path / "other.csv").write_text(render_table(only({})))
    found = problems(tmp_path, TABLE_SEARCH, "global_batch_size=128", "launcher.table=other.csv")
    assert [(p.code, p.key, p.line) for p in found] == [
        ("no_measurement", "space.candidates", 12),
        ("no_measurement", "launcher.table", None),
    ]


def test_a_table_that_is_to_be_run_holds_to_every_rule(tmp_path: Path):
    few = {"engine": "torch", "pipeline_parallel": "4", "data_parallel": "1", "micro_batch_size": "256"}
    (tmp_path / "table.csv").write_text(render_table(only({}, few | {"grad_accum_steps": "1"})))
    spec = loaded(tmp_path, TABLE_SEARCH, "launcher={kind: local}")
    with pytest.raises(InputError, match="no layout of 2 is legal") as caught:
        candidates_of(spec)
    (problem,) = caught.value.problems
    assert "nanotron.not_ours removed 1" in problem.message
    assert problem.line == 12


def test_a_bad_row_of_the_table_that_is_both_candidates_and_answers_is_told_once(tmp_path: Path):
    (tmp_path / "table.csv").write_text(render_table(only({})).replace(",256,", ",255,", 1))
    found = problems(tmp_path, TABLE_SEARCH)
    assert [(p.key, p.line) for p in found] == [("global_batch_size", 2)]


def test_a_table_with_bad_rows_is_refused_with_their_lines(tmp_path: Path):
    text = render_table(only({}, {})).replace(",3.5,", ",F_oom,", 1)
    (tmp_path / "table.csv").write_text(text)
    found = problems(tmp_path, TABLE_SEARCH, "launcher={kind: local}")
    assert [(p.file, p.line, p.key) for p in found] == [(str(tmp_path / "table.csv"), 2, "step_time_s")]


def test_axes_beside_a_closed_set_are_refused(tmp_path: Path):
    problem = the_problem(tmp_path, MINIMAL + "  candidates: table.csv\n")
    assert (problem.code, problem.key) == ("contradiction", "space.tensor_parallel")


SCHEMA = json_schema()


def valid_examples() -> list[str]:
    quickstart = presets.preset_text(presets.SEARCHES, "quickstart")
    return [MINIMAL, EVERYTHING, quickstart, TABLE_SEARCH]


@pytest.mark.parametrize("text", valid_examples())
def test_the_json_schema_accepts_what_is_read(text: str):
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(yaml.safe_load(text), SCHEMA, jsonschema.Draft202012Validator)


@pytest.mark.parametrize(
    "line",
    [
        "serch: {}",
        "search: {sampler: best}",
        "search: {max_trials: 0}",
        "search: {finalists: -1}",
        "search: {finalist_repeats: 0}",
        "search: {seed: 1.5}",
        "measure: {min_steps: 4}",
        "baseline: {data_parallel: 2}",
        "baseline: {zero_stage: 4}",
        "launcher: {kind: pbs}",
        "objective: speed",
        "constraints: []",
    ],
)
def test_the_json_schema_refuses_what_is_refused(tmp_path: Path, line: str):
    text = MINIMAL + line + "\n"
    problems(tmp_path, text)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(yaml.safe_load(text), SCHEMA, jsonschema.Draft202012Validator)


@pytest.mark.parametrize("axis", ["[]", "[1, 1]", "{min: 1, max: 2}", "{min: 1, max: 2, factor: 1}", "two", "0", "[x]"])
def test_the_json_schema_refuses_axes_that_are_refused(tmp_path: Path, axis: str):
    text = MINIMAL + f"  micro_batch_size: {axis}\n"
    problems(tmp_path, text)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(yaml.safe_load(text), SCHEMA, jsonschema.Draft202012Validator)


def test_every_key_in_the_json_schema_has_a_description():
    schema = SCHEMA
    described = set()
    for name, section in {"": schema, **schema["$defs"]}.items():
        for form in section.get("anyOf", [section]):
            for key, field in form.get("properties", {}).items():
                target = next((f["$ref"] for f in (field, *field.get("anyOf", [])) if "$ref" in f), "").split("/")[-1]
                assert field.get("description") or schema["$defs"][target]["description"], f"{name}.{key}"
                described.add(key)
    assert {"name", "max_trials", "tensor_parallel", "num_layers", "time_limit", "mlflow_uri"} <= described


def test_reading_a_search_file_imports_nothing_heavy():
    program = (
        "import sys; from pathlib import Path; from orchestrator.search_file import load_search_file;"
        "import search_spaces; load_search_file(Path(sys.argv[1]));"
        "print([m for m in ('numpy', 'torch', 'ray', 'mlflow', 'deephyper', 'sqlalchemy') if m in sys.modules])"
    )
    quickstart = Path(presets.__file__).parent / "searches" / "quickstart.yaml"
    ran = subprocess.run([sys.executable, "-c", program, str(quickstart)], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"


def test_the_reference_page_says_what_the_schemas_say():
    page = Path(presets.__file__).parents[1] / "docs" / "search_file.md"
    assert page.read_text() == reference()
    assert "| `max_trials` | whole number from 1 to 1000000; default `30` |" in page.read_text()
    assert "| `time_limit` | duration; default `600s` |" in page.read_text()


def test_the_smallest_search_of_the_reference_page_is_a_search(tmp_path: Path):
    example = reference().split("<<'END'\n")[1].split("END\n")[0]
    assert loaded(tmp_path, example) == loaded(tmp_path)
