from __future__ import annotations

import shlex
from dataclasses import replace

import pytest

from orchestrator.config.importers.launch_script import read_launch_script
from search_spaces.layouts.layout import Layout
from search_spaces.model_shape import ModelShape
from tests.oracles.cases import export_cases
from tests.trials.trainers.specs import LLAMA, spec_of
from trials.trainers.common.megatron_options import MEGATRON_LM, NO_DROPOUT, megatron_lm_options
from trials.trainers.common.options import option_names
from trials.trainers.megatron_deepspeed.trainer import megatron_deepspeed_options
from trials.trainers.registry import TRAINERS
from trials.trial import TrialKind

PIPELINE = {"tensor_parallel": 2, "pipeline_parallel": 2}
DEEPSPEED_LAYOUTS = [
    {},
    {**PIPELINE, "sequence_parallel": True, "activation_checkpointing": "full"},
    {"zero_stage": 3, "offload": "optimizer", "activation_checkpointing": "selective", "tensor_parallel": 4},
    {"zero_stage": 1, "precision": "fp32", "attention_kernel": "math"},
]


OF_THE_USER = {
    *("lr", "attention-dropout", "hidden-dropout", "distributed-timeout-minutes", "mock-data", "tokenizer-type"),
    *("vocab-size", "make-vocab-size-divisible-by", "ckpt-format", "no-gradient-accumulation-fusion"),
    *("use-precision-aware-optimizer", "accumulate-allreduce-grads-in-fp32", "no-check-for-nan-in-loss-and-grad"),
    *("moe-grouped-gemm", "moe-router-dtype", "moe-router-load-balancing-type", "no-rope-fusion"),
    *("no-bias-dropout-fusion", "no-bias-gelu-fusion", "hierarchical-context-parallel-sizes"),
}
"""Options of a trial that an argument may say otherwise: data, kernels, sizes of groups, and what balances experts."""


@pytest.mark.slow
@pytest.mark.bad_input(40)
def test_what_megatron_lm_is_told_is_the_layout_and_the_model_and_cannot_be_an_argument_too():
    rendered: set[str] = set()
    for case in export_cases("megatron-lm"):
        words = megatron_lm_options(case.spec, ())
        ranks = f"--nnodes {case.spec.num_nodes} --nproc_per_node {min(case.spec.num_gpus, 8)}"
        found = read_launch_script(f"torchrun {ranks} pretrain_gpt.py {shlex.join(words)}")
        assert Layout(**found.layout, engine=found.source).canonical() == case.spec.layout
        assert ModelShape(**found.model) == case.spec.model
        rendered |= option_names(words)
    assert {name for name in rendered if MEGATRON_LM.refusal(name) is None} == OF_THE_USER
    assert MEGATRON_LM.refusal("save") == "a trial writes no checkpoint"
    assert MEGATRON_LM.refusal("weight-decay") is None


@pytest.mark.parametrize("trainer", ["megatron-lm", "megatron-deepspeed"])
@pytest.mark.parametrize(
    ("arguments", "trained"),
    [
        ((), {}),
        (("--hidden-dropout", "0", "--attention_dropout=0.0"), {}),
        (("--hidden-dropout", "0", "--hidden-dropout", "0.1"), {"has_dropout": True}),
        (("--attention_dropout=1e-2", "--swiglu"), {"has_dropout": True}),
        (("--cross-entropy-loss-fusion",), {"fuses_loss": True}),
    ],
)
def test_a_model_trains_with_the_dropout_and_the_loss_of_the_users_arguments(trainer, arguments, trained):
    assert TRAINERS[trainer].trained_model(LLAMA, arguments) == replace(LLAMA, **trained)


def test_megatron_deepspeed_is_told_what_cannot_be_an_argument_too():
    specs = [spec_of("megatron-deepspeed", LLAMA, **fields) for fields in DEEPSPEED_LAYOUTS]
    rendered = option_names(word for spec in specs for word in megatron_deepspeed_options(spec, "x", ()))
    refusal = TRAINERS["megatron-deepspeed"].argument_error
    assert {name for name in rendered if refusal(name) is None} == {*NO_DROPOUT, "lr", "make-vocab-size-divisible-by"}


@pytest.mark.parametrize("render", [megatron_lm_options, lambda s, a: megatron_deepspeed_options(s, "x.json", a)])
def test_it_is_told_how_long_to_run_and_to_log_every_step(render):
    spec = spec_of("megatron-lm")
    words, again = (render(each, ()) for each in (spec, replace(spec, kind=TrialKind.REPEAT)))
    assert again[again.index("--train-iters") + 1] == "220", "a finalist's steps"
    assert words[words.index("--train-iters") + 1] == "40"
    assert words[words.index("--log-interval") + 1] == "1"
    assert words[words.index("--eval-iters") + 1] == "0"


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_gradients_are_summed_in_fp32_in_fp16_too_which_megatron_lm_does_by_itself_in_bf16_alone(precision):
    kernel = {"attention_kernel": "math"} if precision == "fp32" else {}
    words = megatron_lm_options(spec_of("megatron-lm", precision=precision, **kernel), ())
    assert ("--accumulate-allreduce-grads-in-fp32" in words) is (precision == "fp16")


@pytest.mark.parametrize("users", [[], ["--hierarchical-context-parallel-sizes", "4", "2"]])
def test_a_hierarchy_of_context_parallel_ranks_has_inner_groups_of_two_or_the_users_sizes(users):
    spec = spec_of("megatron-lm", context_parallel=8, context_transport="a2a_p2p")
    words = megatron_lm_options(spec, users)
    place = words.index("--hierarchical-context-parallel-sizes")
    assert words[place + 1 : place + 3] == (users[1:] or ["2", "4"])
    assert words.count("--hierarchical-context-parallel-sizes") == 1


def test_no_option_is_given_twice_and_the_users_own_take_the_place_of_defaults():
    spec = spec_of("megatron-lm")
    alone = megatron_lm_options(spec, ())
    assert {"--mock-data", "--tokenizer-type", "--lr"} <= set(alone)
    users = ["--data-path", "/data/c4", "--tokenizer-type=HuggingFaceTokenizer", "--lr", "3e-4"]
    users += ["--make-vocab-size-divisible-by", "128"]
    words = megatron_lm_options(spec, users)
    assert words[-len(users) :] == users
    assert "--mock-data" not in words
    assert words.count("--lr") == 1
    names = [name for word in words if (name := next(iter(option_names([word])), None))]
    assert len(names) == len(set(names))
