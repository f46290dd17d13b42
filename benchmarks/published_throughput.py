"""Published throughputs of 2023 to 2026: how many of their layouts can be said, and the rates predicted for them.

    python -m benchmarks.published_throughput throughput_2023_2026.csv rows_2026.csv [--json]

A row can be said if its model, its machine and its layout are values of Parlay that the engine's rules allow; a row
with `model_json` and `layout_json` is said already. What a row leaves open is taken from the public recipes it was run
with. Rows with overlapped all-to-alls of experts are read without them, and those with activations in host memory are
not said: their peak is another. Errors are those
of tokens/s and GPU with the shipped constants, by family and by the release that was measured. A row whose authors name
a fault, or do not state its micro-batch, counts for none.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.output import Line, arguments_of, show
from benchmarks.published import Row, read_rows
from orchestrator.planning.plan import UNLIKELY
from search_spaces.adapters import Adapters
from search_spaces.cost_model.constants import typical_constants
from search_spaces.cost_model.layer_time import attention_shares
from search_spaces.cost_model.memory import stage_memory
from search_spaces.cost_model.posterior import MemoryPosterior
from search_spaces.cost_model.step_time import StepTerms
from search_spaces.hardware.cluster import ACCELERATORS, Cluster
from search_spaces.hardware.memory_headroom import rank_memory_gib
from search_spaces.layouts.layout import CHOICES, Layout
from search_spaces.layouts.table import LayoutTable
from search_spaces.model_shape import ModelShape
from search_spaces.rules.check import engine_violations
from search_spaces.schema.presets import MODELS, accelerator_named, preset
from search_spaces.schema.sections import ModelSection
from search_spaces.schema.validation import validate
from search_spaces.schema.yaml_document import Document
from trials.trainers.registry import ENGINE_RULES


def main() -> None:
    arguments = arguments_of(__doc__, "tables+")
    readings = readings_in(arguments.tables)
    show([said_line(readings), *family_lines(readings), memory_line(readings)], arguments.json)


def readings_in(tables: Iterable[Path]) -> list[Reading]:
    return [Reading.of(row) for table in tables for row in read_rows(table)]


@dataclass(frozen=True)
class Reading:
    """A published row as Parlay says it, `training`, or the `reasons` why it cannot."""

    row: Row
    training: Training | None
    reasons: tuple[str, ...]

    @classmethod
    def of(cls, row: Row) -> Reading:
        model, values = model_of(row), json.loads(row.get("layout_json") or "null") or layout_values(row)
        values.pop("expert_overlap", None)
        reasons = [f"{axis} {word}" for axis, word in values.items() if axis in CHOICES and word not in CHOICES[axis]]
        reasons += ["no published shape of a GPT"] if model is None else []
        if model is None or reasons:
            return cls(row, None, tuple(reasons))
        layout = Layout(**values).canonical()
        # A row that is said already may stand for uneven chunks that no layout says.
        problems = () if row.get("layout_json") else engine_violations(layout, model, ENGINE_RULES)
        broken = tuple(problem.code for problem in problems if problem.code != _OF_ANOTHER_PROGRAM)
        return cls(row, None if broken else Training(model, cluster_of(row), layout), broken)

    @property
    def family(self) -> str:
        """Kind of layout, whose errors are told apart."""
        if self.fine_tuning:
            return self.fine_tuning
        if int(self.row["num_experts"] or 0) or (self.training and self.training.model.num_experts):
            return "experts"
        if int(self.row["cp"]) > 1:
            return "context"
        if self.row["precision"] != "bf16":
            return "8 and 4 bits"
        is_sharded = self.row["zero_stage"] == "3" and int(self.row["tp"]) * int(self.row["pp"]) == 1
        return "dense FSDP" if is_sharded else "dense 3D"

    @property
    def fine_tuning(self) -> str | None:
        """Kind of a fine-tuning; None for a training of a whole model from its start."""
        return next((word for word in ("LoRA", "SFT") if word in self.row["note"]), None)

    @property
    def stack(self) -> str:
        """Trainer, and of Megatron-Bridge the release: the same layout differs by 1.8 between two."""
        is_bridge = self.source == "NVIDIA-NeMo"
        return f"{self.row['trainer']} {self.row['section'][:5]}" if is_bridge else self.row["trainer"]

    @property
    def source(self) -> str:
        """Who published it: the owner of the repository."""
        return self.row["source"].partition("/")[0]

    @property
    def counts(self) -> bool:
        """True if its error counts: the row says what decides the speed, as the micro-batch in a pipeline, and its
        authors name no fault."""
        return self.training is not None and "not stated" not in self.row["note"] and not has_named_fault(self.row)

    @property
    def measured(self) -> float:
        """Published tokens/s and GPU."""
        return float(self.row["tokens_per_s_per_gpu"])


@dataclass(frozen=True)
class Training:
    """Layout of a model on a machine."""

    model: ModelShape
    cluster: Cluster
    layout: Layout

    @property
    def predicted(self) -> float:
        """Tokens/s and GPU with the shipped constants."""
        terms = StepTerms.of(self.model, self.cluster, LayoutTable.of([self.layout]))
        terms.device.values[terms.device.keys.index(("context", ("collectives",))), 0] += self.repeated_heads_s
        tokens = self.layout.global_batch_size * self.model.seq_length / self.layout.num_gpus
        return tokens / (float(terms.seconds(typical_constants())[0]) + self.older_kernel_s)

    @property
    def fit_probability(self) -> float:
        """Probability that it fits in the accelerator's memory, as a plan gives it before any trial."""
        # Composer's FSDP shards gradients after every micro-batch: only DDP adds them up (mosaicml/composer,
        # composer/distributed/dist_strategy.py, ddp_sync_context).
        is_composer = self.layout.engine == _COMPOSER
        layout = replace(self.layout, grad_accum_steps=1) if is_composer else self.layout
        memory = stage_memory(replace(self.model, fuses_loss=layout.engine in _FUSED_LOSS), LayoutTable.of([layout]))
        return float(MemoryPosterior(rank_memory_gib(self.cluster.accelerator, None)).fits(memory.peak)[0])

    @property
    def older_kernel_s(self) -> float:
        """Seconds of a step by which the row's attention kernel is slower than today's, where both are known."""
        shares = attention_shares(self.cluster.accelerator)
        if self.layout.attention_kernel != "flash" or shares is None:
            return 0.0
        flash_2, newest = shares
        slowdown = {_COMPOSER: (1 / TRITON_SHARE_OF_FLASH_2 - 1) / flash_2, "torchtitan": 1 / flash_2 - 1 / newest}
        passes = 3.5 + (self.layout.activation_checkpointing == "full")
        tokens = self.layout.global_batch_size * self.model.seq_length / self.layout.num_gpus
        flops = 2 * tokens * self.model.scored_size * passes * self.model.causal_positions
        peak = self.cluster.accelerator.peak_flops_for("bf16") or math.inf
        return flops * slowdown.get(self.layout.engine, 0.0) / peak

    @property
    def repeated_heads_s(self) -> float:
        """Seconds of a micro-batch on a stage in which torchtitan's ranks exchanged copies of keys and values.

        Its releases of the rows repeated them for each query's head before attention (commit 9dec370,
        torchtitan/models/llama/model.py, repeat_kv). Keys and values are gathered in each pass; their gradients go
        through a ring in fp32, half hidden, so that they take as long as in bf16 gathered
        (torch/distributed/tensor/experimental/_attention.py).
        """
        count, model, layout = self.layout.context_parallel, self.model, self.layout
        links = self.cluster.links_of_job(layout.num_nodes)
        if count == 1 or layout.engine != "torchtitan" or links is None:
            return 0.0
        copies = model.num_attention_heads // model.num_key_value_heads - 1
        tokens = layout.micro_batch_size * model.seq_length / count
        keys = 2 * 2 * tokens * model.key_value_size / layout.tensor_parallel
        passes = 3 + (layout.activation_checkpointing == "full")
        rate = 1e9 * links.collective_gb_per_s(count, layout.tensor_parallel, self.cluster.gpus_per_node)
        return -(-model.num_layers // layout.pipeline_parallel) * passes * copies * (count - 1) * keys / rate


_COMPOSER = "accelerate-launch"
"""Engine as which Composer's rows are read."""
_FUSED_LOSS = (_COMPOSER, "megatron-lm")
"""Engines of rows whose loss is one kernel: with llm-foundry (llmfoundry/models/mpt/modeling_mpt.py, loss_fn) and
Megatron-Bridge's recipes (src/megatron/bridge/recipes/llama/llama3.py, cross_entropy_fusion_impl)."""
TRITON_SHARE_OF_FLASH_2 = 0.53
"""Rate of the first FlashAttention over that of the second: 25 to 40 and 50 to 73 % of A100's peak (Dao, arXiv
2307.08691, abstract). MPT has the first, in Triton (mosaicml/llm-foundry,
scripts/train/benchmarking/submit_benchmarks.py), torchtitan had the second until 2025."""


# -- rows


def has_named_fault(row: Row) -> bool:
    """True if the source says that a fault made the row slow: NVIDIA/cudnn-frontend, issue 256, and
    pytorch/torchtitan, issue 1207."""
    return _is_rowwise(row) or (row["model"] == "GPT OSS 120B" and row["section"].startswith("26.06.01"))


def model_of(row: Row) -> ModelShape | None:
    """The model's ready-made shape, else that of the row's columns; None where neither is known."""
    if row.get("model_json"):
        return _model_of_json(json.loads(row["model_json"]))
    name = _READY_MADE.get(row["model"].removesuffix(" (tokendrop)").lower())
    if name is not None:
        ready_made = validate(ModelSection, preset(MODELS, name)).shape()
        of_row = replace(ready_made, seq_length=int(row["seq_length"]))
        return replace(of_row, adapters=_BRIDGE_LORA, trainable=()) if "LoRA" in row["note"] else of_row
    if not int(row["hidden_size"]):
        return None
    sizes = {field: int(row[field]) for field in _SIZES}
    switches = {field: row[field] == "1" for field in ("gated_mlp", "tied_embeddings")}
    words = {field: row[field] for field in ("position_embedding", "norm")}
    return ModelShape.from_json(sizes | switches | words)


def _model_of_json(data: dict[str, Any]) -> ModelShape:
    """A shape in full, or a ready-made one with what differs."""
    ready_made = preset(MODELS, data.pop("preset")).data if "preset" in data else {}
    return validate(ModelSection, Document({**ready_made, **data}, {}, None, Path())).shape()


_OF_ANOTHER_PROGRAM = "megatron-lm.adapters"
"""Rule of pretrain_gpt.py, whose engine Megatron-Bridge's rows are read with."""
_BRIDGE_LORA = Adapters(16, alpha=32, target_modules=("linear_qkv",))
"""Adapters of Megatron-Bridge's LoRA rows (src/megatron/bridge/perf_recipes/llama, 067f987)."""
_READY_MADE = {
    "llama3-8b": "llama-3.1-8b",
    "llama3_8b": "llama-3.1-8b",
    "llama3-70b": "llama-3.1-70b",
    "llama3_70b": "llama-3.1-70b",
    "llama3-405b": "llama-3.1-405b",
    "qwen3_30b_a3b": "qwen3-30b-a3b",
    "gpt oss 120b": "gpt-oss-120b",
}
_SIZES = (
    *("num_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "ffn_hidden_size", "vocab_size"),
    "seq_length",
)


def cluster_of(row: Row) -> Cluster:
    gpus, per_node, name = int(row["num_gpus"]), int(row["gpus_per_node"]), row["accelerator"]
    accelerator = _LESSER_H100 if name == "h100-96gb-500w" else accelerator_named(name.removeprefix("dgx-"))
    cluster = Cluster(accelerator, min(gpus, per_node), -(-gpus // per_node))
    if not row.get("source", "").startswith("awslabs/") or cluster.links is None or cluster.links.fabric is None:
        return cluster
    over_efa = replace(cluster.links.fabric, kind="efa")
    return replace(cluster, given_links=replace(cluster.links, fabric=over_efa))


_LESSER_H100 = replace(
    ACCELERATORS["h100-80gb"],
    memory_gib=96,
    usable_memory_gib=None,
    memory_gb_per_s=2400,
    peak_flops={"fp8": 1825e12, "fp16": 912e12, "bf16": 912e12, "fp32": 67e12},
)
"""The H100 of torchtitan's tables, with 500 of 700 W and HBM2e: its peak "is between SXM and NVL" (torchtitan,
benchmarks/llama3_h100_202412_torchtitan.md), here half-way between 989 and 835 TFLOP/s."""


def layout_values(row: Row) -> dict[str, Any]:
    """Fields of the row's layout, also with words that no layout has yet."""
    return {
        **{field: int(row[column]) for column, field in _NUMBERS.items()},
        **_BY_TRAINER[row["trainer"]],
        **_recomputation(row),
        **_steps_of_bridge(row),
        **_of_titan_pipelines(row),
        "num_nodes": cluster_of(row).num_nodes,
        "sequence_parallel": row["sequence_parallel"] == "1",
        "torch_compile": row["compile"] == "1",
        "tensor_parallel_overlap": "async tp" in row["note"] or _overlaps_userbuffers(row),
        "precision": "bf16",
        # torchtitan gathered keys and values for its usual kernel (experimental.context_parallel_rotate_method); its
        # present release does so for FlexAttention, which is taken to be as fast as that kernel.
        "attention_kernel": "flex" if int(row["cp"]) > 1 else "flash",
        "matmul_precision": _matmul_precision(row),
        "quantized_weights": row["trainer"] == "megatron-bridge"
        and _matmul_precision(row) != "same"
        and int(row["dp"]) > 1,
    }


def _overlaps_userbuffers(row: Row) -> bool:
    """True where Megatron-Bridge's recipe of a dense model has tp_comm_overlap (scripts/performance/configs/llama)."""
    is_dense = row["trainer"] == "megatron-bridge" and not int(row["num_experts"] or 0)
    return is_dense and int(row["tp"]) > 1 and row["precision"] != "nvfp4"


_NUMBERS = {
    "tp": "tensor_parallel",
    "pp": "pipeline_parallel",
    "dp": "data_parallel",
    "cp": "context_parallel",
    "ep": "expert_parallel",
    "vp": "virtual_pipeline_stages",
    "micro_batch_size": "micro_batch_size",
    "grad_accum": "grad_accum_steps",
    "zero_stage": "zero_stage",
}
_BY_TRAINER: Mapping[str, Mapping[str, Any]] = {
    "composer-fsdp": {"engine": _COMPOSER},
    "torchtitan": {"engine": "torchtitan"},
    "megatron-bridge": {"engine": "megatron-lm", "overlap_comm": True, "gradients_in_bf16": True},
}
"""Engine whose memory and time are the trainer's. Composer's is FSDP in a script, with reductions in 16 bits;
Megatron-Bridge's recipes overlap reductions (src/megatron/bridge/training/comm_overlap.py), and have gradients in bf16
(scripts/performance/configs, grad_reduce_in_fp32)."""


def _recomputation(row: Row) -> dict[str, Any]:
    """What the row says; else what Megatron-Bridge's recipes give (scripts/performance/configs, v0.1.0rc4 to v0.6.0),
    whose tables do not."""
    told = {"none": "none", "full": "full", "selective-op": "selective"}.get(row["recompute"])
    if told is not None:
        return {"activation_checkpointing": told}
    model, machine, is_sharded = row["model"], row["accelerator"], row["zero_stage"] == "3"
    if model == "GPT OSS 120B" and row["precision"] == "bf16" and machine in ("dgx-gb200", "dgx-b200", "h100-80gb"):
        return {"activation_checkpointing": "selective", "recompute_modules": "layernorm+moe_act"}
    if model == "LLAMA3_70B" and is_sharded:
        return {"activation_checkpointing": "none, with 20 or 40 layers in host memory"}
    if model == "LLAMA3_8B" and is_sharded and "25.11" in row["section"]:
        return {"activation_checkpointing": "full", "recompute_layers": 5}
    return {"activation_checkpointing": "none"}


def _steps_of_bridge(row: Row) -> dict[str, Any]:
    """CUDA graphs and dispatchers of Megatron-Bridge's recipes (scripts/performance/configs, v0.1.0rc4 to v0.5.1;
    src/megatron/bridge/perf_recipes, v0.6.0): those of the last release up to the row's that changed them."""
    if row["trainer"] != "megatron-bridge" or row["zero_stage"] == "3":
        return {}
    machine = row["accelerator"].removeprefix("dgx-")
    given = [
        values
        for model, machines, since, values in _BRIDGE_STEPS
        if model == row["model"] and machine in machines and since <= row["section"]
    ]
    return dict(given[-1]) if given else {}


_HYBRID = {"expert_dispatcher": "hybridep"}
_ROUTER = {"cuda_graphs": "moe_router+moe_preprocess"}
_ATTENTION_AND_ROUTER = {"cuda_graphs": "attn+moe_router+moe_preprocess"}
_WHOLE = {"cuda_graphs": "full_iteration"}
_GPT_OSS, _QWEN, _LLAMA = "GPT OSS 120B", "Qwen3_30B_a3B", "LLAMA3_8B"
_BRIDGE_STEPS: tuple[tuple[str, Sequence[str], str, Mapping[str, Any]], ...] = (
    # Whole layers, which are attention and MLP in a dense model; no layout has whole layers with experts.
    (_LLAMA, ("b200",), "25.09", {"cuda_graphs": "attn+mlp"}),
    (f"{_QWEN} (tokendrop)", ("b200", "gb200"), "25.09", {"cuda_graphs": "whole layers"}),
    (_LLAMA, ("b200", "gb200", "gb300"), "25.11", _WHOLE),
    (_GPT_OSS, ("b300", "gb300"), "25.11", _ATTENTION_AND_ROUTER),
    (_QWEN, ("b200",), "25.11", _ROUTER),
    (_QWEN, ("b300", "gb200", "gb300"), "25.11", {**_ROUTER, **_HYBRID}),
    (_QWEN, ("h100-80gb",), "26.02", {"expert_dispatcher": "deepep"}),
    (_QWEN, ("b200",), "26.02.01", {**_ATTENTION_AND_ROUTER, **_HYBRID}),
    (_QWEN, ("h100-80gb",), "26.04", _HYBRID),
    (_GPT_OSS, ("b300",), "26.04", {**_ATTENTION_AND_ROUTER, **_HYBRID}),
    (_GPT_OSS, ("b200", "gb200"), "26.04", _HYBRID),
    (_GPT_OSS, ("b200", "gb200"), "26.04.01", {}),
    (_QWEN, ("b300", "gb200", "gb300"), "26.06", {**_WHOLE, **_HYBRID}),
    (_GPT_OSS, ("gb200", "gb300"), "26.06", {**_WHOLE, **_HYBRID}),
)
"""Model, machines, first release and values, in the order of releases."""


def _of_titan_pipelines(row: Row) -> dict[str, Any]:
    """ZeRO 2 in a pipeline, where torchtitan did not shard again after the forward pass (commit 9dec370,
    torchtitan/parallelisms/parallelize_llama.py, apply_fsdp)."""
    is_one = row["trainer"] == "torchtitan" and int(row["pp"]) > 1
    return {"zero_stage": 2} if is_one else {}


def _matmul_precision(row: Row) -> str:
    if row["trainer"] == "composer-fsdp" and row["precision"] == "fp8":
        return "fp8_delayed"  # Transformer Engine's usual recipe (composer/core/precision.py)
    if _is_rowwise(row):
        return "fp8_rowwise"
    return _MATMUL_PRECISIONS[row["precision"]]


_MATMUL_PRECISIONS = {
    "bf16": "same",
    # One scale for a tensor, from its present values. The tables of 25.09 do not say so; its recipes do.
    **dict.fromkeys(("fp8", "fp8-cs", "fp8-cs (fp8-mx)", "?"), "fp8_tensorwise"),
    **dict.fromkeys(("fp8-mx", "mxfp8"), "mxfp8"),
    "nvfp4": "nvfp4",
}


def _is_rowwise(row: Row) -> bool:
    return row["trainer"] == "torchtitan" and row["tokens_per_s_per_gpu"] in _ROWWISE


_ROWWISE = ("599.6", "624.8", "3708.5", "3914.9")
"""Tokens/s and GPU of the rows with a scale for each row: the table calls them fp8 as those with one for a tensor
(torchtitan, benchmarks/asyncTP_llama3_h100_2025-06_torchtitan.md)."""


# -- lines


def said_line(readings: Sequence[Reading]) -> Line:
    """Rows that can be said, and why others cannot, the first reason of each."""
    said = [reading for reading in readings if reading.training is not None]
    tuned = sum(reading.fine_tuning is not None for reading in said)
    reasons = Counter(reading.reasons[0] for reading in readings if reading.reasons)
    return {"rows": len(readings), "said": len(said), "fine_tuning": tuned, "reasons": dict(reasons)}


def family_lines(readings: Sequence[Reading]) -> Iterator[Line]:
    """Errors of each family by the stack that was measured, and of all of a family's, a source's, and all rows."""
    groups: dict[tuple[str, str], list[Reading]] = {}
    for reading in readings:
        of_family = (reading.family, reading.stack), (reading.family, "all")
        for group in (*of_family, ("all", reading.source), ("all", "all")):
            groups.setdefault(group, []).append(reading)
    for (family, stack), found in sorted(groups.items()):
        if errors := errors_of(found):
            yield {"family": family, "stack": stack, **error_line(errors)}


def errors_of(readings: Iterable[Reading]) -> list[float]:
    """Relative errors of the predicted rates of those that count."""
    return [found.training.predicted / found.measured - 1 for found in readings if found.counts and found.training]


def error_line(errors: Sequence[float]) -> Line:
    off = np.abs(errors)
    return {
        "count": len(errors),
        "error_median": round(float(np.median(off)), 4),
        "error_p90": round(float(np.quantile(off, 0.9)), 4),
        "bias_median": round(float(np.median(errors)), 4),
    }


def memory_line(readings: Iterable[Reading]) -> Line:
    """Fit probabilities of rows, all of which ran: how many the plan says do not fit, and are below one half."""
    fits = np.array([reading.training.fit_probability for reading in readings if reading.training is not None])
    return {
        "ran": len(fits),
        "said_not_to_fit": int(np.sum(fits <= UNLIKELY)),
        "below_one_half": int(np.sum(fits < 0.5)),
    }


if __name__ == "__main__":
    main()
