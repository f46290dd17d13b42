"""The memory model of a layer compared with the tensors that the trainer stores for the backward pass."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from search_spaces.cost_model.memory import LayerActivations
from search_spaces.layouts.layout import Layout
from search_spaces.layouts.table import LayoutTable
from search_spaces.model_shape import ModelShape
from tests.kit import gpt
from trials.train.model.chunk import ChunkExecution, ChunkPlan, ModelChunk
from trials.train.model.initial_weights import WeightSource
from trials.train.parallel.device import select_attention_kernel
from trials.train.parallel.tensor_parallel import TensorParallelRanks

pytestmark = pytest.mark.slow

WEIGHTS = WeightSource(seed=3, device=torch.device("cpu"))
GPT = gpt(2, 128, 4, vocab_size=256, seq_length=64)
# An RMS norm is one kernel on a GPU, and on a CPU several operations that keep more: layer norms here, too.
GATED = replace(GPT, ffn_hidden_size=384, gated_mlp=True, position_embedding="rotary")
GROUPED = replace(GATED, num_key_value_heads=2)
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@pytest.fixture(autouse=True)
def _own_kernels():
    reduces = torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()
    with sdpa_kernel([SDPBackend.MATH, SDPBackend.FLASH_ATTENTION]):
        yield
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(reduces)


def kept_bytes(model: ModelShape, layout: Layout) -> int:
    """Bytes of all tensors that autograd stores for one micro-batch, each once, without the weights."""
    execution = ChunkExecution(layout.activation_checkpointing)
    chunk = ModelChunk(model, ChunkPlan.of(model, 0, 1), TensorParallelRanks(), WEIGHTS, execution).to(
        TYPES[layout.precision]
    )
    weights = {parameter.untyped_storage().data_ptr() for parameter in chunk.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    ids = torch.zeros((layout.micro_batch_size, model.seq_length), dtype=torch.long)
    select_attention_kernel(layout.attention_kernel)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        chunk(ids)
    return sum(tensor.untyped_storage().nbytes() for place, tensor in kept.items() if place not in weights)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("kernel", ["math", "flash"])
@pytest.mark.parametrize(
    ("model", "recompute"),
    [
        *((GPT, recompute) for recompute in ("none", "selective", "full")),
        *((replace(GPT, post_norms=True), recompute) for recompute in ("none", "full")),
        (replace(GPT, qk_norm=True), "selective"),
        # A CPU's attention keeps copies where positions are rotated or heads grouped, and a GPU's does not.
        *((model, recompute) for model in (GATED, GROUPED) for recompute in ("selective", "full")),
    ],
)
def test_a_layer_keeps_what_the_model_says(model, precision, kernel, recompute):
    layout = Layout(
        micro_batch_size=2,
        precision=precision,
        attention_kernel=kernel,
        activation_checkpointing=recompute,
        engine="torch",
    )
    four = replace(model, num_layers=4)
    a_layer = (kept_bytes(four, layout) - kept_bytes(model, layout)) / 2
    assert LayerActivations.of(model, LayoutTable.of([layout])).kept[0] == pytest.approx(a_layer, rel=0.01)
