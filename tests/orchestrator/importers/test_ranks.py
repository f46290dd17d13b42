from __future__ import annotations

from collections.abc import Callable

import pytest

from orchestrator.importers.accelerate import read_accelerate
from orchestrator.importers.gpt_neox import read_gpt_neox
from orchestrator.importers.imported_config import ImportedConfig
from orchestrator.importers.launch_script import read_launch_script
from orchestrator.importers.megatron_bridge.config import read_bridge_config
from search_spaces.errors import InputError
from tests.orchestrator.importers.samples import BRIDGE, GPT_NEOX

FOUR_OF_EIGHT = "#SBATCH --nodes=4\n#SBATCH --gpus-per-node=8\n"
TRAINING = "pretrain_gpt.py --num-layers 8 --hidden-size 512 --micro-batch-size 1"
TORCHRUN_OF_ALL = "torchrun --nproc-per-node=gpu"


def read(command: str, header: str = FOUR_OF_EIGHT):
    return read_launch_script(f"#!/bin/bash\n{header}{command} {TRAINING}")


@pytest.mark.parametrize(
    ("command", "ranks"),
    [
        ("torchrun --nnodes 4 --nproc-per-node 8", (4, 8)),
        ("torchrun --standalone --nproc-per-node 8", (1, 8)),
        ("srun torchrun --nproc-per-node=gpu --nnodes $SLURM_JOB_NUM_NODES", (4, 8)),
        ("torchrun --nproc-per-node 8", (1, 8)),
        ("torchrun --nnodes 4", (4, 1)),
        ("python -m torch.distributed.run --nnodes 2 --nproc_per_node 4", (2, 4)),
        ("deepspeed --num_gpus 8", (1, 8)),
        ("deepspeed", (1, 8)),
        ("deepspeed --hostfile hosts", (4, 8)),
        ("deepspeed --hostfile hosts --num_nodes 2", (2, 8)),
        ("srun --ntasks-per-node=4 python", (4, 4)),
        ("srun -n 16 python", (4, 4)),
        ("srun --ntasks-per-node=8 singularity exec image.sif run.sh", (4, 8)),
        ("mpirun -np 16 --map-by ppr:4:node python", (4, 4)),
        ("mpiexec -n 8 -ppn 8 python", (1, 8)),
        ("python", (1, 1)),
        ("$LAUNCHER python", (4, 8)),
    ],
)
def test_the_ranks_are_those_that_the_command_starts(command, ranks):
    found = read(command)
    assert (found.num_nodes, found.gpus_per_node) == ranks
    for name, count, whole in zip(("num_nodes", "gpus_per_node"), ranks, (4, 8), strict=True):
        notes = [note for note in found.notes if note.startswith(f"cluster.{name} is {count}, as the command starts")]
        assert len(notes) == (count < whole)


@pytest.mark.parametrize(
    ("command", "ranks"),
    [
        ("torchrun --nproc-per-node 8", (1, 8)),
        ("torchrun --nnodes $NNODES --nproc-per-node 8", (None, 8)),
        ("mpirun -np 16 python", (None, None)),
        ("python", (None, None)),
        *((f"export CUDA_VISIBLE_DEVICES=0,1\n{command}", (1, 2)) for command in ("deepspeed", TORCHRUN_OF_ALL)),
    ],
)
def test_ranks_of_a_script_without_a_header(command, ranks):
    found = read(command, header="")
    assert (found.num_nodes, found.gpus_per_node) == ranks


def test_the_number_of_tasks_is_noted_where_the_script_does_not_say_it_and_more_than_the_job_has_refused():
    note = "The number of tasks is not in the script: one for each GPU is assumed."
    assert note in read("srun python").notes
    assert note not in read("srun --ntasks-per-node=8 python").notes
    assert note not in read("srun torchrun --nnodes 4 --nproc-per-node 8").notes
    with pytest.raises(InputError, match=r"gpus_per_node is 16 in the command \(--nproc-per-node .* and 8 in the job"):
        read("torchrun --nnodes 4 --nproc-per-node 16")


_COMMAND = (
    "torchrun --nproc_per_node 4 pretrain_gpt.py --num-layers 4 --tensor-model-parallel-size 2 --sequence-parallel"
)
_ACCELERATE = """distributed_type: MEGATRON_LM
megatron_lm_config: {megatron_lm_tp_degree: 2, megatron_lm_sequence_parallelism: true}
"""


@pytest.mark.parametrize(
    ("trainer", "read", "text", "degree"),
    [
        ("Megatron-LM", read_launch_script, _COMMAND, "--tensor-model-parallel-size 2"),
        ("Megatron-Bridge", read_bridge_config, BRIDGE, "tensor_model_parallel_size: 2"),
        ("GPT-NeoX", read_gpt_neox, GPT_NEOX, '"model_parallel_size": 2'),
        ("accelerate", read_accelerate, _ACCELERATE, "tp_degree: 2"),
    ],
)
def test_sequences_are_not_split_without_tensor_parallelism(
    trainer: str, read: Callable[[str], ImportedConfig], text: str, degree: str
):
    note = f"Sequence parallelism is on in the file; with tensor_parallel 1 {trainer} trains without it."
    assert text.count(degree) == 1
    split, whole = read(text), read(text.replace(degree, degree.replace("2", "1")))
    assert (split.layout["sequence_parallel"], whole.layout["sequence_parallel"]) == (True, False)
    assert note not in split.notes
    assert note in whole.notes
