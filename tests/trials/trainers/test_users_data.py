"""The user's data, tokenizer and packing with every trainer that reads its own: passed on to trials and recipes."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.recipe.exports import ExportStatus, exports
from search_spaces.errors import InputError
from tests.trials.trainers.specs import GPT2, LLAMA, spec_of
from trials.schema.trainer_section import TrainerSection
from trials.trainers.registry import TRAINERS, invocation

MEGATRON = ("--data-path", "0.3", "/data/a", "0.7", "/data/b c", "--split", "98,2,0", "--tokenizer-type")
MEGATRON += ("HuggingFaceTokenizer", "--tokenizer-model", "/models/gpt2")
PACKED = ("--reset-position-ids", "--reset-attention-mask", "--eod-mask-loss")
STAGES = [{"name": "a", "start_training_step": 1, "data": {"dataset": {"dataset_folder": ["/data/a"]}, "seed": 4}}]
NANOTRON = {"data_stages": STAGES, "tokenizer": {"tokenizer_name_or_path": "/models/llama"}}
NEOX = {"data_path": "/data/a_text", "vocab_file": "/data/vocab.json", "tokenizer_type": "HFTokenizer"}
SCRIPT = ("--data=/data/a b", "--pack", "--mbs={micro_batch_size}")

DATA: dict[str, dict[str, Any]] = {
    "megatron-lm": {"arguments": (*MEGATRON, *PACKED)},
    "megatron-deepspeed": {"arguments": (*MEGATRON, *PACKED)},
    "gpt-neox": {"template": NEOX, "arguments": ("--local_rank=0",)},
    "nanotron": {"template": NANOTRON, "arguments": ("--job-id", "7")},
    "accelerate": {"arguments": SCRIPT, "patterns": {"step_time_s": "(.+) s"}},
    "command": {"template": "train --data '/data/a b' --mbs {micro_batch_size}", "patterns": {"step_time_s": "(.+) s"}},
}
MODELS = {"nanotron": LLAMA}
TOKENS = {"kind": "tokens", "path": "tokens.bin"}


def spec_with_data(kind: str):
    fields = {"zero_stage": 1} if kind == "nanotron" else {}
    return spec_of(kind, MODELS.get(kind, GPT2), DATA[kind], **fields)


def test_every_trainer_of_others_has_a_case():
    assert DATA.keys() == {kind for kind, trainer in TRAINERS.items() if trainer.invocation is not None}


@pytest.mark.parametrize("kind", DATA)
def test_a_trial_reads_the_users_data_and_no_mock_data(kind):
    given, started = DATA[kind], invocation(spec_with_data(kind), "python", "/attempt")
    words, text = list(started.command), "\n".join(started.files.values())
    assert not {"--mock-data", "NullTokenizer"} & {*words}
    if kind == "accelerate":
        assert words[-3:] == ["--data=/data/a b", "--pack", "--mbs=1"]
    elif kind == "command":
        assert words[-4:] == ["--data", "/data/a b", "--mbs", "1"]
    else:
        assert tuple(words[-len(given["arguments"]) :]) == given["arguments"]
        for path in ("/data/a_text", "/data/vocab.json", "HFTokenizer") if kind == "gpt-neox" else ():
            assert path in text
        for path in ("/data/a", "/models/llama") if kind == "nanotron" else ():
            assert path in text


@pytest.mark.parametrize("kind", DATA)
def test_the_recipe_of_a_trial_starts_the_trainer_with_that_data(kind):
    made = exports(spec_with_data(kind), "python")[0]
    assert made.status is ExportStatus.MEASURED
    told = "\n".join([made.unrun_start or "", *made.files.values()])
    paths = {"gpt-neox": ("/data/a_text", "--local_rank=0"), "nanotron": ("/models/llama", "--job-id 7")}
    for path in paths.get(kind, ("/data/a",)):
        assert path in told
    assert "--mock-data" not in told


@pytest.mark.parametrize(
    ("kind", "changes", "key", "words"),
    [
        ("megatron-lm", {"arguments": ("--seq-length", "8192")}, "arguments[0]", "gives --seq-length"),
        ("megatron-lm", {"arguments": (*MEGATRON, "--train-samples=7")}, "arguments[11]", "gives --train-samples"),
        ("megatron-deepspeed", {"arguments": ("--rampup-batch-size", "8")}, "arguments[0]", "gives --rampup-batch"),
        ("gpt-neox", {"arguments": ("--megatron_config", "x")}, "arguments[0]", "gives --megatron_config"),
        ("nanotron", {"arguments": ("--config-file=x.yaml",)}, "arguments[0]", "gives --config-file"),
        ("accelerate", {"arguments": ("--mixed_precision=bf16",)}, "arguments[0]", "gives --mixed_precision"),
        *((kind, {"data": TOKENS}, "data", f"no effect with kind {kind}") for kind in DATA),
    ],
)
def test_what_contradicts_the_search_is_refused_by_name(kind, changes, key, words):
    script = {} if kind == "command" else {"script": "train.py"}
    with pytest.raises(ValueError, match="validation error") as caught:
        TrainerSection.model_validate({"kind": kind} | script | DATA[kind] | changes)
    error = next(e["ctx"]["error"] for e in caught.value.errors())
    assert isinstance(error, InputError)
    assert [p.key for p in error.problems if words in p.message] == [key]
