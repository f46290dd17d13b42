"""Fine-tunings of users' own scripts, by transformers' Trainer and TRL's SFTTrainer, under Parlay on this machine."""

from __future__ import annotations

import json
import random
import shutil
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from search_spaces.adapters import Adapters
from search_spaces.engines import ACCELERATE_LAUNCH
from search_spaces.layouts.layout import Layout
from search_spaces.model_shape import ModelShape
from tests.kit import ABSENT, LLAMA, TINY, TINY_SEARCH, search_file
from tests.orchestrator.cli.parlay import parlay
from tests.trials.external.patched_interpreter import interpreter_in
from tests.trials.external.ranks import start
from tests.trials.train.trial_processes import RunningTrial, make_spec
from trials.measure_rules import MeasureRules
from trials.trial import FailureReason, Flag, Outcome

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600)]

SCRIPTS = Path(__file__).parent / "own_scripts"
RULES = MeasureRules(min_steps=5, max_steps=6, max_warmup_steps=3, ci_relative_width=1.0, time_limit_s=300.0)
TARGETS = ("q_proj", "v_proj")
MODEL = replace(
    TINY,
    **LLAMA,
    num_key_value_heads=2,
    ffn_hidden_size=128,
    vocab_size=128,
    seq_length=64,
    adapters=Adapters(4, alpha=8, target_modules=TARGETS),
    trainable=(),
    is_finetuned=True,
)
OPTIONS = (
    *("--per_device_train_batch_size={micro_batch_size}", "--gradient_accumulation_steps={grad_accum_steps}"),
    *("--max_steps={train_iterations}", "--use_cpu", "--report_to=none", "--output_dir={attempt_folder}/out"),
)
OF_SFT = (
    *("--max_length={seq_length}", "--bf16=false", "--gradient_checkpointing=false"),
    *("--use_peft", "--lora_r=4", "--lora_alpha=8", "--lora_target_modules", *TARGETS),
)
LAYOUT = Layout(data_parallel=2, micro_batch_size=2, grad_accum_steps=2, engine=ACCELERATE_LAUNCH).canonical()


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A user's folder: scripts, a model with its tokenizer, and examples of 8 to 60 tokens."""
    if find_spec("transformers") is None:
        pytest.skip("transformers is not installed: the extra `trainers`")
    folder: Path = tmp_path_factory.mktemp("tuning")
    for name in ("sft.py", "lora.py"):
        shutil.copy(SCRIPTS / name, folder)
    words = [f"w{number}" for number in range(MODEL.vocab_size - 4)]
    write_model(folder / "model", MODEL, words)
    draw = random.Random(0)
    texts = (" ".join(draw.choices(words, k=draw.randint(8, 60))) for _ in range(256))
    (folder / "examples.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return folder


def write_model(path: Path, shape: ModelShape, words: list[str]) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    special = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    numbers = {word: number for number, word in enumerate([*special.values(), *words])}
    tokenizer = Tokenizer(models.WordLevel(numbers, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(path)
    config = LlamaConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.ffn_hidden_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_attention_heads,
        num_key_value_heads=shape.num_key_value_heads,
        max_position_embeddings=shape.seq_length,
        pad_token_id=numbers["<pad>"],
        tie_word_embeddings=shape.tied_embeddings,
    )
    LlamaForCausalLM(config).save_pretrained(path)


def run(
    folder: Path, tmp_path: Path, script: str, *words: str, python: str = sys.executable, **layout: Any
) -> tuple[Outcome, RunningTrial]:
    trainer = {"kind": "accelerate", "script": str(folder / script), "arguments": [*OPTIONS, *words]}
    spec = make_spec(replace(LAYOUT, **layout).canonical(), model=MODEL, measure=RULES, trainer=trainer)
    ranks = start(tmp_path, spec, python=python)
    ranks.wait(300.0)
    return ranks.outcome(), ranks


def test_a_script_with_transformers_trainer_and_peft_is_timed_and_proven(folder, tmp_path):
    outcome, ranks = run(folder, tmp_path, "lora.py")
    measured, seen = outcome.measured, outcome.proof["observed_step"]
    assert measured is not None, ranks.logs()
    assert (outcome.proof["unproven"], Flag.UNPROVEN in outcome.flags) == ([], False), seen
    assert seen.trainable_parameters == seen.optimizer_parameters == MODEL.trainable_parameters
    assert seen.wrapper == "DistributedDataParallel"
    assert seen.documents == LAYOUT.global_batch_size
    assert measured.real_token_share == pytest.approx(seen.real_tokens / (LAYOUT.global_batch_size * MODEL.seq_length))
    assert measured.real_tokens_per_sec == pytest.approx(measured.tokens_per_sec * measured.real_token_share)
    assert 0.1 < measured.real_token_share < 0.95
    assert measured.peak_memory_gib > 0.1


def test_a_script_that_trains_all_weights_beside_its_adapters_is_not_credited_to_them(folder, tmp_path):
    outcome, ranks = run(folder, tmp_path, "lora.py", "--all")
    assert outcome.reason is FailureReason.RESULT_INVALID, ranks.logs()
    assert "of the trial's 3,584 of 159,808 parameters train: lora of rank 4" in (outcome.excerpt or "")


@pytest.mark.walks
def test_fsdp_shards_the_frozen_weights_and_the_adapters(folder, tmp_path, tmp_path_factory):
    on_cpu = interpreter_in(tmp_path_factory.mktemp("python"), "tests.trials.external.accelerate_on_cpu.start")
    outcome, ranks = run(folder, tmp_path, "lora.py", "--use_cpu=false", python=str(on_cpu), zero_stage=3)
    assert outcome.measured is not None, ranks.logs()
    seen = outcome.proof["observed_step"]
    assert (outcome.proof["unproven"], seen.wrapper) == ([], "FSDPModule")
    assert seen.trainable_parameters == MODEL.trainable_parameters
    assert seen.local_parameters < MODEL.parameters


@pytest.mark.walks
def test_packed_sequences_of_trl_are_all_real_and_attend_to_their_own_documents(folder, tmp_path):
    outcome, ranks = run(folder, tmp_path, "sft.py", *OF_SFT, "--packing")
    assert outcome.measured is not None, ranks.logs()
    seen = outcome.proof["observed_step"]
    assert seen.documents > LAYOUT.global_batch_size
    assert 0.5 < outcome.measured.real_token_share <= 1
    assert outcome.measured.document_length < 61


@pytest.mark.walks
@pytest.mark.minutes
def test_a_search_with_trls_trainer_ends_in_a_recipe_that_is_replayed(folder, tmp_path):
    shape: dict[str, Any] = {name: value for name, value in MODEL.to_json().items() if value is not None}
    derived = ("trainable", "is_finetuned", "has_dropout", "fuses_loss")
    asked = {name: shape.pop(name) for name in ("adapters", *derived)}["adapters"]
    path = search_file(
        tmp_path,
        TINY_SEARCH,
        baseline=ABSENT,
        model=shape,
        task="finetune",
        adapters={name: value for name, value in asked.items() if value is not None},
        space={"tensor_parallel": 1, "pipeline_parallel": 1, "zero_stage": 0, "micro_batch_size": [1, 2]},
        search={"sampler": "grid"},
        measure={"early_stopping": False, "max_steps": 12},
        tracking={"enabled": False},
        trainer={
            "kind": "accelerate",
            "python": sys.executable,
            "script": str(folder / "sft.py"),
            "arguments": [*OPTIONS, *OF_SFT],
        },
    )
    answer = parlay("run", path, "--json", cwd=tmp_path, timeout_s=500)
    assert answer.code == 0, answer.err
    assert (answer.json["trials"]["measured"], answer.json["trials"]["failed"]) == (2, 0), answer.err
    assert (Path(answer.json["recipe"]) / "accelerate.yaml").exists()
    replayed = parlay("replay", answer.json["search_id"], "--repeats", "1", "--sessions", "1", "--json", cwd=tmp_path)
    # Measured again; the verdict is that of a machine whose cores are shared.
    assert replayed.json["measured"] is not None, replayed.err
