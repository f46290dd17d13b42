"""Trainer section with a third-party trainer, and its contradictions with other sections."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from orchestrator.config.loader import load_search_file
from orchestrator.config.spec import SearchSpec
from orchestrator.lifecycle.create import validate_space
from orchestrator.lifecycle.drive import attempt_factory_of
from orchestrator.planning.candidates import candidates_of
from search_spaces.errors import InputError, Problem
from trials.files.folders import SearchFolder

BASE = """\
schema: parlay.search/1
name: theirs
model: gpt2-tiny
cluster: {accelerator: cpu, gpus_per_node: 4, num_nodes: 1}
global_batch_size: 16
space:
  tensor_parallel: [1, 2]
  micro_batch_size: [1, 2]
launcher: {kind: local}
"""
MEGATRON = "trainer: {kind: megatron-lm, script: pretrain_gpt.py}\n"
COMMAND = """\
trainer:
  kind: command
  template: "train --tp {tensor_parallel} --mb {micro_batch_size} --ga {grad_accum_steps}"
  patterns: {step_time_s: 'took (\\S+) s'}
"""
ACCELERATE = """\
trainer:
  kind: accelerate
  script: pretrain_gpt.py
  arguments: ["--mb={micro_batch_size}", "--ga={grad_accum_steps}", mine]
  patterns: {step_time_s: 'took (\\S+) s'}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "pretrain_gpt.py").write_text("print('training')\n")
    (tmp_path / "base.yaml").write_text("tokens: {train_steps: 1}\ndata: {seed: 3.5e-1}\n")
    return tmp_path


def loaded(folder: Path, text: str, *overrides: str) -> SearchSpec:
    (folder / "search.yaml").write_text(text)
    return load_search_file(folder / "search.yaml", overrides)


def problems(folder: Path, text: str, *overrides: str) -> list[Problem]:
    with pytest.raises(InputError) as caught:
        loaded(folder, text, *overrides)
    return list(caught.value.problems)


def untold(folder: Path, trainer: str, override: str) -> tuple[str | None, int | None, str]:
    with pytest.raises(InputError) as caught:
        candidates_of(loaded(folder, BASE + trainer, override))
    [problem] = caught.value.problems
    return problem.key, problem.line, problem.message


@pytest.mark.parametrize(
    ("given", "read"), [("python3", "python3"), ("/opt/py/bin/python", "/opt/py/bin/python"), ("venv/bin/python", None)]
)
def test_an_interpreter_that_is_a_path_starts_from_the_files_folder_and_not_from_an_attempts(folder, given, read):
    spec = loaded(folder, BASE + f"trainer: {{python: {given}}}\n")
    assert spec.trainer.python == (read or str(folder / given))


def test_the_engine_of_every_layout_is_the_trainer(folder):
    spec = loaded(folder, BASE + MEGATRON)
    assert {layout.engine for layout in candidates_of(spec).layouts} == {"megatron-lm"}
    assert {layout.engine for layout in candidates_of(loaded(folder, BASE)).layouts} == {"torch"}


def test_trials_are_told_the_trainer_and_nothing_of_ours(folder):
    spec = loaded(folder, BASE + MEGATRON.replace("}", ", arguments: [--lr, '3e-4'], log_rank: first}"))
    trainer = attempt_factory_of(SearchFolder(folder / "theirs-aaaaaa"), spec).trainer
    assert trainer == {
        "kind": "megatron-lm",
        "script": str(folder / "pretrain_gpt.py"),
        "arguments": ["--lr", "3e-4"],
        "log_rank": "first",
    }
    assert SearchSpec.from_json(json.loads(json.dumps(spec.to_json()))).trainer == spec.trainer


def test_a_template_is_read_once_and_kept_with_the_search(folder):
    nanotron = "trainer: {kind: nanotron, script: pretrain_gpt.py, template: base.yaml}\n"
    spec = loaded(folder, BASE + nanotron)
    assert spec.trainer.template == {"tokens": {"train_steps": 1}, "data": {"seed": 0.35}}
    (folder / "base.yaml").unlink()
    assert SearchSpec.from_json(json.loads(json.dumps(spec.to_json()))).trainer == spec.trainer


def test_a_template_that_cannot_be_read_is_refused_by_its_own_name(folder):
    nanotron = "trainer: {kind: nanotron, script: pretrain_gpt.py, template: base.yaml}\n"
    (folder / "base.yaml").write_text("tokens: {a: 1, a: 2}\n")
    [problem] = problems(folder, BASE + nanotron)
    assert (problem.file, problem.line) == (str(folder / "base.yaml"), 1)
    (folder / "base.yaml").write_text("- just\n- a list\n")
    assert "a list or a single value" in problems(folder, BASE + nanotron)[0].message
    (folder / "base.yaml").unlink()
    assert str(folder / "base.yaml") in str(problems(folder, BASE + nanotron)[0])


@pytest.mark.bad_input(40)
@pytest.mark.parametrize(
    ("trainer", "code", "key", "words"),
    [
        ("{kind: megatron-lm}", "missing_key", "trainer.script", "required by kind megatron-lm"),
        ("{kind: gpt-neox, script: a.py}", "missing_key", "trainer.template", "required by kind gpt-neox"),
        ("{kind: command, template: train}", "missing_key", "trainer.patterns", "required by kind command"),
        ("{script: a.py}", "contradiction", "trainer.script", "script belongs to megatron-lm"),
        ("{kind: megatron-lm, script: a.py, template: b}", "contradiction", "trainer.template", "template belongs to"),
        (
            "{kind: megatron-lm, script: a.py, data: {kind: tokens, path: x}}",
            "contradiction",
            "trainer.data",
            "data belongs to parlay",
        ),
        (
            "{kind: command, template: t, patterns: {step_time_s: '(a)'}, arguments: [a]}",
            "contradiction",
            "trainer.arguments",
            "arguments belongs to",
        ),
        (
            "{kind: megatron-lm, script: a.py, arguments: [--lr, '1', --micro-batch-size=4]}",
            "contradiction",
            "trainer.arguments[2]",
            "gives --micro-batch-size",
        ),
        (
            "{kind: megatron-deepspeed, script: a.py, arguments: [--save, /ckpt]}",
            "contradiction",
            "trainer.arguments[0]",
            "a trial writes no checkpoint",
        ),
        (
            "{kind: command, template: t, patterns: {step_time_s: '(a'}}",
            "pattern",
            "trainer.patterns.step_time_s",
            "is not a regular expression",
        ),
        ("{kind: command, template: t, patterns: megatron}", "choice", "trainer.patterns", "is 'megatron'"),
        (
            "{kind: command, template: t, patterns: {step_tim_s: '(a)'}}",
            "pattern",
            "trainer.patterns.step_tim_s",
            "fix: did you mean step_time_s?",
        ),
        (
            "{kind: command, template: t, patterns: {loss: '(a)'}}",
            "pattern",
            "trainer.patterns",
            "do not match a step's time",
        ),
        (
            "{kind: command, template: 't {tensor}', patterns: deepspeed}",
            "template",
            "trainer.template",
            "has the placeholder {tensor}",
        ),
        ("{kind: command, template: 3, patterns: deepspeed}", "type", "trainer.template", "is 3"),
        ("{kind: command, template: {a: 1}, patterns: deepspeed}", "type", "trainer.template", "is not a command line"),
        (
            "{kind: command, template: t, patterns: {step_time_s: 3}}",
            "pattern",
            "trainer.patterns.step_time_s",
            "0 groups",
        ),
        (
            "{kind: nanotron, script: a.py, template: {}}",
            "missing_key",
            "trainer.template",
            "required by kind nanotron",
        ),
        ("{kind: megatron}", "choice", "trainer.kind", "one of"),
        (
            "{kind: megatron-lm, script: a.py, log_rank: -1}",
            "bounds",
            "trainer.log_rank",
            "first, last, or a whole number",
        ),
        ("{kind: megatron-lm, script: a.py, log_rank: 4}", "bounds", "trainer.log_rank", "smallest trial has 4 ranks"),
        ("{kind: nanotron, script: a.py, template: 'missing.yaml'}", "file", "trainer.template", "missing.yaml"),
    ],
)
def test_a_wrong_combination_is_refused_with_its_key_and_rule(folder, trainer, code, key, words):
    found = problems(folder, BASE + f"trainer: {trainer}\n")
    problem = next((p for p in found if p.key == key), found[0])
    assert words in str(problem)
    assert problem.fix or code == "file"
    if code != "file":
        assert (problem.code, problem.key) == (code, key)
        assert problem.file == str(folder / "search.yaml")
        assert problem.line == 10


def configured(folder: Path, kind: str, keys: str) -> str:
    """A search with a template that has these keys of a model, in a file."""
    nanotron = f"model: {{dtype: bfloat16, model_config: {{vocab_size: 7, {keys}}}}}\n"
    (folder / "base.yaml").write_text(nanotron if kind == "nanotron" else f"{{num_layers: 7, {keys}}}\n")
    return BASE + f"trainer: {{kind: {kind}, script: pretrain_gpt.py, template: base.yaml}}\n"


@pytest.mark.bad_input(40)
@pytest.mark.parametrize(
    ("kind", "keys", "message"),
    [
        ("nanotron", "sliding_window_size: 128", "model.model_config.sliding_window_size is 128; the model has null"),
        ("nanotron", "attention_bias: true", "model.model_config.attention_bias is true; the model has false"),
        ("nanotron", "hidden_act: silu", "model.model_config.hidden_act is 'silu'; the model has 'gelu_pytorch_tanh'"),
        (
            "nanotron",
            "rope_scaling: {factor: 8.0}",
            "model.model_config.rope_scaling is {'factor': 8.0}; the model has null",
        ),
        (
            "nanotron",
            "moe_config: {num_experts: 8}",
            "model.model_config.moe_config is {'num_experts': 8}; the model has null",
        ),
        ("nanotron", "no_rope_layer: 4", "model.model_config.no_rope_layer is 4; the model has null"),
        ("gpt-neox", "activation: relu", "activation is 'relu'; the model has 'gelu'"),
        ("gpt-neox", "activation: swiglu", "activation is 'swiglu'; the model has 'gelu'"),
        ("gpt-neox", "sliding-window-width: 128", "sliding_window_width is 128; the model has null"),
        ("gpt-neox", "moe_num_experts: 8", "moe_num_experts is 8; the model has 1"),
    ],
)
def test_a_template_of_another_model_than_the_search_files_is_refused(folder, kind, keys, message):
    [problem] = problems(folder, configured(folder, kind, keys))
    assert (problem.code, problem.key, problem.line) == ("contradiction", "trainer.template", 10)
    assert problem.message == message
    assert problem.rule == "a template must not train another model than the model section's"
    assert problem.fix == f"remove {message.split()[0]} from the template, or change the model section"


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        ("nanotron", "hidden_act: gelu_pytorch_tanh, attention_bias: false, rope_scaling: null, moe_config: null"),
        ("gpt-neox", "activation: gelu, sliding_window_width: null, moe-num-experts: 1"),
    ],
)
def test_a_template_of_the_search_files_model_is_not_refused(folder, kind, keys):
    assert loaded(folder, configured(folder, kind, keys)).trainer.kind == kind


def test_a_search_for_another_engine_than_its_trainers_is_refused(folder):
    [problem] = problems(folder, BASE + MEGATRON, "space.engine=[megatron-lm, torch]")
    assert (problem.code, problem.key) == ("engine", "space.engine")
    assert "lists torch for trainer.kind megatron-lm" in problem.message
    [problem] = problems(folder, BASE, "space.engine=nanotron")
    assert "torch or deepspeed" in (problem.rule or "")
    [problem] = problems(folder, BASE, "space.engine=pytorch")
    assert problem.fix == "did you mean torch?"
    [problem] = problems(folder, BASE, "space.engine=fsdp")
    assert (problem.key, problem.fix) == ("space.engine", "write one of these")


def test_a_baseline_of_another_engine_is_refused(folder):
    spec = loaded(folder, BASE + MEGATRON + "baseline: {tensor_parallel: 2, engine: torch}\n")
    with pytest.raises(InputError, match="engine is torch"):
        candidates_of(spec)
    mine = loaded(folder, BASE + MEGATRON + "baseline: {tensor_parallel: 2}\n")
    assert candidates_of(mine).baseline.engine == "megatron-lm"


@pytest.mark.bad_input(39)
def test_an_axis_that_a_command_is_not_told_of_is_refused(folder):
    assert loaded(folder, BASE + COMMAND).trainer.kind == "command"
    assert untold(folder, COMMAND, "space.zero_stage=[0, 1]") == (
        "trainer.template",
        12,
        "has no {zero_stage}: it is 0, 1",
    )
    assert candidates_of(loaded(folder, BASE + COMMAND, "space.zero_stage=1")).layouts


@pytest.mark.bad_input(39)
@pytest.mark.parametrize(
    ("template", "overrides", "words"),
    [
        pytest.param("--tp {tensor_parallel} --mb {micro_batch_size}", (), "has no {grad_accum_steps}", id="derived"),
        pytest.param(
            "--tp {tensor_parallel} --mb {micro_batch_size} --batch {global_batch_size}", (), None, id="computed by it"
        ),
        pytest.param(
            "--mb {micro_batch_size} --ga {grad_accum_steps}",
            ("space.tensor_parallel=1", "baseline={tensor_parallel: 2}"),
            "has no {tensor_parallel}: it is 1, 2",
            id="baseline alone",
        ),
        pytest.param(
            "--tp {tensor_parallel} --mb {micro_batch_size} --ga {grad_accum_steps} {zero_stage=3:--zero}",
            ("space.zero_stage=[0, 1, 3]",),
            "says the same for several of zero_stage 0, 1, 3",
            id="two values alike",
        ),
        pytest.param(
            "--tp {tensor_parallel} --mb {micro_batch_size} --ga {grad_accum_steps} --pp {pipeline_parallel}",
            ("space.pipeline_parallel=[1, 2]",),
            None,
            id="a schedule that follows from the stages",
        ),
    ],
)
def test_a_layout_that_the_trainer_is_not_told_is_not_credited_to_it(folder, template, overrides, words):
    command = f"trainer: {{kind: command, template: 'train {template}', patterns: {{step_time_s: '(.+) s'}}}}\n"
    spec = loaded(folder, BASE + command, *overrides)
    if words is None:
        assert candidates_of(spec).layouts
    else:
        with pytest.raises(InputError, match=re.escape(words)):
            candidates_of(spec)


@pytest.mark.bad_input(39)
def test_a_placeholder_without_a_value_in_some_layout_is_refused_before_anything_runs(folder):
    buckets = "space.bucket_mib=[1, 25]"
    command = COMMAND.replace("train --tp", "{python} --bucket-mb {bucket_mib} --tp")
    with pytest.raises(InputError) as caught:
        validate_space(loaded(folder, BASE + command, buckets, "space.tensor_parallel=[2, 4]"))
    [problem] = caught.value.problems
    assert (problem.code, problem.key, problem.line) == ("template", "trainer.template", 12)
    assert "has {bucket_mib}, which has no value in n1.tp4.pp1.dp1" in problem.message
    assert problem.message.endswith("and 1 more of 6 layouts")
    assert problem.fix == "write {bucket_mib=1:TEXT}{bucket_mib=25:TEXT} in its place"
    assert validate_space(loaded(folder, BASE + command, buckets)).layouts
    by_value = command.replace("--bucket-mb {bucket_mib}", "{bucket_mib=1:--mb 1}{bucket_mib=25:--mb 25}")
    assert validate_space(loaded(folder, BASE + by_value, buckets, "space.tensor_parallel=[2, 4]")).layouts


@pytest.mark.bad_input(39)
def test_an_axis_that_neither_accelerates_configuration_nor_the_script_is_told_of_is_refused(folder):
    spec = loaded(folder, BASE + ACCELERATE, "space.zero_stage=[0, 3]", "space.torch_compile=[false, true]")
    assert {layout.engine for layout in candidates_of(spec).layouts} == {"accelerate-launch"}
    kernels = "space.attention_kernel=[math, flash]"
    assert untold(folder, ACCELERATE, kernels) == (
        "trainer.arguments",
        13,
        "has no {attention_kernel}: it is flash, math",
    )
    told = ACCELERATE.replace("mine", '"{attention_kernel=flash:--flash}"')
    assert candidates_of(loaded(folder, BASE + told, kernels)).layouts


@pytest.mark.bad_input(39)
def test_an_argument_whose_placeholder_is_none_or_has_no_value_is_refused_by_its_number(folder):
    [problem] = problems(folder, BASE + ACCELERATE.replace("mine", "'{micro_batch}'"))
    assert (problem.key, problem.fix) == ("trainer.arguments[2]", "did you mean {micro_batch_size}?")
    with pytest.raises(InputError) as caught:
        candidates_of(loaded(folder, BASE + ACCELERATE.replace("mine", "'{bucket_mib}'")))
    [problem] = caught.value.problems
    assert (problem.key, problem.line) == ("trainer.arguments[2]", 13)
    assert "has {bucket_mib}, which has no value in n1.tp1.pp1.dp4" in problem.message


@pytest.mark.bad_input(40)
def test_an_option_that_accelerates_configuration_has_is_refused(folder):
    [problem] = problems(folder, BASE + ACCELERATE.replace("mine", "--mixed_precision"))
    assert (problem.key, problem.message) == ("trainer.arguments[2]", "gives --mixed_precision")


def test_a_memory_limit_is_our_own_trainers(folder):
    [problem] = problems(folder, BASE + MEGATRON, "measure.memory_limit_gib=1")
    assert (problem.key, problem.code) == ("measure.memory_limit_gib", "contradiction")


@pytest.mark.bad_input(38)
def test_a_script_that_is_not_there_is_refused_before_anything_runs(folder):
    spec = loaded(folder, BASE + MEGATRON)
    assert validate_space(spec).layouts
    (folder / "pretrain_gpt.py").unlink()
    with pytest.raises(InputError, match="is not a file on this machine") as caught:
        validate_space(spec)
    assert (caught.value.problems[0].key, caught.value.problems[0].line) == ("trainer.script", 10)


@pytest.mark.bad_input(38)
def test_a_script_whose_version_a_layout_depends_on_is_refused_without_one(folder):
    options = "space.precision=bf16", "space.zero_stage=[0, 2]"
    with pytest.raises(InputError, match=r"has no megatron/training/arguments\.py") as caught:
        validate_space(loaded(folder, BASE + MEGATRON, *options))
    assert (caught.value.problems[0].key, caught.value.problems[0].line) == ("trainer.script", 10)
    assert validate_space(loaded(folder, BASE + MEGATRON, options[0], "space.zero_stage=[0, 1]")).layouts


@pytest.mark.bad_input(38)
@pytest.mark.parametrize("program", ["no-such-program", "MODE=1", "./train.sh"])
def test_a_program_that_a_command_cannot_start_is_refused_before_anything_runs(folder, program):
    (folder / "train.sh").write_text("#!/bin/sh\n")
    (folder / "train.sh").chmod(0o755)
    with pytest.raises(InputError, match=f"{program} is not found") as caught:
        validate_space(loaded(folder, BASE + COMMAND.replace("train --tp", f"{program} --tp")))
    assert (caught.value.problems[0].key, caught.value.problems[0].line) == ("trainer.template", 12)
    for found in ("{python}", "env", str(folder / "train.sh")):
        assert validate_space(loaded(folder, BASE + COMMAND.replace("train --tp", f"{found} --tp"))).layouts
