"""Every option of Megatron's two parsers has one handling, and the reader keeps it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.importers import reasons
from orchestrator.importers.imported_config import ImportedConfig
from orchestrator.importers.launch_script import read_launch_script
from orchestrator.importers.launcher_options import LAUNCHER_GROUPS
from orchestrator.importers.megatron.megatron_deepspeed_options import MEGATRON_DEEPSPEED_OPTIONS
from orchestrator.importers.megatron.megatron_lm_options import MEGATRON_LM_OPTIONS
from orchestrator.importers.option_table import Handling, OptionTable
from search_spaces.errors import InputError
from tests.orchestrator.importers.config_tables import keys_with, require_one_handling_of_each_key
from trials.trainers.common.megatron_options import unsupported_option_reason

TABLES = pytest.mark.parametrize(
    ("table", "start"),
    [
        (MEGATRON_LM_OPTIONS.with_groups(LAUNCHER_GROUPS), ""),
        (MEGATRON_DEEPSPEED_OPTIONS.with_groups(LAUNCHER_GROUPS), "--deepspeed"),
    ],
    ids=["megatron-lm", "megatron-deepspeed"],
)


def given(table: OptionTable, name: str) -> str:
    """The option with a value, where it has one, that is not neutral."""
    return f"--{name}" if name in table.flags else f"--{name} 3"


def read(start: str, options: str) -> ImportedConfig:
    return read_launch_script(f"torchrun pretrain_gpt.py --hidden-size 256 --micro-batch-size 1 {start} {options}")


def values_of(found: ImportedConfig) -> tuple:
    """Values, notes and what is kept, without their origins."""
    values = found.model, found.layout, found.global_batch_size, found.num_nodes, found.gpus_per_node
    return *values, found.notes, found.arguments, found.changed


@TABLES
def test_every_option_is_in_one_group_and_every_neutral_value_is_that_of_an_option(table, start):
    require_one_handling_of_each_key(table)


EXPERTS, STAGES = "--num-experts 4 --num-layers 4", "--pipeline-model-parallel-size 2 --nproc-per-node 4"
BESIDE = {
    "add-qkv-bias": ("", "--disable-bias-linear"),
    "data-parallel-sharding-strategy": ("optim_grads", "--use-megatron-fsdp"),
    "disable-pad-vocab-size": ("", "--vocab-size 1000"),
    "group-query-attention": ("", "--num-query-groups 2 --num-attention-heads 4"),
    "make-vocab-size-divisible-by": ("1", "--vocab-size 1000"),
    "no-pad-vocab-size": ("", "--vocab-size 1000"),
    "num-layers-per-virtual-pipeline-stage": ("1", f"--num-layers 4 {STAGES}"),
    "num-query-groups": ("2", "--group-query-attention --num-attention-heads 4"),
    "quick-geglu": ("", ""),
    "glu-linear-offset": ("1.0", "--quick-geglu --activation-func-clamp-value 7.0"),
    "activation-func-clamp-value": ("7.0", "--quick-geglu --glu-linear-offset 1.0"),
    **dict.fromkeys(
        (
            *("moe-router-topk", "moe-ffn-hidden-size", "moe-shared-expert-intermediate-size"),
            *("expert-model-parallel-size", "expert-tensor-parallel-size"),
        ),
        ("3", EXPERTS),
    ),
    "moe-token-dispatcher-type": ("alltoall", EXPERTS),
    "moe-enable-deepep": ("", EXPERTS),
    "moe-flex-dispatcher-backend": ("hybridep", f"{EXPERTS} --moe-token-dispatcher-type flex"),
    "moe-layer-freq": ("[0,0,1,1]", EXPERTS),
    **dict.fromkeys(
        ("q-lora-rank", "kv-lora-rank", "qk-head-dim", "qk-pos-emb-head-dim", "v-head-dim"),
        ("3", "--multi-latent-attention"),
    ),
    **dict.fromkeys(("cuda-graph-scope", "cuda-graph-modules"), ("attn", "--cuda-graph-impl transformer_engine")),
    **dict.fromkeys(("attention-dropout", "hidden-dropout", "clip-grad"), ("0", "")),
    "softmax-type": ("learnable", ""),
    "window-size": ("7,0", ""),
    "window-attn-skip-freq": ("2", "--window-size 7,0"),
    "rotary-base": ("500000", "--position-embedding-type rope"),
    "rotary-position-embeddings-theta": ("500000", "--use-rotary-position-embeddings"),
    "recompute-granularity": ("full", ""),
    "recompute-method": ("block", "--num-layers 4 --recompute-granularity full --recompute-num-layers 1"),
    "recompute-modules": ("mlp", "--recompute-activations"),
    "recompute-num-layers": ("2", "--recompute-granularity full --recompute-method uniform"),
    "checkpoint-num-layers": ("2", "--checkpoint-activations"),
    "tokenizer-type": ("Llama2Tokenizer", ""),
    "attention-backend": ("unfused", "--bf16"),
    "transformer-impl": ("local", "--bf16"),
    "position-embedding-type": ("rope", ""),
    "normalization": ("RMSNorm", ""),
    "kv-channels": ("128", "--num-attention-heads 4"),
    "optimizer-offload-fraction": ("0.5", "--optimizer-cpu-offload"),
    "zero-stage": ("2", ""),
    "vocab-size": ("1000", "--tokenizer-type NullTokenizer"),
    "rampup-batch-size": ("16 16 1000", ""),
    "step-batch-size-schedule": ("0:8", ""),
    "num-layers": ("8", ""),
    "no-pipeline-parallel": ("", STAGES),
    "hidden-size": ("512", ""),
    "deepspeed-config": ("ds.json", ""),
    "standalone": ("", "--nnodes 2 --nproc-per-node 4"),
    "hostfile": ("hosts", "--num-gpus 4"),
    "launcher": ("slurm", "--num-gpus 4"),
}
"""Option, the value with which it changes what is read, and what it needs beside it; otherwise 3 and nothing."""
CHOOSES_THE_TABLE = "deepspeed"


def outcome(start: str, options: str) -> tuple:
    """Values and notes, or the names of the options that are refused."""
    try:
        return values_of(read(start, options))
    except InputError as error:
        return tuple(problem.key for problem in error.problems)


@TABLES
def test_every_option_that_is_read_changes_what_is_read(table, start):
    unread = []
    for name in {*keys_with(table, Handling.READ)} - {CHOOSES_THE_TABLE}:
        value, beside = BESIDE.get(name, ("3", ""))
        option = f"--{name}" if name in table.flags else f"--{name} {value}"
        if outcome(start, f"{beside} {option}") == outcome(start, beside):
            unread.append(name)
    assert unread == []


@TABLES
def test_a_refused_option_is_refused_and_a_noted_one_noted_or_kept_for_the_trainer(table, start):
    for name in keys_with(table, Handling.REFUSED):
        with pytest.raises(InputError) as refused:
            read(start, given(table, name))
        assert [problem.key for problem in refused.value.problems] == [f"--{name}"]
    noted = keys_with(table, Handling.NOTED)
    found = read(start, " ".join(given(table, name) for name in noted))
    left_out = {name for name in noted if any(note.startswith(f"--{name} was left out: ") for note in found.notes)}
    assert left_out == {*noted} - {word.removeprefix("--") for word in found.arguments}
    reasons_of = {table.group_of[name].reason for name in left_out if unsupported_option_reason(name) is None}
    assert reasons_of <= {reasons.WATCHED}


@TABLES
def test_what_has_no_effect_changes_nothing_of_what_is_read(table, start):
    useless = " ".join(given(table, name) for name in keys_with(table, Handling.NO_EFFECT))
    assert replace(read(start, useless), arguments=()) == replace(read(start, ""), arguments=())
