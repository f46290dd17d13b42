from __future__ import annotations

import pytest

from orchestrator.config.importers.launch_script import read_launch_script
from search_spaces.errors import InputError
from search_spaces.layouts.layout import BATCH_RULE, WORLD_RULE
from tests.orchestrator.config.importers.samples import MEGATRON_DEEPSPEED

EXPERTS = "--num-experts 8"
OWN_VOCABULARY = "--tokenizer-type NullTokenizer --vocab-size 1000"
THETA = "--rotary-position-embeddings-theta 500000"
FLEX = f"{EXPERTS} --moe-token-dispatcher-type flex"
PIPELINE, PLAIN = "--deepspeed", "--deepspeed --no-pipeline-parallel"
ALL_LAYERS = f"{PIPELINE} --recompute-granularity full"
VIRTUAL = "--num-virtual-stages-per-pipeline-rank"
BLOCK = "--recompute-granularity full --recompute-method block --recompute-num-layers"


def launch(options: str) -> str:
    return f"torchrun --nproc_per_node 4 pretrain_gpt.py --num-layers 4 --hidden-size 256 {options}"


@pytest.mark.parametrize(
    ("options", "field", "value"),
    [
        ("--recompute-activations --recompute-modules mlp", "recompute_modules", "mlp"),
        ("--cuda-graph-impl transformer_engine --cuda-graph-modules attn", "cuda_graphs", "attn"),
        ("--cuda-graph-impl local", "cuda_graphs", "attn+mlp"),
        (f"{EXPERTS} --external-cuda-graph --cuda-graph-scope moe_router attn", "cuda_graphs", "attn+moe_router"),
        ("--num-layers-per-virtual-pipeline-stage 1 --pipeline-model-parallel-size 2", "virtual_pipeline_stages", 2),
        ("--bf16 --use-flash-attn --attention-backend unfused", "attention_kernel", "math"),
        ("--num-experts 8", "expert_dispatcher", "allgather"),
        (FLEX, "expert_dispatcher", "deepep"),
        ("--cp-comm-type allgather", "context_transport", "all_gather"),
        ("--bf16 --transformer-impl local", "attention_kernel", "math"),
        ("--vocab-size 1000 --disable-pad-vocab-size", "vocab_size", 50257),
        (f"--deepspeed {OWN_VOCABULARY} --make-vocab-size-divisible-by 1", "vocab_size", 1001),
        (f"--deepspeed --use-rotary-position-embeddings {THETA}", "rotary_base", 500_000),
        ("--micro-batch-size 3", "grad_accum_steps", 1),  # no global batch: one micro-batch a data-parallel rank
        ("--group-query-attention", "num_key_value_heads", 1),
        ("", "num_key_value_heads", 8),
        ("--tokenizer-type GPT2BPETokenizer --vocab-size 51200", "vocab_size", 50304),
        ("--tokenizer-type Llama2Tokenizer --vocab-size 32000 --padded-vocab-size 32768", "vocab_size", 32768),
        ("--swiglu", "ffn_hidden_size", 640),
        ("--normalization RMSNorm", "linear_biases", True),
        ("--window-size '(127, 0)'", "sliding_window", 128),
        ("--quick-geglu --glu-linear-offset 1 --activation-func-clamp-value 7", "activation", "clamped_swiglu"),
        ("--num-experts 8", "experts_per_token", 2),
        ("--deepspeed --num-experts 1", "num_experts", None),
        (
            f"{EXPERTS} --moe-aux-loss-coeff 1e-2 --moe-router-load-balancing-type aux_loss",
            "aux_loss_coefficient",
            0.01,
        ),
        ("--multi-latent-attention", "key_value_latent_size", 32),
        ("--kv-channels $KV", "attention_head_size", None),
        ("--add-qkv-bias", "qkv_bias", None),
        ("--multi-latent-attention --qk-layernorm", "qk_norm", None),
        ("--no-position-embedding --position-embedding-type rope", "position_embedding", "rotary"),
        # Recomputation is what the trainer makes of its options; as many layers as a chunk has are all layers.
        ("--recompute-activations --recompute-granularity full", "activation_checkpointing", "selective"),
        (f"{ALL_LAYERS} --recompute-method uniform", "activation_checkpointing", "full"),
        (ALL_LAYERS, "activation_checkpointing", None),
        (f"{PIPELINE} {BLOCK} 4", "activation_checkpointing", None),
        (f"{PLAIN} --recompute-granularity full", "activation_checkpointing", "full"),
        (f"{PLAIN} --deepspeed-activation-checkpointing", "activation_checkpointing", None),
        (f"{BLOCK} 1 --pipeline-model-parallel-size 2 {VIRTUAL} 2", "recompute_layers", None),
        ("--recompute-granularity full --recompute-method uniform --recompute-num-layers 2", "recompute_layers", None),
    ],
)
def test_an_option_sets_its_field_and_with_the_usual_value_none(options, field, value):
    found = read_launch_script(launch(f"--num-attention-heads 8 {options}"))
    assert {**found.layout, **found.model}.get(field) == value


def test_an_unknown_variable_or_name_is_reported_and_not_guessed():
    found = read_launch_script(launch("--tensor-model-parallel-size $TP --micro-batch-size ${MBS} --bf16 $EXTRA_ARGS"))
    assert not {"tensor_parallel", "data_parallel", "micro_batch_size"} & set(found.layout)
    assert "--micro-batch-size is '${MBS}', which was not used: the script does not set it." in found.notes
    assert any(note.startswith("$EXTRA_ARGS is in the training command") for note in found.notes)
    found = read_launch_script(launch("--micro-batch-size 1 --${DTYPE}"))
    assert "precision" not in found.layout
    assert {"precision", "attention_kernel"} <= {*found.in_doubt}
    assert any(note.startswith("--${DTYPE} is true, which was not used: the script does not") for note in found.notes)
    assert read_launch_script(launch("--micro-batch-size 1 --${DTYPE} --bf16")).layout["precision"] == "bf16"


@pytest.mark.security("secrets")
def test_values_that_may_be_secrets_are_not_repeated_in_notes():
    script = 'KEY=${WANDB_API_KEY:-abcdef}\nif x; then A="$A --wandb-key abcdef"; fi\n'
    found = read_launch_script('A="--bf16"\n' + script + launch("--micro-batch-size 1 $A"))
    assert any("--wandb-key" in note for note in found.notes)
    assert "abcdef" not in " ".join(found.notes)


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ("--context-parallel-size 2 --cp-comm-type p2p a2a", "context_transport is p2p, all_gather"),
        ("--num-experts 8 --num-layers 4 --moe-layer-freq [1,0,0,1]", "expert_layer_every"),
        ("--num-experts 8 --moe-token-dispatcher-type other", "expert_dispatcher is alltoall"),
        ("--fp8-format hybrid --fp8-recipe custom", "matmul_precision has the recipes delayed, tensorwise"),
        ('--pipeline-model-parallel-layout "Et*4|L"', "none has the embedding, the loss"),
        ("--window-size 4096,1", "sliding_window is a number of positions"),
        ("--exp-avg-dtype bf16", "moment_dtype is the type of both moments"),
        ("--no-position-embedding", "position_embedding is learned or rotary"),
        ("--recompute-granularity full --recompute-method block", "block needs --recompute-num-layers"),
        ("--num-experts 8 --cuda-graph-impl local", "cuda_graphs is attn, mlp, moe_router or"),
        ("--recompute-granularity selective --recompute-modules mhc mlp", "recompute_modules is layernorm, mla_up"),
        ("--optimizer-cpu-offload --optimizer-offload-fraction 0.5", "offload moves the whole optimizer"),
        ("--lora-rank 8", "adapters are read from the files of"),
        ("--lora-r $RANK", "adapters are read from the files of"),
        ("--use-peft", "adapters are read from the files of"),
        ("--sft", "pretrains a whole GPT"),
        ("--spec some.module spec", "another file"),
        ("--use-checkpoint-args", "checkpoint"),
        ("--qk-l2-norm", "no field of the model section"),
        ("--expert-tensor-parallel-num-weight-shards 2", "this sharding is no value of zero_stage"),
        ("--fp8-output-proj", "no matmul_precision has it"),
        ("--deepspeed --num-experts 8", "experts are not read"),
        ("--deepspeed --fp4-format e2m1", "8 or 4 bits is no value of precision"),
    ],
)
def test_what_no_search_file_expresses_is_refused_by_name(options, rule):
    with pytest.raises(InputError, match=rule) as refused:
        read_launch_script(launch(f"--num-attention-heads 8 {options}"))
    (problem,) = refused.value.problems
    assert str(problem.key).removeprefix("--") in options
    assert problem.fix


def test_a_script_without_a_training_is_refused():
    with pytest.raises(InputError, match="no command with Megatron's options"):
        read_launch_script("#!/bin/bash\necho hello --num-layers\n")
    with pytest.raises(InputError, match=r"pretrain_gpt.py \(line 2\) has options in \$ARGS: .* is not read"):
        read_launch_script("ARGS=--bf16\nARGS=${ARGS/b/f}; python pretrain_gpt.py $ARGS --num-layers 2\n")


@pytest.mark.parametrize(
    ("script", "tensor", "micro"),
    [("{}\n{}", 2, 4), ("if $M; then {}; else {}; fi", None, None), ("if $M; then {}; exit; fi\n{}", 2, 4)],
)
def test_of_two_commands_that_with_most_options_is_read_and_what_differs_behind_a_condition_asked_for(
    script, tensor, micro
):
    few, many = launch("--micro-batch-size 1"), launch("--micro-batch-size 4 --tensor-model-parallel-size 2 --bf16")
    found = read_launch_script(script.format(few, many))
    assert (found.model["num_layers"], found.layout.get("tensor_parallel")) == (4, tensor)
    assert found.layout.get("micro_batch_size") == micro
    assert any("2 training commands" in note and "not that of line 1" in note for note in found.notes)


KEPT = (
    *("--no-check-for-nan-in-loss-and-grad", "--moe-router-padding-for-quantization", "--overlap-param-gather"),
    *("--outer-dp-sharding-strategy optim", "--moe-router-force-biased 1.0", "--weight-decay 0.1"),
    *("--moe-router-load-balancing-type seq_aux_loss", "--option-of-a-later-release 3", "--data-path /data/a 0.5"),
    *("--overlap-moe-expert-parallel-comm", "--cpu-offloading", "--cpu-offloading-num-layers 2"),
    *("--first-last-layers-bf16", "--num-layers-at-start-in-bf16 2", "--hierarchical-context-parallel-sizes 4 2"),
)
NAMED = (*("--log-max-attention-logit", "--save /x", "--lr-warmup-iters 9"),)


@pytest.mark.parametrize("option", [*KEPT, *NAMED])
def test_what_no_row_reads_is_kept_for_the_trainer_or_named(option):
    found = read_launch_script(launch(f"--num-experts 8 --micro-batch-size 1 {option}"))
    name = option.split()[0]
    assert (option in " ".join(found.arguments)) is (option in KEPT)
    assert any(note.startswith("Not read:") and name in note for note in found.notes) is (option in NAMED)


def test_options_of_the_layout_and_of_the_step_are_never_arguments():
    command = launch("--num-experts 8 --moe-token-dispatcher-type alltoall --micro-batch-size 1 --lr 1e-4")
    found = read_launch_script(command.replace("torchrun --nproc_per_node 4 pretrain_gpt.py", "srun --mpi=pmix ./x.sh"))
    assert found.layout["expert_dispatcher"] == "alltoall"
    assert [word for word in found.arguments if word.startswith("--")][:1] == ["--lr"]
    assert not {"--moe-token-dispatcher-type", "--mpi"} & {*found.arguments}


@pytest.mark.parametrize(
    ("options", "note"),
    [
        ("--swiglu --activation-func squared_relu", "--activation-func was not used: --swiglu says it, too."),
        (
            "--recompute-activations --recompute-granularity full",
            "--recompute-granularity was not used: --recompute-act",
        ),
        ("--quick-geglu", "--quick-geglu is quick_gelu; the MLP of trials has SiLU with a gate"),
        ("--te-precision-config-file $LAYERS", "Not read: --te-precision-config-file."),
        ("--vocab-size 51200", "padded as Megatron pads it; --vocab-size is not used."),
        ("--tokenizer-type Llama2Tokenizer --vocab-size 32000", "vocab_size: --vocab-size 32000 was taken; Megatron"),
        ("--deepspeed --recompute-granularity full", "recomputes nothing without --recompute-method uniform."),
        ("--bf16", "Trials run --attention-backend flash, the training --attention-backend auto, which prefers fused"),
        (
            "--bf16 --attention-backend fused",
            "Trials run --attention-backend flash, the training --attention-backend f",
        ),
        ("--bf16 --softmax-type learnable --attention-backend flash", "Trials run --attention-backend fused, the tr"),
        ("--tensor-model-parallel-size $TP", "vocab_size: 50257 of GPT-2's tokenizer is padded to a multiple that is"),
    ],
)
def test_a_difference_from_a_trial_is_noted(options, note):
    assert any(note in found for found in read_launch_script(launch(options)).notes)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ("--bf16 --attention-backend flash", "--attention-backend"),
        ("--bf16 --softmax-type learnable --attention-backend fused", "--attention-backend"),
        ("--bf16 --attention-backend $KERNEL", "Trials run"),
        ("--bf16 --transformer-impl local", "--attention-backend"),
        ("--tensor-model-parallel-size $TP", "was taken"),
        ("--tokenizer-type Llama2Tokenizer --vocab-size $V", "was taken"),
    ],
)
def test_a_note_says_nothing_that_is_not_so(options, word):
    assert not [note for note in read_launch_script(launch(options)).notes if word in note]


@pytest.mark.parametrize(
    ("options", "words", "rule", "fix"),
    [
        ("--tensor-model-parallel-size 3", "4 ranks are not a multiple of tensor 3", WORLD_RULE, "parallel sizes"),
        ("--micro-batch-size 2 --global-batch-size 12", "2 x data_parallel 4 = 8", BATCH_RULE, "a multiple of 8"),
        ("--micro-batch-size 0", "--micro-batch-size: is '0'", "a whole number from 1 to 999999999999", ""),
        ("--num-experts 2147483648000", "is '2147483648000'", "a whole number from 1 to 999999999999", ""),
    ],
)
def test_numbers_that_contradict_each_other_are_refused_with_all_of_them_and_what_to_correct(options, words, rule, fix):
    with pytest.raises(InputError, match=words) as refused:
        read_launch_script(launch(options))
    assert rule in str(refused.value.problems[0].rule)
    assert fix in refused.value.problems[0].fix


def test_a_config_or_ranks_that_contradict_the_command_are_refused():
    words = "micro_batch_size is 4 and 2 in the command and its DeepSpeed config"
    with pytest.raises(InputError, match=words) as refused:
        read_launch_script(MEGATRON_DEEPSPEED.replace('_per_gpu": $BATCH_SIZE', '_per_gpu": 2'))
    assert refused.value.problems[0].fix == "write the same value in both"
    script = MEGATRON_DEEPSPEED.replace('"steps_per_print": 1', '"gradient_accumulation_steps": 2')
    with pytest.raises(InputError, match="8 ranks are not tensor 2 x pipeline 1 x data 8 = 16"):
        read_launch_script(script)
