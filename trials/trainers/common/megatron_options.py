"""Options of Megatron-LM and Megatron-DeepSpeed for a layout; `megatron_args` reads them back. Standard library only.

Option names: Megatron-LM megatron/training/arguments.py (accepted by its parser as of 2026-08), Megatron-DeepSpeed
megatron/arguments.py (2025-07). Defaults give way to options that the user names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from search_spaces.layouts.layout import AXES, Layout
from search_spaces.layouts.matmul_recipes import MATMUL_RECIPES, TRANSFORMER_ENGINE_RECIPES
from search_spaces.model_shape import DEFAULT_ROTARY_BASE, ModelShape
from search_spaces.routing import BALANCED, Routing
from trials.ranks.cuda_connections import connections
from trials.trainers.common.megatron_experts import (
    clamped_swiglu_options,
    expert_options,
    further_token_options,
    latent_options,
)
from trials.trainers.common.options import option_name, option_names
from trials.trainers.common.steps import NEVER, train_iterations
from trials.trial import TrialSpec


def main_gradient_bytes(gradients_in_bf16: bool) -> int:
    """Bytes of a gradient: otherwise Megatron keeps and reduces them in fp32, by default with bf16, by an option with
    fp16."""
    return 2 if gradients_in_bf16 else 4


SHARDING_STRATEGIES = {2: "optim_grads", 3: "optim_grads_params"}
"""Megatron-FSDP's names of ZeRO 2 and 3."""

NO_DROPOUT = {"attention-dropout": "0.0", "hidden-dropout": "0.0"}
"""Dropout off; Megatron's default is 0.1 for both."""
NO_DROPOUT_OPTIONS = [["--" + name, value] for name, value in NO_DROPOUT.items()]
"""Dropout off as in trials, for a recipe; a later option overrides it."""
_DEFAULTS = {"lr": "1.0e-4", **NO_DROPOUT}
_DATA = ("mock-data", "data-path", "train-data-path", "data-args-path", "per-split-data-args-path")
_TOKENIZER = ("tokenizer-type", "vocab-file", "tokenizer-model", "vocab-size")

Option = Sequence[str]


def megatron_lm_options(spec: TrialSpec, arguments: Sequence[str], newer: Sequence[Option] = ()) -> list[str]:
    """All options of Megatron-LM's script: those of the layout and the rules, then the user's `arguments`.

    `newer` are those of `newer_megatron_lm` that the checkout has. Without data of the user's it uses --mock-data.
    """
    given = option_names(arguments)
    options = [
        *megatron_lm_layout(spec),
        *newer,
        *_trial(spec),
        ["--log-throughput"],
        ["--log-memory-interval", "5"],
        ["--distributed-timeout-minutes", "10"],
        *_lm_data(spec, given),
    ]
    return _flatten(options, given) + list(arguments)


def megatron_deepspeed_options(spec: TrialSpec, config_file: str, arguments: Sequence[str]) -> list[str]:
    """All options of Megatron-DeepSpeed's script, whose DeepSpeed configuration is `config_file`."""
    options = [*megatron_deepspeed_layout(spec), ["--deepspeed_config", config_file], *_trial(spec)]
    given = option_names(arguments)
    return _flatten(options, given) + list(arguments)


def megatron_lm_layout(spec: TrialSpec) -> list[Option]:
    """Megatron-LM's options for layout, model and batch, without data and length."""
    return [
        *_shared(spec),
        *_lm_parallel(spec.layout),
        ["--attention-backend", _attention_backend(spec)],
        *_lm_model(spec.model),
        *expert_options(spec.model, spec.layout),
        *_routing(spec),
    ]


def megatron_deepspeed_layout(spec: TrialSpec) -> list[Option]:
    """Megatron-DeepSpeed's options for layout, model and batch, besides those of its DeepSpeed configuration."""
    layout = spec.layout
    return [
        *_shared(spec),
        ["--deepspeed"],
        ["--zero-stage", str(layout.zero_stage)],
        *_if(layout.pipeline_parallel == 1, ["--no-pipeline-parallel"]),
        *_if(layout.offload == "optimizer", ["--cpu-optimizer"]),
        *_if(layout.activation_checkpointing == "full", ["--deepspeed-activation-checkpointing"]),
        *_if(layout.attention_kernel == "flash", ["--use-flash-attn-v2"]),
        *_deepspeed_model(spec.model),
    ]


_FUSED_EXPERTS = {"NVTE_CUTEDSL_FUSED_GROUPED_MLP": "1"}
"""Experts that can be captured are those of a kernel that Transformer Engine has for an asking."""


def environment_of(layout: Layout, accelerator: str) -> dict[str, str]:
    """Megatron-LM's default variables."""
    return connections(layout, accelerator) | (_FUSED_EXPERTS if layout.captures_experts else {})


def _flatten(options: Sequence[Option], given: frozenset[str]) -> list[str]:
    """The words of the options and of our defaults, without those that are given."""
    defaults = [["--" + name, value] for name, value in _DEFAULTS.items()]
    return [word for option in [*options, *defaults] if option_name(option[0]) not in given for word in option]


def _if(applies: bool, *options: Option) -> list[Option]:
    return list(options) if applies else []


def _shared(spec: TrialSpec) -> list[Option]:
    """Options that both forks have."""
    layout, model = spec.layout, spec.model
    return [
        ["--tensor-model-parallel-size", str(layout.tensor_parallel)],
        ["--pipeline-model-parallel-size", str(layout.pipeline_parallel)],
        ["--micro-batch-size", str(layout.micro_batch_size)],
        ["--global-batch-size", str(spec.global_batch_size)],
        *_if(layout.sequence_parallel, ["--sequence-parallel"]),
        *_recomputation(layout),
        *_if(layout.precision != "fp32", [f"--{layout.precision}"]),
        ["--num-layers", str(model.num_layers)],
        ["--hidden-size", str(model.hidden_size)],
        ["--ffn-hidden-size", str(model.ffn_hidden_size)],
        ["--num-attention-heads", str(model.num_attention_heads)],
        ["--seq-length", str(model.seq_length)],
        ["--max-position-embeddings", str(model.seq_length)],
        # Both pad the tokenizer's vocabulary to a multiple of this and the tensor degree: here to the model's own.
        ["--make-vocab-size-divisible-by", str(model.vocab_size // layout.tensor_parallel)],
        *_if(model.query_size != model.hidden_size, ["--kv-channels", str(model.head_size)]),
        *_if(model.gated_mlp and model.mlp_activation == "silu", ["--swiglu"]),
        *_if(model.mlp_activation == "squared_relu", ["--squared-relu"]),
        *_if(not model.tied_embeddings, ["--untie-embeddings-and-output-weights"]),
        *_if(not model.has_biases, ["--disable-bias-linear"]),
    ]


def _recomputation(layout: Layout) -> list[Option]:
    """The method uniform recomputes every layer by itself; block the first layers of each model chunk."""
    granularity, layers = layout.activation_checkpointing, layout.recompute_layers
    is_default = layout.recompute_modules == AXES["recompute_modules"].default
    return [
        *_if(granularity != "none", ["--recompute-granularity", granularity]),
        *_if(granularity == "selective" and not is_default, ["--recompute-modules", *layout.modules_recomputed]),
        *_if(
            granularity == "full",
            ["--recompute-method", "uniform" if layers is None else "block"],
            ["--recompute-num-layers", str(layers or 1)],
        ),
    ]


def _trial(spec: TrialSpec) -> list[Option]:
    """Length and logging of a trial."""
    return [
        ["--train-iters", str(train_iterations(spec))],
        ["--log-interval", "1"],
        ["--eval-iters", "0"],
        ["--eval-interval", str(NEVER)],
        ["--seed", str(spec.seed)],
    ]


def _lm_parallel(layout: Layout) -> list[Option]:
    return [
        *_if(
            layout.virtual_pipeline_stages > 1,
            ["--num-virtual-stages-per-pipeline-rank", str(layout.virtual_pipeline_stages)],
        ),
        *_context(layout),
        *_pipeline_split(layout),
        *_if(layout.tensor_parallel_overlap, ["--tp-comm-overlap"]),
        *_if(layout.expert_overlap, ["--overlap-moe-expert-parallel-comm"]),
        *_if(
            layout.data_parallel_replicas > 1,
            ["--num-distributed-optimizer-instances", str(layout.data_parallel_replicas)],
        ),
        *_if(layout.zero_stage > 0, ["--use-distributed-optimizer"]),
        *_fully_sharded(layout),
        *_if(layout.offload == "optimizer", ["--optimizer-cpu-offload"]),
        *_optimizer_states(layout),
        *_quantization(layout),
        *_if(layout.offloaded_layers > 0, ["--cpu-offloading-num-layers", str(layout.offloaded_layers)]),
        *_cuda_graphs(layout),
        *_if(layout.rank_order == "tp-pp-dp", ["--use-tp-pp-dp-mapping"]),
        *_if(layout.precision == "fp16", ["--accumulate-allreduce-grads-in-fp32"]),
        *_if(layout.overlap_comm, ["--overlap-grad-reduce"]),
        *_bucket(layout),
    ]


def _pipeline_split(layout: Layout) -> list[Option]:
    stages = (("first", layout.first_stage_layers), ("last", layout.last_stage_layers))
    return [
        *(
            [f"--account-for-{part}-in-pipeline-split"]
            for part in ("embedding", "loss")
            if part in layout.pipeline_split
        ),
        *([f"--decoder-{name}-pipeline-num-layers", str(count)] for name, count in stages if count is not None),
    ]


def _context(layout: Layout) -> list[Option]:
    """Context parallelism; of a hierarchy the inner groups come first."""
    count, inner = layout.context_parallel, layout.context_inner
    return [
        *_if(count > 1, ["--context-parallel-size", str(count)]),
        *_if(count > 1, ["--cp-comm-type", CONTEXT_TRANSPORTS[layout.context_transport]]),
        *_if(
            layout.context_transport == "a2a_p2p",
            ["--hierarchical-context-parallel-sizes", str(inner), str(count // inner)],
        ),
    ]


CONTEXT_TRANSPORTS = {"p2p": "p2p", "all_gather": "all_gather", "a2a": "a2a", "a2a_p2p": "a2a+p2p"}
"""Megatron's names of the transports."""


def _cuda_graphs(layout: Layout) -> list[Option]:
    """Options of core_v0.16.1, which main still reads: --cuda-graph-scope is --cuda-graph-modules there. In a graph of
    all passes the host cannot look at the loss."""
    if layout.cuda_graphs == "none":
        return []
    is_whole = layout.cuda_graphs == "full_iteration"
    return [
        ["--cuda-graph-impl", CUDA_GRAPH_IMPLEMENTATIONS[is_whole]],
        ["--cuda-graph-scope", *(layout.modules_captured or (layout.cuda_graphs,))],
        *_if(is_whole, ["--no-check-for-nan-in-loss-and-grad"]),
        *(CAPTURED_EXPERTS if layout.captures_experts else ()),
    ]


CAPTURED_EXPERTS: tuple[Option, ...] = (
    ("--moe-paged-stash",),
    ("--moe-expert-rank-capacity-factor", "1.5"),
    ("--use-transformer-engine-op-fuser",),
)
"""Options of experts in a graph of all passes, whose tokens have room for half as many more; where these are too many,
the step is run again without the graph. The factor is that of Megatron-Bridge's recipes (src/megatron/bridge/
perf_recipes/qwen/common.py)."""


def oldest_megatron_lm(layout: Layout) -> str | None:
    """First release that has all options of the layout; None if core_v0.16.1 has them."""
    return "core_v0.18.0" if layout.captures_experts else None


CUDA_GRAPH_IMPLEMENTATIONS = {True: "local", False: "transformer_engine"}
"""Megatron's implementation of a graph of all passes, and of graphs of parts of layers."""


def _optimizer_states(layout: Layout) -> list[Option]:
    """Types of gradients and moments. The optimizer that knows types offloads, too."""
    dtype = layout.moment_dtype
    return [
        *_if(layout.offload == "optimizer" or dtype != "fp32", ["--use-precision-aware-optimizer"]),
        *_if(dtype != "fp32", ["--exp-avg-dtype", dtype], ["--exp-avg-sq-dtype", dtype]),
        *_if(layout.gradients_in_bf16, ["--grad-reduce-in-bf16"]),
    ]


def _quantization(layout: Layout) -> list[Option]:
    """Products of 8 and 4 bits, by Transformer Engine; gradients have a wider range than weights, where a scale is that
    of many values."""
    precision, kept = layout.matmul_precision, str(layout.layers_in_16_bits)
    if precision == "same":
        return []
    in_4_bits = MATMUL_RECIPES[precision].arithmetic == "fp4"
    of_fp8 = (
        [["--fp8-format", FP8_FORMATS[precision]], ["--fp8-recipe", RECIPE_NAMES[precision]]] if not in_4_bits else []
    )
    return [
        *of_fp8,
        *_if(in_4_bits, ["--fp4-format", "e2m1"]),
        *_if(
            layout.layers_in_16_bits > 0,
            ["--first-last-layers-bf16"],
            ["--num-layers-at-start-in-bf16", kept],
            ["--num-layers-at-end-in-bf16", kept],
        ),
        *_if(layout.quantized_weights, ["--fp4-param-gather" if in_4_bits else "--fp8-param-gather"]),
        # Otherwise the gathered weights have a buffer of their own, in 16 bits.
        *_if(layout.quantized_weights and precision == "mxfp8", ["--reuse-grad-buf-for-mxfp8-param-ag"]),
    ]


RECIPE_NAMES = {word: word.removeprefix("fp8_") for word in TRANSFORMER_ENGINE_RECIPES}
"""Megatron's names of the recipes."""
FP8_FORMATS = {word: "e4m3" if word == "mxfp8" else "hybrid" for word in TRANSFORMER_ENGINE_RECIPES if word != "nvfp4"}
"""Formats of Megatron-Bridge's recipes (src/megatron/bridge/training/mixed_precision.py)."""


def _attention_backend(spec: TrialSpec) -> str:
    """Kernel of the layout. With sinks the flash one is cuDNN's: transformer_engine/pytorch/attention/
    dot_product_attention/utils.py, get_attention_backend, has no flash-attn for a learnable softmax."""
    if spec.layout.attention_kernel != "flash":
        return "unfused"
    return "fused" if spec.model.attention_sinks else "flash"


def _fully_sharded(layout: Layout) -> list[Option]:
    """Options of ZeRO 2 and 3, by Megatron-FSDP, which has its own checkpoint format and gradients."""
    if layout.zero_stage < 2:
        return []
    return [
        ["--use-megatron-fsdp"],
        ["--data-parallel-sharding-strategy", SHARDING_STRATEGIES[layout.zero_stage]],
        ["--ckpt-format", "fsdp_dtensor"],
        ["--no-gradient-accumulation-fusion"],
    ]


GRADIENT_DTYPE = ("--megatron-fsdp-main-grads-dtype", "fp32")


def newer_megatron_lm(layout: Layout) -> list[Option]:
    """Options that Megatron-LM needs besides those of the layout from core_v0.17.0 on, and refuses before: its
    Megatron-FSDP sums gradients in the weights' dtype by default."""
    sums_in_fp32 = layout.precision != "fp32" and not layout.gradients_in_bf16
    return _if(layout.zero_stage > 1 and sums_in_fp32, GRADIENT_DTYPE)


def _bucket(layout: Layout) -> list[Option]:
    parameters = bucket_parameters(layout)
    return [] if parameters is None else [["--ddp-bucket-size", str(parameters)]]


def bucket_parameters(layout: Layout) -> int | None:
    """The bucket's size in parameters, as Megatron counts it; None for its default."""
    if layout.bucket_mib is None:
        return None
    return layout.bucket_mib * 2**20 // main_gradient_bytes(layout.gradients_in_bf16)


def _lm_model(model: ModelShape) -> list[Option]:
    groups = model.num_key_value_heads
    return [
        *_if(groups != model.num_attention_heads, ["--group-query-attention"], ["--num-query-groups", str(groups)]),
        ["--normalization", "RMSNorm" if model.norm == "rmsnorm" else "LayerNorm"],
        ["--position-embedding-type", "rope" if model.position_embedding == "rotary" else "learned_absolute"],
        *_if(model.rotary_base != DEFAULT_ROTARY_BASE, ["--rotary-base", str(model.rotary_base)]),
        *_if(model.qkv_bias, ["--add-qkv-bias"]),
        *_if(model.qk_norm or model.key_value_latent_size is not None, ["--qk-layernorm"]),
        # The fused kernel of an MLP with biases is GELU's. That of experts clamps before it adds biases
        # (megatron/core/fusions/fused_bias_geglu.py, weighted_bias_quick_geglu_impl).
        *_if(
            model.mlp_activation in ("squared_relu", "clamped_swiglu") and model.has_biases, ["--no-bias-gelu-fusion"]
        ),
        *clamped_swiglu_options(model),
        *latent_options(model),
        *further_token_options(model),
        *_window(model),
        *_if(model.attention_sinks, ["--softmax-type", "learnable"]),
    ]


def _routing(spec: TrialSpec) -> list[Option]:
    return _if(Routing.of(spec.measure.routing).kind == BALANCED, ["--moe-router-force-load-balancing"])


def _window(model: ModelShape) -> list[Option]:
    """Megatron counts the positions before one's own and those after it."""
    if model.sliding_window is None:
        return []
    every = model.full_attention_every
    return [
        ["--window-size", f"{model.sliding_window - 1},0"],
        *_if(every is not None, ["--window-attn-skip-freq", str(every)]),
    ]


def _deepspeed_model(model: ModelShape) -> list[Option]:
    heads = model.num_key_value_heads
    return [
        *_if(heads != model.num_attention_heads, ["--num-key-value-heads", str(heads)]),
        *_if(model.norm == "rmsnorm", ["--normalization", "rmsnorm"]),
        *_if(model.position_embedding == "rotary", ["--use-rotary-position-embeddings"]),
        *_if(model.rotary_base != DEFAULT_ROTARY_BASE, ["--rotary-position-embeddings-theta", str(model.rotary_base)]),
    ]


def _lm_data(spec: TrialSpec, given: frozenset[str]) -> list[Option]:
    """Mock data over exactly the model's vocabulary; options of the user's take their place.

    The tokenizer had an end-of-document token more than --vocab-size until April 2026. Padded, both are the model's.
    """
    return [
        *_if(given.isdisjoint(_DATA), ["--mock-data"]),
        *_if(
            given.isdisjoint(_TOKENIZER),
            ["--tokenizer-type", "NullTokenizer"],
            ["--vocab-size", str(spec.model.vocab_size - 1)],
        ),
    ]


_OURS = frozenset(
    {
        *("tensor-model-parallel-size", "pipeline-model-parallel-size", "micro-batch-size", "global-batch-size"),
        *("sequence-parallel", "bf16", "fp16", "zero-stage", "deepspeed", "deepspeed-config", "no-pipeline-parallel"),
        *("recompute-granularity", "recompute-method", "recompute-num-layers", "recompute-activations"),
        *("recompute-modules", "cpu-offloading-num-layers", "tp-comm-overlap", "num-distributed-optimizer-instances"),
        *("account-for-embedding-in-pipeline-split", "account-for-loss-in-pipeline-split"),
        *("decoder-first-pipeline-num-layers", "decoder-last-pipeline-num-layers", "pipeline-model-parallel-layout"),
        *("checkpoint-activations", "deepspeed-activation-checkpointing", "cpu-optimizer", "optimizer-cpu-offload"),
        *("use-distributed-optimizer", "use-megatron-fsdp", "use-torch-fsdp2", "data-parallel-sharding-strategy"),
        *("num-virtual-stages-per-pipeline-rank", "num-layers-per-virtual-pipeline-stage", "use-tp-pp-dp-mapping"),
        *("overlap-grad-reduce", "ddp-bucket-size", "ddp-num-buckets", "attention-backend"),
        *("use-flash-attn", "use-flash-attn-v1", "use-flash-attn-v2"),
        *("num-layers", "hidden-size", "ffn-hidden-size", "num-attention-heads", "seq-length", "swiglu"),
        *("max-position-embeddings", "group-query-attention", "num-query-groups", "num-key-value-heads"),
        *("normalization", "position-embedding-type", "use-rotary-position-embeddings", "disable-bias-linear"),
        *("kv-channels", "squared-relu", "rotary-base", "rotary-position-embeddings-theta", "add-qkv-bias"),
        *("qk-layernorm", "window-size", "window-attn-skip-freq", "softmax-type", "no-bias-gelu-fusion"),
        *("quick-geglu", "glu-linear-offset", "activation-func-clamp-value"),
        *("expert-model-parallel-size", "expert-tensor-parallel-size", "num-experts", "moe-router-topk"),
        *("overlap-moe-expert-parallel-comm", "cuda-graph-impl", "cuda-graph-scope", "cuda-graph-modules"),
        *("enable-cuda-graph", "external-cuda-graph", "moe-paged-stash", "moe-expert-rank-capacity-factor"),
        *("moe-ffn-hidden-size", "moe-shared-expert-intermediate-size", "moe-layer-freq"),
        *("multi-latent-attention", "q-lora-rank", "kv-lora-rank", "qk-head-dim", "qk-pos-emb-head-dim", "v-head-dim"),
        *("rope-type", "mtp-num-layers"),
        *("untie-embeddings-and-output-weights", "train-iters", "log-interval", "eval-iters", "eval-interval", "seed"),
        *("log-throughput", "log-memory-interval"),
        *("context-parallel-size", "cp-comm-type", "hierarchical-context-parallel-sizes"),
        *("fp8-format", "fp8-recipe", "fp4-format", "fp8-param-gather", "fp4-param-gather"),
        *("first-last-layers-bf16", "num-layers-at-start-in-bf16", "num-layers-at-end-in-bf16"),
        *("reuse-grad-buf-for-mxfp8-param-ag", "grad-reduce-in-bf16", "exp-avg-dtype", "exp-avg-sq-dtype"),
        *("moe-router-force-load-balancing", "moe-aux-loss-coeff"),
        *("padded-vocab-size", "no-pad-vocab-size", "disable-pad-vocab-size"),
    }
)
"""Options that the search file sets elsewhere: those of layout, model and rules."""

_REFUSED: Mapping[str, str] = {
    "save": "a trial writes no checkpoint",
    "train-samples": "a trial counts iterations",
    "exit-interval": "a trial ends when its measurement is precise enough",
    "rampup-batch-size": "the global batch is fixed",
    "fp4-recipe": "the layout has its usual one",
    "ds-sequence-parallel-size": "no layout field expresses it",
    **dict.fromkeys(
        ("qk-l2-norm", "openai-gelu", "moe-shared-expert-gate", "moe-latent-size"),
        "the model section has no such model for this trainer",
    ),
    **dict.fromkeys(("spec", "yaml-cfg"), "the model is that of the model section"),
}


def unsupported_option_reason(name: str) -> str | None:
    """The reason why the user's arguments may not have an option of this name; None where they may."""
    return "the layout, model or measure section sets it" if name in _OURS else _REFUSED.get(name)
