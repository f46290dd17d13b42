"""Sequences that are split over one tensor-parallel rank, as each trainer's file says it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from orchestrator.importers.accelerate import read_accelerate
from orchestrator.importers.gpt_neox import read_gpt_neox
from orchestrator.importers.imported_config import ImportedConfig
from orchestrator.importers.launch_script import read_launch_script
from orchestrator.importers.megatron_bridge.config import read_bridge_config
from orchestrator.importers.nanotron import read_nanotron
from tests.orchestrator.importers.samples import BRIDGE, GPT_NEOX, NANOTRON

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
        ("Megatron-DeepSpeed", read_launch_script, f"{_COMMAND} --deepspeed", "--tensor-model-parallel-size 2"),
        ("Megatron-Bridge", read_bridge_config, BRIDGE, "tensor_model_parallel_size: 2"),
        ("GPT-NeoX", read_gpt_neox, GPT_NEOX, '"model_parallel_size": 2'),
        ("nanotron", read_nanotron, NANOTRON, "tp: 2"),
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
