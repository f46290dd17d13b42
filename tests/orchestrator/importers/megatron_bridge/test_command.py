from __future__ import annotations

import pytest

from orchestrator.importers.launch_script import read_launch_script
from search_spaces.errors import InputError
from tests.orchestrator.importers.yaml_samples import BRIDGE

SCRIPT = """\
#!/bin/bash
#SBATCH --nodes=2
#SBATCH --gpus-per-node=8
TP=2
OVERRIDES=(
    model.tensor_model_parallel_size=$TP
    model.pipeline_model_parallel_size=2
    +model.virtual_pipeline_model_parallel_size=null
    train.global_batch_size=64
    logger.log_interval=1
)
torchrun --nnodes 2 --nproc-per-node 8 scripts/training/run_recipe.py --recipe llama3_8b_pretrain_config \\
    -mb 1 --seq_length 8192 "${OVERRIDES[@]}" mixed_precision=bf16_mixed ddp.use_distributed_optimizer=true
"""


def started(words: str, read_file=None):
    return read_launch_script(f"torchrun --nproc-per-node 8 run_recipe.py {words}", read_file)


def test_a_launch_script_gives_its_overrides_and_its_ranks():
    found = read_launch_script(SCRIPT)
    assert (found.source, found.global_batch_size, found.num_nodes, found.gpus_per_node) == (
        "megatron-bridge",
        64,
        2,
        8,
    )
    assert found.model == {"seq_length": 8192}
    assert found.layout == {
        "num_nodes": 2,
        "tensor_parallel": 2,
        "pipeline_parallel": 2,
        "data_parallel": 4,
        "micro_batch_size": 1,
        "grad_accum_steps": 16,
        "zero_stage": 1,
        "virtual_pipeline_stages": 1,
        "precision": "bf16",
        "attention_kernel": "flash",
        "matmul_precision": "same",
        "layers_in_16_bits": 0,
        "quantized_weights": False,
        "gradients_in_bf16": False,
    }
    assert found.origins["baseline.tensor_parallel"] == "model.tensor_model_parallel_size $TP (line 6)"
    assert found.origins["baseline.pipeline_parallel"] == "model.pipeline_model_parallel_size (line 7)"
    assert found.notes == (
        "The recipe llama3_8b_pretrain_config was not read; it decides offload, activation_checkpointing,"
        " sequence_parallel, rank_order, overlap_comm, bucket_mib, data_parallel_replicas, tensor_parallel_overlap,"
        " context_parallel, offloaded_layers, pipeline_split, first_stage_layers, last_stage_layers, cuda_graphs"
        " and all else that"
        " no override sets.",
    )


def test_an_override_prevails_over_an_option_and_both_over_the_file():
    words = "--recipe a_pretrain_config --config-file a.yaml -tp 4 -pp 8 model.pipeline_model_parallel_size=1"
    layout = started(words, lambda name: {"a.yaml": BRIDGE}[name]).layout
    assert (layout["tensor_parallel"], layout["pipeline_parallel"]) == (4, 1)
    assert layout["micro_batch_size"] == 2


@pytest.mark.parametrize(
    ("words", "note"),
    [
        ("--config-file a.yaml", "The file behind --config-file was not read; what only it sets is missing."),
        ("train.micro_batch_size=$MBS", "train.micro_batch_size is '$MBS', which was not used"),
        ("model.tp=2", "model.tp was left out: it is no option of Megatron-Bridge"),
        ("--deterministic", "--deterministic was left out: it changes which kernels run."),
        ("--num_moe 8", "--num-moe was left out: it is no option"),
        ("-ng 8", "-ng was left out: it is no option"),
    ],
)
def test_what_is_not_known_or_left_out_is_noted(words, note):
    assert any(each.startswith(note) for each in started(f"--recipe a_pretrain_config {words}").notes)


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        ("--model llama3_8b --mode lora", "a search pretrains a GPT"),
        ("--recipe a_pretrain_config model.hybrid_context_parallel=true", "context parallelism is no axis"),
        ("--recipe a_pretrain_config peft.dim=8", "a search trains all parameters"),
        ("--recipe a_pretrain_config mixed_precision=bf16_with_my_scaling", "precision is bf16 or fp16"),
    ],
)
def test_what_no_search_file_expresses_is_refused(words, rule):
    with pytest.raises(InputError, match=rule):
        started(words)


def test_a_script_of_ones_own_is_known_by_its_overrides():
    found = read_launch_script("torchrun my_train.py model.num_layers=4 train.global_batch_size=8")
    assert (found.source, found.model, found.global_batch_size) == ("megatron-bridge", {"num_layers": 4}, 8)
