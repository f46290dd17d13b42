"""Published fine-tunings that are in no table: rates and peaks of memory, predicted with the shipped constants.

    python -m benchmarks.fine_tuning [--json]

Rates: NVIDIA-NeMo/Automodel, docs/performance-summary.mdx, 36044ad, with examples/llm_benchmark: LoRA of rank 16 on all
linear modules, bf16 on H100, sequences of 4096 tokens. Peaks: pytorch/torchtune, README.md, bd2a0fc, with
recipes/configs/llama3_1: LoRA and QLoRA of rank 8 on all linear modules but keys, two sequences of 2048 tokens; its
loss keeps no logits, and its layers are compiled. No constant was set by these rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from benchmarks.output import Line, arguments_of, show
from benchmarks.published_throughput import Training
from search_spaces.adapters import Adapters
from search_spaces.cost_model.constants import typical_constants
from search_spaces.cost_model.memory import stage_memory
from search_spaces.cost_model.step_time import StepTerms
from search_spaces.hardware.cluster import ACCELERATORS, Cluster
from search_spaces.layouts.layout import Layout
from search_spaces.layouts.table import LayoutTable
from search_spaces.model_shape import ModelShape
from search_spaces.schema.presets import MODELS, preset
from search_spaces.schema.sections import ModelSection
from search_spaces.schema.validation import validate

_LORA = Adapters(16, alpha=32)
_TORCHTUNE = Adapters(8, alpha=16, target_modules=("q_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"))
_QLORA = replace(_TORCHTUNE, kind="qlora")
_COMMON = {"engine": "torchtitan", "precision": "bf16", "attention_kernel": "flash", "micro_batch_size": 2}
_SHARDED = {"zero_stage": 3, "activation_checkpointing": "full"}
_TENSOR = {**_SHARDED, "tensor_parallel": 2, "torch_compile": True}
RATES: tuple[tuple[str, int, float, Mapping[str, Any]], ...] = (
    ("llama-3.1-8b", 1, 12472.87, {"grad_accum_steps": 16}),
    ("llama-3.1-70b", 8, 1091.85, {"grad_accum_steps": 4, "data_parallel": 4, "sequence_parallel": True, **_TENSOR}),
    ("llama-3.1-70b", 16, 984.85, {"grad_accum_steps": 2, "data_parallel": 8, "sequence_parallel": True, **_TENSOR}),
    ("qwen2.5-7b", 1, 14110.05, {"grad_accum_steps": 16}),
    ("qwen2.5-32b", 8, 2250.31, {"grad_accum_steps": 4, "data_parallel": 4, **_TENSOR}),
    ("qwen2.5-32b", 16, 2072.89, {"grad_accum_steps": 2, "data_parallel": 8, **_TENSOR}),
)
"""Model, GPUs, tokens/s and GPU, and the layout."""
PEAKS: tuple[tuple[str, Adapters, float, Mapping[str, Any]], ...] = (
    ("llama-3.1-8b", _TORCHTUNE, 16.2, {"activation_checkpointing": "full"}),
    ("llama-3.1-8b", _TORCHTUNE, 30.3, {}),
    ("llama-3.1-8b", _QLORA, 7.4, {"activation_checkpointing": "full"}),
    ("llama-3.1-70b", _TORCHTUNE, 27.6, {**_SHARDED, "data_parallel": 8}),
)
"""Model, adapters, GiB, and the layout."""
_QWEN = {
    "position_embedding": "rotary",
    "norm": "rmsnorm",
    "gated_mlp": True,
    "qkv_bias": True,
    "rotary_base": 1_000_000,
    "vocab_size": 152064,
    "seq_length": 4096,
    "tied_embeddings": False,
}
_QWEN_SIZES = {
    "qwen2.5-7b": ModelShape(28, 3584, 28, 4, 18944, **_QWEN),
    "qwen2.5-32b": ModelShape(64, 5120, 40, 8, 27648, **_QWEN),
}
"""config.json of Qwen/Qwen2.5-7B and -32B at Hugging Face."""


def main() -> None:
    show([*rate_lines(), *peak_lines()], arguments_of(__doc__).json)


def rate_lines() -> Iterator[Line]:
    for name, training, published in rated():
        layout, model = training.layout, training.model
        terms = StepTerms.of(model, training.cluster, LayoutTable.of([layout]))
        tokens = layout.global_batch_size * model.seq_length / layout.num_gpus
        found = tokens / float(terms.seconds(typical_constants())[0])
        yield _line(f"{name} on {layout.num_gpus} H100", "tokens_per_s_per_gpu", published, found)


def rated() -> Iterator[tuple[str, Training, float]]:
    """Name of the model, the training, and its published tokens/s and GPU."""
    for name, gpus, published, fields in RATES:
        nodes = max(1, gpus // 8)
        layout = Layout(**{**_COMMON, **fields, "num_nodes": nodes}).canonical()
        cluster = Cluster(ACCELERATORS["h100-80gb"], gpus // nodes, nodes)
        yield name, Training(model_of(name, _LORA, 4096), cluster, layout), published


def peak_lines() -> Iterator[Line]:
    for name, adapters, published, fields in PEAKS:
        layout = Layout(**{**_COMMON, "engine": "accelerate", **fields}).canonical()  # frozen weights in 16 bits
        memory = stage_memory(model_of(name, adapters, 2048), LayoutTable.of([layout]))
        what = f"{name} {adapters}, recomputation {layout.activation_checkpointing}"
        yield _line(what, "peak_memory_gib", published, float((memory.total - memory.logits).max()))


def _line(what: str, quantity: str, published: float, predicted: float) -> Line:
    error = round(predicted / published - 1, 3)
    return {
        "what": what,
        "quantity": quantity,
        "published": published,
        "predicted": round(predicted, 1),
        "error": error,
    }


def model_of(name: str, adapters: Adapters, seq_length: int) -> ModelShape:
    shape = _QWEN_SIZES.get(name) or validate(ModelSection, preset(MODELS, name)).shape()
    return replace(shape, seq_length=seq_length, adapters=adapters, trainable=())


if __name__ == "__main__":
    main()
