"""Section trainer: trainers of others, what contradicts the other sections, and the training data of a search: checked
before a launch, recorded, and constant afterwards."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from orchestrator.config.spec import SearchSpec
from orchestrator.diagnostics.preflight.search import validate_space
from orchestrator.lifecycle.observers import attempt_factory_of
from orchestrator.planning.candidates import candidates_of
from search_spaces.errors import InputError
from tests.kit import MINIMAL, TINY_SEARCH, loaded, refusal
from tests.trials.datasets import document_ids, write_documents, write_tokens
from trials.files.folders import SearchFolder
from trials.trial import Attempt, Trial

MEGATRON = "trainer={kind: megatron-lm, script: pretrain_gpt.py}"
NANOTRON = "trainer={kind: nanotron, script: pretrain_gpt.py, template: base.yaml}"
MICRO_BATCHES = "space.micro_batch_size=[1, 2]"
UNTOLD = "train --mb {micro_batch_size} --ga {grad_accum_steps}"
TOLD = "--tp {tensor_parallel} --mb {micro_batch_size} --ga {grad_accum_steps}"


def command(words: str) -> str:
    return f"trainer={{kind: command, template: '{words}', patterns: {{step_time_s: 'took (.+) s'}}}}"


def accelerate(last: str) -> str:
    arguments = f"'--mb={{micro_batch_size}}', '--ga={{grad_accum_steps}}', '{last}'"
    return f"trainer={{kind: accelerate, script: a.py, arguments: [{arguments}], patterns: {{step_time_s: '(.+) s'}}}}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "pretrain_gpt.py").write_text("print('training')\n")
    (tmp_path / "base.yaml").write_text("tokens: {train_steps: 1}\ndata: {seed: 3.5e-1}\n")
    return tmp_path


def read_back(spec: SearchSpec) -> SearchSpec:
    return SearchSpec.from_json(json.loads(json.dumps(spec.to_json())))


def test_an_interpreter_that_is_a_path_starts_from_the_files_folder_and_not_from_an_attempts(folder):
    assert loaded(folder, trainer={"python": "venv/bin/python"}).trainer.python == f"{folder}/venv/bin/python"


def test_trials_are_told_the_trainer_and_nothing_of_ours(folder):
    trainer = {
        "kind": "megatron-lm",
        "script": "pretrain_gpt.py",
        "arguments": ["--lr-decay-style", "cosine"],
        "log_rank": "first",
    }
    spec = loaded(folder, trainer=trainer)
    found = attempt_factory_of(SearchFolder(folder / "theirs-aaaaaa"), spec).trainer
    assert found == trainer | {"script": str(folder / "pretrain_gpt.py")}
    assert read_back(spec).trainer == spec.trainer
    assert {layout.engine for layout in candidates_of(spec).layouts} == {"megatron-lm"}


def test_a_template_is_read_once_and_kept_with_the_search(folder):
    spec = loaded(folder, MINIMAL, NANOTRON)
    assert spec.trainer.template == {"tokens": {"train_steps": 1}, "data": {"seed": 0.35}}
    (folder / "base.yaml").unlink()
    assert read_back(spec).trainer == spec.trainer
    assert str(folder / "base.yaml") in str(refusal(folder, MINIMAL, NANOTRON))


@pytest.mark.parametrize(
    ("text", "line", "told"), [("tokens: {a: 1, a: 2}\n", 1, "twice"), ("- just\n- a list\n", 1, "keys are expected")]
)
def test_a_template_that_cannot_be_read_is_refused_by_its_own_name(folder, text, line, told):
    (folder / "base.yaml").write_text(text)
    problem = refusal(folder, MINIMAL, NANOTRON)
    assert (problem.file, problem.line) == (str(folder / "base.yaml"), line)
    assert told in str(problem)


@pytest.mark.bad_input(40)
@pytest.mark.parametrize(
    ("kind", "keys", "told"),
    [
        ("nanotron", "sliding_window_size: 128", "sliding_window_size is 128"),
        ("nanotron", "hidden_act: silu", "hidden_act is 'silu'; the model has 'gelu_pytorch_tanh'"),
        ("nanotron", "no_rope_layer: 4", "no_rope_layer is 4"),
        (
            "nanotron",
            "hidden_act: gelu_pytorch_tanh, attention_bias: false, rope_scaling: null, moe_config: null",
            None,
        ),
        ("gpt-neox", "activation: relu", "activation is 'relu'; the model has 'gelu'"),
        ("gpt-neox", "sliding-window-width: 128", "sliding_window_width is 128"),
        ("gpt-neox", "use_mup: true", "use_mup is true"),
        ("gpt-neox", "mlp_type: llama", "mlp_type is 'llama'; the model has 'regular'"),
        ("gpt-neox", "activation: gelu, sliding_window_width: null, moe-num-experts: 1", None),
    ],
)
def test_a_template_of_another_model_than_the_search_files_is_refused(folder, kind, keys, told):
    nanotron = f"model: {{dtype: bfloat16, model_config: {{vocab_size: 7, {keys}}}}}\n"
    (folder / "base.yaml").write_text(nanotron if kind == "nanotron" else f"{{num_layers: 7, {keys}}}\n")
    trainer = NANOTRON.replace("nanotron", kind)
    if told is None:
        assert loaded(folder, MINIMAL, trainer).trainer.kind == kind
        return
    problem = refusal(folder, MINIMAL, trainer)
    assert (problem.code, problem.key) == ("contradiction", "trainer.template")
    assert problem.message.removeprefix("model.model_config.") == told


@pytest.mark.bad_input(39)
@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ([command(f"train {TOLD}"), "space.zero_stage=[0, 1]"], "template"),
        ([command("train --tp {tensor_parallel} --mb {micro_batch_size}")], "template"),
        ([command("train --tp {tensor_parallel} --mb {micro_batch_size} --batch {global_batch_size}")], None),
        ([command(UNTOLD), "space.tensor_parallel=1", "baseline={tensor_parallel: 2}"], "template"),
        ([command(f"train {TOLD} {{zero_stage=3:--zero}}"), "space.zero_stage=[0, 1, 3]"], "template"),
        (
            [command(f"train --b {{bucket_mib}} {TOLD}"), "space.bucket_mib=[1, 25]", "space.tensor_parallel=[2, 4]"],
            "template",
        ),
        ([accelerate("mine"), "space.attention_kernel=[math, flash]"], "arguments"),
        ([accelerate("{bucket_mib}")], "arguments[2]"),
    ],
)
def test_a_layout_that_the_trainer_is_not_told_is_not_credited_to_it(folder, changes, key):
    ones = ["space.tensor_parallel=1"] if "kind: accelerate" in changes[0] else []
    spec = loaded(folder, MINIMAL, MICRO_BATCHES, *ones, *changes)
    if key is None:
        assert candidates_of(spec).layouts
        return
    with pytest.raises(InputError) as caught:
        candidates_of(spec)
    [problem] = caught.value.problems
    assert (problem.key, problem.file) == (f"trainer.{key}", "--set")


def test_an_option_that_each_trial_sets_is_not_searched(folder):
    sizes = "num_layers: 2, hidden_size: 64, num_attention_heads: 4, vocab_size: 256, seq_length: 64"
    words = "ffn_hidden_size: 128, gated_mlp: true, norm: rmsnorm, position_embedding: rotary, linear_biases: false"
    llama = [NANOTRON, f"model={{{sizes}, {words}}}", "space.precision=bf16", "space.attention_kernel=flash"]
    mine = loaded(folder, MINIMAL, *llama, "space.options={optimizer.clip_grad: [1, 2]}")
    assert len({layout.settings for layout in candidates_of(mine).layouts}) == 2
    for key in ("parallelism.tp", "tokens.train_steps"):
        with pytest.raises(InputError) as caught:
            candidates_of(loaded(folder, MINIMAL, *llama, f"space.options={{{key}: [1, 2]}}"))
        [problem] = caught.value.problems
        assert problem.key == f"space.options.{key}"


def test_a_baseline_of_another_engine_is_refused(folder):
    with pytest.raises(InputError, match="engine is torch"):
        candidates_of(loaded(folder, MINIMAL, MEGATRON, "baseline={tensor_parallel: 2, engine: torch}"))
    mine = loaded(folder, MINIMAL, MEGATRON, "baseline={tensor_parallel: 2}")
    assert candidates_of(mine).baseline.engine == "megatron-lm"


@pytest.fixture
def with_tokens(tmp_path, monkeypatch) -> Path:
    """The search file's folder, with a dataset of 200 tokens."""
    monkeypatch.chdir(tmp_path)
    write_tokens(tmp_path / "tokens", [i % 64 for i in range(200)])
    return tmp_path


def searching(folder: Path, data: str, *overrides: str) -> SearchSpec:
    return loaded(folder, f"{TINY_SEARCH}trainer:\n  data: {data}\n", *overrides)


TOKENS = "{kind: tokens, path: tokens}"


def test_the_files_place_and_content_are_written_down_for_all_trials(with_tokens):
    dataset = write_tokens(with_tokens / "tokens", range(64))
    spec = searching(with_tokens, TOKENS)
    place = {"kind": "tokens", "path": str(with_tokens / "tokens")}
    assert spec_json_of(spec)["data"] == place | {"num_tokens": 64, "checksum": dataset.checksum}
    assert read_back(spec).trainer == spec.trainer


def spec_json_of(spec: SearchSpec) -> dict:
    """Trainer section of a trial's spec.json."""
    trial = Trial("t0001", spec.baseline)
    attempt = Attempt("t0001", "a1", "0" * 32, 1, 100.0)
    return attempt_factory_of(SearchFolder(Path("x")), spec).spec(trial, attempt).to_json()["trainer"]


def test_a_file_that_cannot_be_trained_on_is_refused_in_its_line(with_tokens):
    with pytest.raises(InputError, match="200 tokens, too few for one sequence of 256") as caught:
        searching(with_tokens, TOKENS, "model.seq_length=256")
    (problem,) = caught.value.problems
    assert (problem.code, problem.key, problem.line) == ("dataset", "trainer.data.path", TINY_SEARCH.count("\n") + 2)
    assert problem.fix


def test_where_tokens_attend_to_their_document_the_model_has_the_files_mean_length(with_tokens):
    write_documents(with_tokens / "tokens", document_ids([8, 24, 4, 12, 81]))
    by_document = "{kind: tokens, path: tokens, attention_mask: block_causal}"
    spec = searching(with_tokens, by_document, "model.seq_length=32")
    assert spec.model.document_length == (8**2 + 24**2 + 4**2 + 12**2 + 16**2 + 2 * 32**2) / 128
    assert searching(with_tokens, TOKENS, "model.seq_length=32").model.document_length is None
    assert read_back(spec).model == spec.model
    assert spec_json_of(spec)["data"]["attention_mask"] == "block_causal"


def test_a_file_that_changed_or_went_since_then_keeps_a_search_from_going_on(with_tokens):
    spec = SearchSpec.from_json(searching(with_tokens, TOKENS).to_json())
    validate_space(spec)
    write_documents(with_tokens / "tokens", [range(100), range(100)])
    with pytest.raises(InputError, match="is another dataset than it was: its checksum"):
        validate_space(spec)
    os.unlink(with_tokens / "tokens.idx")
    with pytest.raises(InputError, match="No such file"):
        validate_space(spec)


def test_the_observer_times_a_script_without_patterns_unless_it_is_off(folder):
    asked = {"kind": "accelerate", "script": "pretrain_gpt.py", "arguments": ["--mb={micro_batch_size}"]}
    assert loaded(folder, trainer=asked).trainer.patterns is None
    for more in ({"observe": False}, {"kind": "megatron-lm", "arguments": [], "patterns": "observer"}):
        assert "trainer.patterns: no observer sees the steps" in str(refusal(folder, trainer=asked | more))


def test_the_length_of_packed_documents_is_given_for_a_trainer_of_others_alone(folder):
    asked = {"kind": "accelerate", "script": "pretrain_gpt.py", "arguments": ["--mb={micro_batch_size}"]}
    whole, packed = (
        loaded(folder, TINY_SEARCH, *more, trainer=asked).model for more in ((), ("model.document_length=4.5",))
    )
    assert packed.model_flops_per_token < whole.model_flops_per_token
    assert "model.document_length: is given for Parlay" in str(
        refusal(folder, TINY_SEARCH, "model.document_length=4.5")
    )
