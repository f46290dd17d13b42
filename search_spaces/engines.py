"""Trainers and their engines: the only list of their names, with the memory and time profile of each engine.

What else belongs to a trainer is in its package (trials/trainers). Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto


class LayerSplit(Enum):
    """Split of the layers over pipeline stages (search_spaces/layouts/pipeline_split.py)."""

    BALANCED = auto()
    EVEN = auto()
    """The same number of layers for every stage, embedding and head in addition; balanced where it does not divide."""
    GREEDY = auto()


class GradientSums(Enum):
    """Gradients of a step's micro-batches with ZeRO 2 and 3, as each rank adds them up."""

    SHARDED = auto()
    """Its own share, reduced after every micro-batch."""
    WHOLE_IN_PIPELINES = auto()
    """All of them in a pipeline, reduced once a step (torch.distributed.pipelining with FSDP2); else its share."""
    WHOLE = auto()
    """All of them, reduced once a step."""


@dataclass(frozen=True)
class ParameterBytes:
    """Bytes per parameter of a rank. ZeRO 1 shards the optimizer, 2 the gradients too, 3 everything.

    `update` is needed only during the optimizer step, when the activations are freed, and is sharded like the
    optimizer.
    """

    weights: float
    gradients: float
    optimizer: float
    update: float = 0

    def optimizer_with(self, moment_dtype: str) -> float:
        """Bytes of the optimizer with its two moments of this type."""
        return self.optimizer - 2 * (BYTES_OF_MOMENT["fp32"] - BYTES_OF_MOMENT[moment_dtype])


BYTES_OF_MOMENT = {"fp32": 4, "bf16": 2, "fp8": 1}
"""Bytes of a moment of the optimizer, by `Layout.moment_dtype`."""


_MEGATRON_STACK = "Megatron-LM of 2021 and 2022 on A100"
_DEEPSPEED_STACK = "Megatron-DeepSpeed of 2021 (MT-NLG) on A100"


@dataclass(frozen=True)
class EngineProfile:
    """Memory and time characteristics of an engine. `half` and `full` are for 16 and 32 bits.

    With `sums_bf16_in_fp32` and ZeRO it holds an fp32 sum of gradients in addition to those of `half`.
    `reduced_gradient_bytes` are those of a gradient in a 16-bit training's reductions: 4 where it is summed in fp32.
    With `is_ddp_without_zero` it is torch's DistributedDataParallel of fp32 weights there, which reduces fp32 gradients
    and holds a copy of them in buckets (torch/nn/parallel/distributed.py, gradient_as_bucket_view).
    With `has_blocking_p2p` a stage sends and receives one after the other, otherwise in both directions at once.
    With `reduces_every_micro_batch` gradients are reduced once a micro-batch without ZeRO, too, except in a pipeline.
    `model_features` are those of `ModelShape.features` that it builds; `routings` the kinds of routing of experts that
    it runs, drawn at random for every token with `draws_balanced_routing`.
    With `has_newest_attention` its flash kernels are cuDNN's or FlashAttention 3, which use what Hopper added.
    With `fuses_gate` one kernel multiplies a gated MLP's activation, and keeps its inputs only.
    With `weighs_inside_experts` a token is weighted before an expert's last product, whose outputs are not kept then.
    `frozen_copy_bytes` are those of a frozen weight beside `half.weights`, which FSDP2 shards with ZeRO 2 and 3.
    With `gathers_each_parameter` ZeRO 3 has a collective for each parameter, else for each layer.
    `fitted_to` are the stacks to whose published steps the constants of its time model were fitted.
    `splits_p2p` sends each tensor-parallel rank's share, also without sequence parallelism. An engine that is
    `emulated_on_cpu` is written for GPUs: on a CPU it runs with patches, and its speed there is that of the patches.
    """

    half: ParameterBytes
    emulated_on_cpu: bool = field(kw_only=True)
    full: ParameterBytes = ParameterBytes(4, 4, 8)
    sums_bf16_in_fp32: bool = False
    keeps_gathered_inputs: bool = False
    keeps_unrotated: bool = False
    fuses_gate: bool = False
    weighs_inside_experts: bool = False
    gemm_slowdown: float = 1
    reduced_gradient_bytes: int = 4
    is_ddp_without_zero: bool = False
    has_blocking_p2p: bool = False
    has_newest_attention: bool = False
    gathers_each_parameter: bool = False
    splits_p2p: bool = False
    always_overlaps_reductions: bool = False
    reduces_every_micro_batch: bool = False
    gradient_sums: GradientSums = GradientSums.SHARDED
    layer_split: LayerSplit = LayerSplit.BALANCED
    frozen_copy_bytes: float = 0
    model_features: tuple[str, ...] = ()
    routings: tuple[str, ...] = ("learned",)
    draws_balanced_routing: bool = False
    fitted_to: tuple[str, ...] = (_MEGATRON_STACK,)

    def state_bytes(self, precision: str) -> ParameterBytes:
        """Bytes per parameter in this precision."""
        return self.full if precision == "fp32" else self.half


_EVERY_FEATURE = (
    *("attention_head_size", "qkv_bias", "qk_norm", "activation", "clamped_swiglu", "rotary_base", "linear_biases"),
    *("sliding_window", "attention_sinks", "post_norms", "num_experts"),
)
_WITH_DOCUMENTS = (*_EVERY_FEATURE, "document_length")
_ANY_FEATURE = (*_EVERY_FEATURE, "key_value_latent_size", "num_mtp_layers", "aux_loss_coefficient")
_ANY_TASK = ("adapters", "qlora", "trainable")
FEATURES = (*_ANY_FEATURE, "document_length", *_ANY_TASK)
"""Every feature of a model beyond GPT-2's and Llama's architecture."""
_EVERY_ROUTING = ("balanced", "skewed", "learned")
_QWEN_FEATURES = ("attention_head_size", "qkv_bias", "qk_norm", "rotary_base", "activation")

MT_NLG_SLOWDOWN = 1.1
"""Between the 1.2 by which MT-NLG's steps with Megatron-DeepSpeed (Smith et al., arXiv 2201.11990, section 2.4) exceed
those of the same model with Megatron-LM (arXiv 2104.04473, table 1), and none, as for smaller models."""

PARLAY = "parlay"
"""Name of Parlay's own trainer."""

ACCELERATE_LAUNCH = "accelerate-launch"
"""Engine of the trainer that starts a user's own script as `accelerate launch` does; "accelerate" is its kind."""

MEGATRON_CORE = "megatron-core"
"""Engine of Parlay's own trainer that builds megatron.core's model, optimizer and schedules."""

TORCHTITAN = "torchtitan"
"""Engine of Parlay's own trainer that runs torchtitan's trainer."""

ACCELERATE = "accelerate"
"""Engine of Parlay's own trainer that runs transformers' models under Hugging Face accelerate."""

# FSDP2 at every stage, over one rank without ZeRO: fp32 weights, and a 16-bit copy of those in use.
_TORCHTITAN = EngineProfile(
    ParameterBytes(2, 4, 12),
    has_newest_attention=True,  # torchtitan/models/common/attention.py, ScaledDotProductAttention
    frozen_copy_bytes=4,  # training.dtype float32, also of frozen weights
    keeps_unrotated=True,
    always_overlaps_reductions=True,
    reduces_every_micro_batch=True,
    gradient_sums=GradientSums.WHOLE_IN_PIPELINES,
    model_features=(  # llama3 and qwen3
        *("attention_head_size", "qk_norm", "rotary_base", "num_experts", "document_length", "adapters"),
    ),
    routings=_EVERY_ROUTING,
    emulated_on_cpu=True,
)

TRAINER_ENGINES: Mapping[str, Mapping[str, EngineProfile]] = {
    PARLAY: {
        # FSDP2 with 16-bit gradients beside fp32 weights, or DDP under autocast, with fp32 gradients: the larger one.
        ACCELERATE: EngineProfile(
            ParameterBytes(2, 4, 12),
            keeps_unrotated=True,
            always_overlaps_reductions=True,
            reduced_gradient_bytes=2,
            is_ddp_without_zero=True,
            gradient_sums=GradientSums.WHOLE,  # accelerate/accelerator.py, no_sync
            model_features=(*_QWEN_FEATURES, *_ANY_TASK),
            emulated_on_cpu=True,
        ),
        TORCHTITAN: _TORCHTITAN,
        # Megatron-LM's bytes below. Without Transformer Engine and
        # Apex megatron-core takes torch's AdamW (megatron/core/optimizer/__init__.py), whose update holds the roots of
        # all second moments (torch/optim/adam.py, _multi_tensor_adam); with one of them these 4 bytes are too many.
        MEGATRON_CORE: EngineProfile(
            ParameterBytes(2, 4, 12, 4),
            ParameterBytes(4, 4, 8, 4),
            fuses_gate=True,
            weighs_inside_experts=True,  # megatron/core/transformer/moe/experts.py, permuted_probs
            splits_p2p=True,
            layer_split=LayerSplit.EVEN,
            model_features=(*_QWEN_FEATURES, "num_experts", "aux_loss_coefficient"),
            routings=_EVERY_ROUTING,
            draws_balanced_routing=True,  # megatron/core/transformer/moe/moe_utils.py, RandomSTE
            emulated_on_cpu=True,
        ),
        # DeepSpeed has 16-bit gradients in addition to the fp32 sum that grad_accum_dtype requests. Rotated queries
        # and keys are stored in addition to the fused query-key-value output.
        "deepspeed": EngineProfile(
            ParameterBytes(2, 6, 12, 4),
            gathers_each_parameter=True,
            fitted_to=(_MEGATRON_STACK, "DeepSpeed's ZeRO 3 of 2021 on A100"),
            keeps_unrotated=True,
            has_blocking_p2p=True,
            model_features=_WITH_DOCUMENTS,
            routings=_EVERY_ROUTING,
            emulated_on_cpu=False,
        ),
        # 16-bit weights, fp32 gradients, fp32 master and two moments.
        "torch": EngineProfile(
            ParameterBytes(2, 4, 12),
            keeps_unrotated=True,
            gradient_sums=GradientSums.WHOLE_IN_PIPELINES,
            model_features=(*_WITH_DOCUMENTS, "adapters"),
            routings=_EVERY_ROUTING,
            emulated_on_cpu=False,
        ),
    },
    # docs/user-guide/features/dist_optimizer.md: 18 bytes, or 6 + 12/d with the distributed optimizer.
    "megatron-lm": {
        "megatron-lm": EngineProfile(
            ParameterBytes(2, 4, 12),
            has_newest_attention=True,  # Transformer Engine's
            fuses_gate=True,  # megatron/core/fusions/fused_bias_swiglu.py
            weighs_inside_experts=True,
            splits_p2p=True,
            layer_split=LayerSplit.EVEN,
            # Adapters are Megatron-Bridge's; pretrain_gpt.py has none (trials/trainers/megatron_lm/trainer.py).
            model_features=(*(name for name in _ANY_FEATURE if name != "post_norms"), "adapters"),
            routings=("balanced", "learned"),
            draws_balanced_routing=True,
            fitted_to=(_MEGATRON_STACK, "Megatron-Bridge of 2026 on Hopper and Blackwell"),
            emulated_on_cpu=True,
        )
    },
    # DeepSpeed's fp16 optimizer adds gradients up in 16 bits, and copies them to fp32 for the update: MT-NLG's 20 bytes
    # (Smith et al., arXiv 2201.11990, section 2.1). For bf16 see trials/trainers/common/deepspeed_config.py.
    "megatron-deepspeed": {
        "megatron-deepspeed": EngineProfile(
            ParameterBytes(2, 2, 12, 4),
            gathers_each_parameter=True,
            sums_bf16_in_fp32=True,
            fitted_to=(_MEGATRON_STACK, _DEEPSPEED_STACK),
            gemm_slowdown=MT_NLG_SLOWDOWN,
            reduced_gradient_bytes=2,
            has_blocking_p2p=True,
            layer_split=LayerSplit.EVEN,
            model_features=("attention_head_size", "rotary_base", "activation", "linear_biases"),
            emulated_on_cpu=True,
        )
    },
    "megatron-bridge": {},  # drives Megatron-LM's engine; recipes have its overrides, but it runs no trials
    "nemo-automodel": {},  # drives torch; recipes have its keys, but it runs no trials
    TORCHTITAN: {TORCHTITAN: _TORCHTITAN},  # its own program, which trains as Parlay's engine does
    "gpt-neox": {
        "gpt-neox": EngineProfile(
            ParameterBytes(2, 2, 12, 4),
            gathers_each_parameter=True,
            sums_bf16_in_fp32=True,
            fitted_to=(_MEGATRON_STACK, _DEEPSPEED_STACK),
            gemm_slowdown=MT_NLG_SLOWDOWN,
            reduced_gradient_bytes=2,
            has_blocking_p2p=True,
            model_features=("rotary_base", "activation", "linear_biases"),
            emulated_on_cpu=True,
        )
    },
    # fp32 gradients in addition to the 16-bit ones; column-parallel layers keep their gathered input, all of it without
    # a pipeline.
    "nanotron": {
        "nanotron": EngineProfile(
            ParameterBytes(2, 6, 12),
            keeps_gathered_inputs=True,
            always_overlaps_reductions=True,
            layer_split=LayerSplit.GREEDY,
            model_features=("qkv_bias", "rotary_base", "activation"),
            emulated_on_cpu=True,
        )
    },
    # FSDP2 of fp32 weights, with a 16-bit copy of those in use; in half precision its policy has the same type for
    # parameters and reductions (accelerate/utils/dataclasses.py, FullyShardedDataParallelPlugin.set_mixed_precision).
    # Kernels are the script's.
    ACCELERATE: {
        ACCELERATE_LAUNCH: EngineProfile(
            ParameterBytes(2, 4, 12),
            reduced_gradient_bytes=2,
            is_ddp_without_zero=True,
            always_overlaps_reductions=True,
            gradient_sums=GradientSums.WHOLE,
            model_features=FEATURES,  # the script's model
            emulated_on_cpu=False,  # DDP over gloo is accelerate's own, and the rest is refused there
        )
    },
    # An unknown trainer; Megatron's memory is the most common. What its command does on a CPU is not known either.
    "command": {"command": EngineProfile(ParameterBytes(2, 4, 12), model_features=FEATURES, emulated_on_cpu=False)},
}
"""Profiles of each trainer's engines. A third-party trainer has one, with the trainer's name or one of its own;
torchtitan's is Parlay's, too."""

ENGINE_PROFILES: Mapping[str, EngineProfile] = {
    name: profile for engines in TRAINER_ENGINES.values() for name, profile in engines.items()
}
ENGINES = tuple(ENGINE_PROFILES)
TRAINER_KINDS = tuple(kind for kind, engines in TRAINER_ENGINES.items() if engines)
"""Trainers that run trials: the values of `trainer.kind`."""


def engines_of(trainer_kind: str) -> tuple[str, ...]:
    """Names of a trainer's engines, the default last."""
    return tuple(TRAINER_ENGINES[trainer_kind])


def is_emulated(engine: str, accelerator: str) -> bool:
    """True if ranks on this accelerator only emulate the device that the engine is written for."""
    return accelerator == "cpu" and ENGINE_PROFILES[engine].emulated_on_cpu


OWN_ENGINES = engines_of(PARLAY)
