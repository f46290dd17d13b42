"""Options that change speed, memory or the model, each added to a file that is read: none goes unmentioned."""

from __future__ import annotations

import pytest

from orchestrator.importers.registry import read_source
from search_spaces.errors import InputError

_MEGATRON = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 8 --hidden-size 512 --num-attention-heads 8"
    " --seq-length 1024 --max-position-embeddings 1024 --micro-batch-size 1 --global-batch-size 32 --bf16"
)
_IN_8_BITS = "--fp8-format e4m3 --fp8-recipe mxfp8"
_EXPERTS = "--num-experts 8"
_BRIDGE = (
    "torchrun --nproc_per_node 8 run_recipe.py --recipe llama3_8b_pretrain_config model.tensor_model_parallel_size=2"
)
_TORCHTITAN = "torchrun --nproc_per_node 8 -m torchtitan.train --module llama3 --config llama3_8b"


@pytest.mark.parametrize(
    ("command", "option"),
    [
        (_MEGATRON, "--logits-load-dir /logits"),
        (_MEGATRON, "--logits-save-dir /logits"),
        (_MEGATRON, "--no-check-for-nan-in-loss-and-grad"),
        (_MEGATRON, "--log-max-attention-logit"),
        (f"{_MEGATRON} {_IN_8_BITS}", "--fp8-output-proj"),
        (f"{_MEGATRON} {_IN_8_BITS} {_EXPERTS}", "--moe-router-padding-for-quantization"),
        (_MEGATRON, "--outer-dp-sharding-strategy optim"),
        (f"{_MEGATRON} {_EXPERTS}", "--expert-tensor-parallel-num-weight-shards 2"),
        (f"{_MEGATRON} {_EXPERTS}", "--moe-router-force-biased 0.1"),
        (_MEGATRON, "--option-of-a-later-release 3"),
        (_MEGATRON, "--lora-rank 16"),
        (_BRIDGE, "ddp.check_for_nan_in_grad=false"),
        (_BRIDGE, "model.log_max_attention_logit=true"),
        (_BRIDGE, "model.fp8_output_proj=true"),
        (_BRIDGE, "model.softmax_type=learnable"),
        (_BRIDGE, "ddp.outer_dp_sharding_strategy=optim"),
        (_TORCHTITAN, "--profiler.enable_profiling"),
    ],
)
def test_an_added_option_is_kept_named_or_refused(command, option, tmp_path):
    (tmp_path / "train.sh").write_text(f"{command} {option}\n", encoding="utf-8")
    assert option.replace("=", " ").split()[0] in mentioned(tmp_path / "train.sh")


def mentioned(path) -> str:
    """All that the import of a file says of what it has."""
    try:
        found = read_source(path)
    except InputError as refused:
        return " ".join(str(problem) for problem in refused.problems)
    assert found is not None
    return " ".join([*found.notes, *found.arguments, *found.origins.values()])
