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
from search_spaces.layouts.layout import BATCH_RULE, WORLD_RULE
from tests.orchestrator.importers.config_tables import keys_with, require_one_handling_of_each_key
from tests.orchestrator.importers.samples import MEGATRON_DEEPSPEED
from trials.trainers.common.megatron_options import unsupported_option_reason

EXPERTS = "--num-experts 8"
OWN_VOCABULARY = "--tokenizer-type NullTokenizer --vocab-size 1000"
THETA = "--rotary-position-embeddings-theta 500000"
FLEX = f"{EXPERTS} --moe-token-dispatcher-type flex"
SELECTIVE = "--recompute-granularity selective"
PIPELINE, PLAIN = "--deepspeed", "--deepspeed --no-pipeline-parallel"
ALL_LAYERS = f"{PIPELINE} --recompute-granularity full"
CHECKPOINTS = f"{PLAIN} --deepspeed-activation-checkpointing"
VIRTUAL = "--num-virtual-stages-per-pipeline-rank"
BLOCK = "--recompute-granularity full --recompute-method block --recompute-num-layers"


def launch(options: str) -> str:
    return f"torchrun --nproc_per_node 4 pretrain_gpt.py --num-layers 4 --hidden-size 256 {options}"


@pytest.mark.parametrize(
    ("options", "field", "value"),
    [
        ("--recompute-activations --recompute-modules mlp", "recompute_modules", "mlp"),
        ("--num-experts 8 --overlap-moe-expert-parallel-comm", "expert_overlap", True),
        ("--cuda-graph-impl transformer_engine --cuda-graph-modules attn", "cuda_graphs", "attn"),
        ("--cuda-graph-impl local", "cuda_graphs", "attn+mlp"),
        (f"{EXPERTS} --external-cuda-graph --cuda-graph-scope moe_router attn", "cuda_graphs", "attn+moe_router"),
        ("--pipeline-model-parallel-layout Et,tttL --pipeline-model-parallel-size 1", "virtual_pipeline_stages", 1),
        ('--pipeline-model-parallel-layout "E(t|)*3tL" --pipeline-model-parallel-size 2', "virtual_pipeline_stages", 2),
        ("--deepspeed --use_flash_attn", "attention_kernel", "flash"),
        ("--bf16 --use-flash-attn --attention-backend unfused", "attention_kernel", "math"),
        ("--num-experts 8", "expert_dispatcher", "allgather"),
        (FLEX, "expert_dispatcher", "deepep"),
        (f"{FLEX} --moe-flex-dispatcher-backend hybridep", "expert_dispatcher", "hybridep"),
        ("--cp-comm-type allgather", "context_transport", "all_gather"),
        ("--num-virtual-stages-per-pipeline-rank 3", "virtual_pipeline_stages", 3),
        ("--bf16 --transformer-impl local", "attention_kernel", "math"),
        ("--micro-batch-size 1", "attention_kernel", "math"),
        ("--vocab-size 1000 --disable-pad-vocab-size", "vocab_size", 50257),
        ("--vocab-size 1000 --no-pad-vocab-size", "vocab_size", 50257),
        (f"{OWN_VOCABULARY} --make-vocab-size-divisible-by 1", "vocab_size", 1000),
        (f"--deepspeed {OWN_VOCABULARY} --make-vocab-size-divisible-by 1", "vocab_size", 1001),
        (f"--deepspeed --use-rotary-position-embeddings {THETA}", "rotary_base", 500_000),
        ("--deepspeed --use-flash-attn-triton", "attention_kernel", "flash"),
        ("--micro-batch-size 3", "grad_accum_steps", 1),  # no global batch: one micro-batch a data-parallel rank
        ("--group-query-attention", "num_key_value_heads", 1),
        ("", "num_key_value_heads", 8),
        ("--tokenizer-type GPT2BPETokenizer --vocab-size 51200", "vocab_size", 50304),
        ("--tokenizer-type TikTokenizer --vocab-size 51200", "vocab_size", 51200),
        ("--tokenizer-type Llama2Tokenizer --vocab-size 32000 --padded-vocab-size 32768", "vocab_size", 32768),
        ("--deepspeed --tokenizer-type NullTokenizer --vocab-size 51200", "vocab_size", 51328),
        ("--deepspeed --kv-channels 128", "attention_head_size", 128),
        ("--disable-bias-linear --add-qkv-bias", "qkv_bias", True),
        ("--qk-layernorm", "qk_norm", True),
        ("--deepspeed --squared-relu", "activation", "squared_relu"),
        ("--disable-bias-linear", "linear_biases", False),
        ("--normalization RMSNorm", "linear_biases", True),
        ("--softmax-type learnable", "attention_sinks", True),
        ("--window-size '(127, 0)'", "sliding_window", 128),
        ("--window-size 127,0 --window-attn-skip-freq 2", "full_attention_every", 2),
        ("--quick-geglu --glu-linear-offset 1 --activation-func-clamp-value 7", "activation", "clamped_swiglu"),
        ("--num-experts 8", "experts_per_token", 2),
        ("--num-experts 8 --moe-layer-freq '([0]*1+[1]*3)'", "num_dense_layers", 1),
        ("--multi-latent-attention", "key_value_latent_size", 32),
        ("--kv-channels $KV", "attention_head_size", None),
        ("--kv-channels 32", "attention_head_size", None),
        ("--add-qkv-bias", "qkv_bias", None),
        ("--deepspeed --disable-bias-linear --add-qkv-bias", "qkv_bias", None),
        ("--deepspeed --qk-layernorm", "qk_norm", None),
        ("--normalization RMSNorm --disable-bias-linear", "linear_biases", None),
        ("--multi-latent-attention --qk-layernorm", "qk_norm", None),
        # Recomputation is what the trainer makes of its options; as many layers as a chunk has are all layers.
        ("--recompute-activations --recompute-granularity full", "activation_checkpointing", "selective"),
        (f"{PIPELINE} --checkpoint-activations", "activation_checkpointing", "full"),
        (f"{PIPELINE} --checkpoint-activations --recompute-granularity selective", "activation_checkpointing", "full"),
        (f"{ALL_LAYERS} --recompute-method uniform", "activation_checkpointing", "full"),
        (ALL_LAYERS, "activation_checkpointing", None),
        (f"{PIPELINE} {BLOCK} 4", "activation_checkpointing", None),
        (f"{PIPELINE} --recompute-granularity selective", "activation_checkpointing", "selective"),
        (f"{CHECKPOINTS} --recompute-granularity full", "activation_checkpointing", "full"),
        (CHECKPOINTS, "activation_checkpointing", None),
        (f"{CHECKPOINTS} --recompute-activations", "activation_checkpointing", "selective"),
        (f"{BLOCK} 4", "activation_checkpointing", "full"),
        (f"{BLOCK} 4", "recompute_layers", None),
        (f"{BLOCK} 1 --pipeline-model-parallel-size 2", "recompute_layers", 1),
        (f"{BLOCK} 2 --pipeline-model-parallel-size 2", "recompute_layers", None),
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
    assert len(set(found.notes)) == len(found.notes)
    found = read_launch_script(launch("--micro-batch-size 1 --${DTYPE}"))
    assert "precision" not in found.layout
    assert {"precision", "attention_kernel"} <= {*found.in_doubt}
    assert "--${DTYPE} was left out: the script does not set which option it is." in found.notes
    assert read_launch_script(launch("--micro-batch-size 1 --${DTYPE} --bf16")).layout["precision"] == "bf16"
    found = read_launch_script(launch("--deepspeed --deepspeed_config ds.json --micro-batch-size 1"))
    assert "ds.json behind --deepspeed-config was not read: values that only it has are asked for." in found.notes


def test_a_variable_that_a_condition_sets_is_not_guessed():
    script = "TP=1\nif [ $GPUS -gt 8 ]; then\n  TP=2\nfi\n" + launch("--tensor-model-parallel-size $TP")
    found = read_launch_script("if [ -f x ]; then ACT=--swiglu; fi\n" + script + " $ACT")
    why = "what the script sets it to depends on a condition or a command that it does not decide"
    assert "tensor_parallel" not in found.layout
    assert f"$ACT is in the training command, but {why}." in found.notes
    assert f"--tensor-model-parallel-size is '$TP', which was not used: {why}." in found.notes


@pytest.mark.security("secrets")
def test_values_that_may_be_secrets_are_not_repeated_in_notes():
    script = 'KEY=${WANDB_API_KEY:-abcdef}\nif x; then A="$A --wandb-key abcdef"; fi\n'
    found = read_launch_script('A="--bf16"\n' + script + launch("--micro-batch-size 1 $A"))
    assert "--wandb-key is added under a condition that the script does not decide; it was left out." in found.notes
    assert "abcdef" not in " ".join(found.notes)


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ("--context-parallel-size 2 --cp-comm-type p2p a2a", "context_transport is p2p, all_gather"),
        ("--hierarchical-context-parallel-sizes 2 2 2", "groups of two sizes"),
        ("--num-experts 8 --num-layers 4 --moe-layer-freq [1,0,0,1]", "expert_layer_every"),
        ("--fp8-format hybrid --fp8-recipe custom", "matmul_precision has the recipes delayed, tensorwise"),
        ("--first-last-layers-bf16 --num-layers-at-end-in-bf16 2", "the same number at both ends"),
        ('--pipeline-model-parallel-layout "Et*4|L"', "none has the embedding, the loss"),
        ("--window-size 4096,1", "sliding_window is a number of positions"),
        ("--window-size 4096,0 --window-attn-skip-freq [1,0]", "full_attention_every is a whole number"),
        ("--softmax-type off-by-one", "attention_sinks"),
        ("--recompute-granularity full --recompute-method block", "block needs --recompute-num-layers"),
        (f"{PLAIN} --pipeline-model-parallel-size 2 {BLOCK} 2", "partial recomputation"),
        ("--num-experts 8 --cuda-graph-impl local", "cuda_graphs is attn, mlp, moe_router or"),
        (f"{SELECTIVE} --recompute-modules mhc mlp", "recompute_modules is layernorm, mla_up_proj,"),
        ("--optimizer-cpu-offload --optimizer-offload-fraction 0.5", "offload moves the whole optimizer"),
    ],
)
def test_what_no_search_file_expresses_is_refused_by_name(options, rule):
    with pytest.raises(InputError, match=rule) as refused:
        read_launch_script(launch(f"--num-attention-heads 8 {options}"))
    (problem,) = refused.value.problems
    assert str(problem.key).removeprefix("--") in options
    assert problem.fix


def test_a_value_under_another_name_is_refused_and_all_refusals_at_once():
    with pytest.raises(InputError) as refused:
        read_launch_script(launch("--position-embedding-type rotary"))
    (problem,) = refused.value.problems
    assert "learned or rotary, which are learned_absolute and rope in Megatron" in problem.rule
    assert problem.fix.startswith("set it to learned_absolute or rope in a copy of the file")
    with pytest.raises(InputError) as refused:
        read_launch_script(launch("--moe-latent-size 8 --fp8-recipe custom --window-size 4,1 --num-attention-heads 8"))
    assert {problem.key for problem in refused.value.problems} == {"--moe-latent-size", "--fp8-recipe", "--window-size"}
    with pytest.raises(InputError, match="no command with Megatron's options"):
        read_launch_script("#!/bin/bash\necho hello --num-layers\n")


@pytest.mark.parametrize(
    ("options", "note"),
    [
        ("--quick-geglu", "--quick-geglu: the MLP is gated, with SiLU in place of GELU."),
        ("--num-expert 8", "did you mean num-experts?"),
        ("--te-precision-config-file $LAYERS", "--te-precision-config-file was left out, since the script does not"),
        ("--vocab-size 51200", "padded as Megatron pads it; --vocab-size is not used."),
        ("--tokenizer-type Llama2Tokenizer --vocab-size 32000", "vocab_size: --vocab-size 32000 was taken; Megatron"),
        ("--deepspeed --deepspeed-activation-checkpointing", "recomputes nothing without --checkpoint-activations."),
    ],
)
def test_what_trials_run_without_is_noted(options, note):
    assert any(note in found for found in read_launch_script(launch(options)).notes)


def test_an_option_of_the_other_megatron_is_unknown_and_not_read():
    for kind, option in (("--deepspeed", "--position-embedding-type rope"), ("", "--num-key-value-heads 2")):
        usual = f"--num-attention-heads 4 --micro-batch-size 1 {kind}"
        without, found = (read_launch_script(launch(f"{usual} {more}")) for more in ("", option))
        assert (found.model, found.layout) == (without.model, without.layout)
        (note,) = {*found.notes} - {*without.notes}
        assert note.startswith(f"{option.split()[0]} was left out: it is no option of Megatron-")


@pytest.mark.parametrize(
    "options",
    ["--context-parallel-size 1", "--lr 1e-4", "--log-interval 10", "--optimizer adam", "--deepspeed --num-experts 1"],
)
def test_what_changes_nothing_gets_no_note(options):
    usual = {note for kind in ("", "--deepspeed ") for note in read_launch_script(launch(kind)).notes}
    assert {*read_launch_script(launch(options)).notes} <= usual
    assert not any("is taken for a program" in note for note in usual)


@pytest.mark.parametrize(
    ("options", "words", "rule", "fix"),
    [
        ("--tensor-model-parallel-size 3", "4 ranks are not a multiple of tensor 3", WORLD_RULE, "parallel sizes"),
        ("--micro-batch-size 2 --global-batch-size 12", "micro batch 2 x data 4 = 8", BATCH_RULE, "a multiple of 8"),
        ("--micro-batch-size 0", "--micro-batch-size: is '0'", "", ""),
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
    with pytest.raises(InputError, match="data_parallel is 8 in the file, but 4 follows") as refused:
        read_launch_script(script)
    assert refused.value.problems[0].rule == WORLD_RULE
    assert "correct the batch sizes" in refused.value.problems[0].fix


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


def read_with(start: str, options: str) -> ImportedConfig:
    return read_launch_script(f"torchrun pretrain_gpt.py --hidden-size 256 --micro-batch-size 1 {start} {options}")


@TABLES
def test_every_option_is_in_one_group_and_what_has_no_effect_changes_nothing_of_what_is_read(table, start):
    require_one_handling_of_each_key(table)
    useless = " ".join(given(table, name) for name in keys_with(table, Handling.NO_EFFECT))
    assert replace(read_with(start, useless), arguments=()) == replace(read_with(start, ""), arguments=())


@TABLES
def test_a_refused_option_is_refused_and_a_noted_one_noted_or_kept_for_the_trainer(table, start):
    for name in keys_with(table, Handling.REFUSED):
        with pytest.raises(InputError) as refused:
            read_with(start, given(table, name))
        assert [problem.key for problem in refused.value.problems] == [f"--{name}"]
    noted = keys_with(table, Handling.NOTED)
    found = read_with(start, " ".join(given(table, name) for name in noted))
    left_out = {name for name in noted if any(note.startswith(f"--{name} was left out: ") for note in found.notes)}
    assert left_out == {*noted} - {word.removeprefix("--") for word in found.arguments}
    reasons_of = {table.group_of[name].reason for name in left_out if unsupported_option_reason(name) is None}
    assert reasons_of <= {reasons.WATCHED}
