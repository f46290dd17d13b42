"""The layout, read from Megatron's options."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from orchestrator.importers.megatron.model_fields import CORE, degree, is_megatron_deepspeed, num_layers
from orchestrator.importers.megatron.stage_layout import StageLayout
from orchestrator.importers.settings import FieldReaders, Settings
from search_spaces.layouts.layout import AXES
from trials.trainers.common.megatron_options import CONTEXT_TRANSPORTS, RECIPE_NAMES, main_gradient_bytes

SPLIT = AXES["pipeline_split"]
_FLASH_OPTIONS = (
    *("use-flash-attn", "use-flash-attn-v1", "use-flash-attn-v2"),
    *("use-flash-attn-triton", "use-flash-attn-builder"),
)
"""Megatron-DeepSpeed's."""
FSDP_STAGES = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
"""ZeRO stage of Megatron-FSDP's strategies."""
KERNELS = {"flash": "flash", "fused": "flash", "auto": "flash", "unfused": "math", "local": "math"}
"""Attention kernel of Megatron's backends: auto prefers flash in half precision."""


def _precision(options: Settings) -> str:
    """fp32 without an option; one whose name is not known, `--$DTYPE`, is nearly always that of the precision."""
    return next((name for name in ("bf16", "fp16", *options.unnamed) if options.has(name)), "fp32")


def pipeline_parallel(options: Settings) -> int:
    return 1 if options.has("no-pipeline-parallel") else degree(options, "pipeline")


def _stages(options: Settings) -> int | None:
    """Pipeline stages; None where a variable has them."""
    return None if options.is_in_doubt("pipeline-model-parallel-size") else pipeline_parallel(options)


STAGE_LAYOUT = StageLayout("pipeline-model-parallel-layout", _stages, num_layers)


def _zero_stage(options: Settings) -> int | None:
    stage = options.text("zero-stage")
    if stage is not None and stage in ("0", "1", "2", "3"):
        return int(stage)
    if options.has("use-megatron-fsdp"):
        return FSDP_STAGES.get(options.text("data-parallel-sharding-strategy") or "optim_grads_params")
    return 1 if options.has("use-distributed-optimizer") else None


def _checkpointing(options: Settings) -> str | None:
    """--recompute-activations prevails over the granularity. In Megatron-DeepSpeed --checkpoint-activations prevails
    over both, and its pipeline recomputes layers by the method uniform alone (megatron/model/gpt_model.py)."""
    if is_megatron_deepspeed(options) and options.has("checkpoint-activations"):
        return "full"
    if options.has("recompute-activations"):
        return "selective"
    granularity = options.text("recompute-granularity")
    if granularity == "full" and _has_deepspeeds_pipeline(options):
        return "full" if options.text("recompute-method") == "uniform" else None
    return granularity if granularity in ("full", "selective") else None


def recomputes_blocks(options: Settings) -> bool:
    """True where the method block recomputes some layers of each model chunk, or all of them."""
    return options.text("recompute-granularity") == "full" and options.text("recompute-method") == "block"


def _recompute_layers(options: Settings) -> int | None:
    """None where the method block recomputes all layers of a chunk, or more than it has."""
    if is_megatron_deepspeed(options) or not recomputes_blocks(options):
        return None
    parts = (pipeline_parallel(options) or 1) * (chunks(options) or 1)
    return some_layers(options.count("recompute-num-layers"), parts, num_layers(options))


def some_layers(count: int | None, parts: int, layers: int | None) -> int | None:
    """`count` layers of each of a model's `parts`; None where these are all of its `layers`."""
    return None if count and layers and count * parts >= layers else count


def recompute_modules(names: Collection[str]) -> str | None:
    """The word of these modules of Megatron; None where there is none."""
    return AXES["recompute_modules"].joined(names)


def _recompute_modules(options: Settings) -> str | None:
    if _checkpointing(options) != "selective" or (given := options.text("recompute-modules")) is None:
        return None
    return recompute_modules(given.split())


def _has_deepspeeds_pipeline(options: Settings) -> bool:
    return is_megatron_deepspeed(options) and options.has("deepspeed") and not options.has("no-pipeline-parallel")


def chunks(options: Settings) -> int | None:
    """Model chunks a pipeline rank; Megatron-LM may say layers a chunk instead, or the modules of each."""
    if STAGE_LAYOUT.is_given(options):
        return STAGE_LAYOUT.chunks(options)
    stated = options.count("num-virtual-stages-per-pipeline-rank")
    layers_a_chunk = None if stated else options.count("num-layers-per-virtual-pipeline-stage")
    if layers_a_chunk is None:
        return stated
    layers, stages = num_layers(options), pipeline_parallel(options)
    layers = layers and layers + len(_counted(options))
    return max(1, layers // (stages * layers_a_chunk)) if layers else None


def _counted(options: Settings) -> list[str]:
    """Parts that count as layers where the layers are split."""
    return [part for part in SPLIT.parts if options.has(f"account-for-{part}-in-pipeline-split")]


def _attention_kernel(options: Settings) -> str | None:
    """None for Megatron-DeepSpeed's default, which is unfused. Megatron-LM's auto prefers flash in half precision."""
    if is_megatron_deepspeed(options):
        return "flash" if options.has(*_FLASH_OPTIONS) else None
    if options.text("transformer-impl") == "local" or _precision(options) == "fp32":
        return "math"
    return KERNELS.get(options.text("attention-backend") or "auto", "flash")


def bucket_mib(parameters: int | None, gradients_in_bf16: bool = False) -> int | None:
    """Size of a bucket of gradients, which Megatron counts in parameters."""
    bytes_each = main_gradient_bytes(gradients_in_bf16)
    return None if parameters is None else max(1, round(parameters * bytes_each / 2**20))


def _context_transport(options: Settings) -> str | None:
    return context_transport((options.text("cp-comm-type") or "p2p").split())


def context_transport(names: Sequence[str]) -> str | None:
    """The word of one transport, or of one for each layer, which are the same; None where there is none."""
    words = {_TRANSPORTS.get(name.lower().replace("_", "")) for name in names}
    return words.pop() if len(words) == 1 else None


_TRANSPORTS = {name.replace("_", ""): word for word, name in CONTEXT_TRANSPORTS.items()}


def inner_context(sizes: Sequence[Any]) -> int | None:
    """Ranks of an inner group, the first of two sizes; None for others."""
    numbers = [int(size) for size in sizes if str(size).isdigit() and int(size) > 1]
    return numbers[0] if len(numbers) == len(sizes) == 2 else None


def _cuda_graphs(options: Settings) -> str | None:
    if not options.has("cuda-graph-impl", "enable-cuda-graph", "external-cuda-graph"):
        return None
    older = "local" if options.has("enable-cuda-graph") else "none"
    older = "transformer_engine" if options.has("external-cuda-graph") else older
    names = [name for option in GRAPH_MODULES for name in (options.text(option) or "").split()]
    return cuda_graphs(options.text("cuda-graph-impl") or older, names, not CORE.is_dense(options))


def cuda_graphs(implementation: str, names: Sequence[str], has_experts: bool) -> str | None:
    """The word of these modules of Megatron, whole layers without any; None where there is none."""
    if implementation == "none":
        return "none"
    if implementation == "full_iteration" or [*names] == ["full_iteration"]:
        return "full_iteration"
    if [*names] in ([], ["full"]):
        return None if has_experts else "attn+mlp"
    return AXES["cuda_graphs"].joined(names)


GRAPH_MODULES = ("cuda-graph-scope", "cuda-graph-modules")
"""Options that name what graphs capture: before core_v0.18.0, and since."""


def _matmul_precision(options: Settings) -> str | None:
    """Transformer Engine's recipe; delayed scaling is Megatron's default of 8 bits."""
    if is_megatron_deepspeed(options):
        return None
    if options.has("fp4-format"):
        return _RECIPES.get(options.text("fp4-recipe") or "nvfp4")
    return _RECIPES.get(options.text("fp8-recipe") or "delayed") if options.has("fp8-format") else None


_RECIPES = {name: word for word, name in RECIPE_NAMES.items()}


def _layers_in_16_bits(options: Settings) -> int | None:
    if not options.has("first-last-layers-bf16"):
        return None
    return options.counted("num-layers-at-start-in-bf16", MEGATRON_LAYERS_IN_BF16)


MEGATRON_LAYERS_IN_BF16 = 1
"""Megatron's default at each end."""


LAYOUT_FIELDS: FieldReaders = {
    "tensor_parallel": lambda options: degree(options, "tensor"),
    "pipeline_parallel": pipeline_parallel,
    "micro_batch_size": lambda options: options.count("micro-batch-size"),
    "zero_stage": _zero_stage,
    "offload": lambda options: "optimizer" if options.has("cpu-optimizer", "optimizer-cpu-offload") else None,
    "activation_checkpointing": _checkpointing,
    "sequence_parallel": lambda options: True if options.has("sequence-parallel") else None,
    "virtual_pipeline_stages": chunks,
    "precision": _precision,
    "attention_kernel": _attention_kernel,
    "rank_order": lambda options: "tp-pp-dp" if options.has("use-tp-pp-dp-mapping") else None,
    "overlap_comm": lambda options: True if options.has("overlap-grad-reduce") else None,
    "bucket_mib": lambda options: bucket_mib(options.count("ddp-bucket-size"), options.has("grad-reduce-in-bf16")),
    "recompute_layers": _recompute_layers,
    "recompute_modules": _recompute_modules,
    "offloaded_layers": CORE.offloaded_layers,
    "tensor_parallel_overlap": lambda options: True if options.has("tp-comm-overlap") else None,
    "expert_overlap": lambda options: True if options.has("overlap-moe-expert-parallel-comm") else None,
    "cuda_graphs": _cuda_graphs,
    "data_parallel_replicas": lambda options: options.count("num-distributed-optimizer-instances"),
    "pipeline_split": lambda options: STAGE_LAYOUT.said(options, "split") or SPLIT.joined(_counted(options)),
    "first_stage_layers": lambda options: (
        STAGE_LAYOUT.said(options, "first") or options.count("decoder-first-pipeline-num-layers")
    ),
    "last_stage_layers": lambda options: (
        STAGE_LAYOUT.said(options, "last") or options.count("decoder-last-pipeline-num-layers")
    ),
    "expert_parallel": CORE.expert_parallel,
    "expert_tensor_parallel": CORE.expert_tensor_parallel,
    "expert_dispatcher": CORE.expert_dispatcher,
    "context_parallel": lambda options: options.count("context-parallel-size"),
    "context_transport": lambda options: _context_transport(options) if options.has("cp-comm-type") else None,
    "context_inner": lambda options: inner_context((options.text("hierarchical-context-parallel-sizes") or "").split()),
    "matmul_precision": _matmul_precision,
    "layers_in_16_bits": _layers_in_16_bits,
    "quantized_weights": lambda options: True if options.has("fp8-param-gather", "fp4-param-gather") else None,
    "gradients_in_bf16": lambda options: True if options.has("grad-reduce-in-bf16") else None,
    "moment_dtype": lambda options: options.text("exp-avg-dtype"),
}
