"""Configuration of torchtitan's trainer for a layout.

Written for torchtitan 0.3.0: torchtitan/config/configs.py and torchtitan/models/llama3.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn
from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.components.optimizer import LRSchedulersContainer, OptimizersContainer, ParamGroupConfig
from torchtitan.config import CompileConfig, ParallelismConfig
from torchtitan.config import TrainingConfig as TitanTraining
from torchtitan.distributed.activation_checkpoint import (
    ActivationCheckpointing,
    FullAC,
    SelectiveAC,
    _disable_dynamo_lru_cache,
)
from torchtitan.models.common import ComplexRoPE, Embedding, Linear, RMSNorm
from torchtitan.models.common.config_utils import get_attention_config, make_ffn_config, make_gqa_config
from torchtitan.models.llama3.model import Llama3Model, Llama3TransformerBlock

from search_spaces.layouts.layout import Layout
from search_spaces.layouts.pipeline_split import stage_layers
from search_spaces.model_shape import ModelShape
from trials.train.engines.engine import TrainingConfig
from trials.train.engines.optimizer import OptimizerConfig
from trials.train.engines.torchtitan_weights import LayerWeights, table
from trials.train.model.chunk import NORM_EPSILON, ROTARY_BASE

SCHEDULES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved_1f1b": "Interleaved1F1B",
    "zbv": "ZBVZeroBubble",
    "dualpipev": "DualPipeV",
}
"""Names of torch's schedules."""
DTYPES = {"fp32": "float32", "bf16": "bfloat16"}
ATTENTION = {"flex": "flex", "flash": "varlen"}
_UNENDING = 10**9
_STEPS_BETWEEN_COLLECTIONS = 10
"""torchtitan collects garbage itself, by default every 50 steps: longer than many a trial, whose host memory would
seem to grow."""
ONES = {"weight": nn.init.ones_}


def parallelism_config(model: ModelShape, layout: Layout) -> ParallelismConfig:
    """Degrees, schedule and split of the layers; without ZeRO every data-parallel rank is a replica."""
    replicas = layout.data_parallel if layout.zero_stage == 0 else layout.data_parallel_replicas
    return ParallelismConfig(
        data_parallel_replicate_degree=replicas,
        data_parallel_shard_degree=layout.data_parallel // replicas,
        fsdp_reshard_after_forward=reshard_policy(layout),
        tensor_parallel_degree=layout.tensor_parallel,
        enable_sequence_parallel=layout.sequence_parallel,
        pipeline_parallel_degree=layout.pipeline_parallel,
        pipeline_parallel_schedule=SCHEDULES.get(layout.pipeline_schedule, "1F1B"),
        pipeline_parallel_microbatch_size=layout.micro_batch_size,
        module_fqns_per_model_part=modules_by_chunk(model, layout),
        spmd_backend="partial_dtensor",
    )


def reshard_policy(layout: Layout) -> str:
    """ZeRO 3 reshards after the forward pass, which torchtitan does by default without a pipeline."""
    if layout.zero_stage < 3:
        return "never"
    return "default" if layout.pipeline_parallel == 1 else "always"


def modules_by_chunk(model: ModelShape, layout: Layout) -> list[list[str]] | None:
    """Names of the modules of each chunk, in the model's order; None without a pipeline."""
    if layout.pipeline_parallel == 1:
        return None
    names, first = [], 0
    counts = stage_layers(model, layout.pipeline_parallel * layout.virtual_pipeline_stages)
    for count in counts:
        names.append([f"layers.{layer}" for layer in range(first, first + count)])
        first += count
    names[0].insert(0, "tok_embeddings")
    names[-1] += ["norm", "lm_head"]
    return names


def training_config(training: TrainingConfig) -> TitanTraining:
    """Batch, precision and clipping. `local_batch_size` is one micro-batch, or in a pipeline a step's, in sequences."""
    layout = training.layout
    is_pipeline = layout.pipeline_parallel > 1
    return TitanTraining(
        local_batch_size=layout.micro_batch_size * (layout.grad_accum_steps if is_pipeline else 1),
        global_batch_size=layout.global_batch_size,
        seq_len=training.model.seq_length,
        max_norm=training.optimizer.max_grad_norm,
        steps=_UNENDING,
        disable_cuda_graphs=True,
        gc_freq=_STEPS_BETWEEN_COLLECTIONS,
        dtype="float32",
        mixed_precision_param=DTYPES[layout.precision],
    )


def optimizer_config(settings: OptimizerConfig) -> OptimizersContainer.Config:
    """AdamW with Parlay's settings for all weights."""
    options = {
        "lr": settings.learning_rate,
        "betas": (settings.beta1, settings.beta2),
        "eps": settings.epsilon,
        "weight_decay": settings.weight_decay,
    }
    return OptimizersContainer.Config(
        param_groups=[ParamGroupConfig(pattern=".*", optimizer_name="AdamW", optimizer_kwargs=options)]
    )


def constant_rate() -> LRSchedulersContainer.Config:
    """Learning rate without warm-up and decay."""
    return LRSchedulersContainer.Config(warmup_steps=0, decay_ratio=0.0)


class FirstLayersAC(FullAC):
    """Recomputation of each chunk's first layers."""

    @dataclass(kw_only=True, slots=True)
    class Config(FullAC.Config):
        layers: int

    def apply(self, model: nn.Module) -> None:
        _disable_dynamo_lru_cache()
        layers = model.get_submodule("layers")
        for name, layer in list(layers.named_children())[: self.config.layers]:
            layers.register_module(name, self._wrap_block(layer))


def recomputation(layout: Layout) -> ActivationCheckpointing.Config | None:
    """Recomputation of whole layers, or of all but attention and every other matrix multiplication. The forward pass
    has no randomness, so no generator's state is kept."""
    if layout.activation_checkpointing == "none":
        return None
    if layout.activation_checkpointing == "selective":
        return SelectiveAC.Config(preserve_rng_state=False)
    if layout.recompute_layers is not None:
        return FirstLayersAC.Config(layers=layout.recompute_layers, preserve_rng_state=False)
    return FullAC.Config(preserve_rng_state=False)


def compile_config(layout: Layout) -> CompileConfig:
    """Compilation of blocks and loss, and whether it overlaps tensor-parallel collectives."""
    return CompileConfig(enable=layout.torch_compile, enable_async_tensor_parallel=layout.tensor_parallel_overlap)


def loss_config(model: ModelShape) -> CrossEntropyLoss.Config:
    """Cross entropy over the whole logits."""
    return CrossEntropyLoss.Config(global_vocab_size=model.vocab_size)


def model_config(training: TrainingConfig, kind: type[Llama3Model]) -> Llama3Model.Config:
    """llama3 of the model's shape with Parlay's initial weights, as a class of `kind`."""
    model, source = training.model, training.weights
    size = (model.vocab_size, model.hidden_size)
    head = "tokens" if model.tied_embeddings else "head"
    return kind.Config(
        dim=model.hidden_size,
        vocab_size=model.vocab_size,
        enable_weight_tying=model.tied_embeddings,
        tok_embeddings=Embedding.Config(
            num_embeddings=size[0], embedding_dim=size[1], param_init=table(source, "tokens", model)
        ),
        norm=_norm(model),
        lm_head=Linear.Config(in_features=size[1], out_features=size[0], param_init=table(source, head, model)),
        layers=[_layer(training, layer) for layer in range(model.num_layers)],
    )


def _layer(training: TrainingConfig, layer: int) -> Llama3TransformerBlock.Config:
    model = training.model
    weights = LayerWeights(model, training.weights, layer)
    attention = make_gqa_config(
        dim=model.hidden_size,
        n_heads=model.num_attention_heads,
        n_kv_heads=model.num_key_value_heads,
        wqkv_param_init={},
        wo_param_init=weights.attention_out(),
        inner_attention=get_attention_config(ATTENTION[training.layout.attention_kernel]),
        fuse_qkv=True,
        rope=ComplexRoPE.Config(dim=model.head_size, max_seq_len=model.seq_length, theta=ROTARY_BASE, scaling="none"),
    )
    attention.qkv_linear.wqkv.param_init = weights.qkv()
    mlp = make_ffn_config(
        dim=model.hidden_size,
        hidden_dim=model.ffn_hidden_size,
        w1_param_init=weights.mlp_in(0),
        w2w3_param_init={},
    )
    mlp.w3.param_init = weights.mlp_in(1)
    mlp.w2.param_init = weights.mlp_out()
    return Llama3TransformerBlock.Config(
        attention_norm=_norm(model), ffn_norm=_norm(model), attention=attention, feed_forward=mlp
    )


def _norm(model: ModelShape) -> RMSNorm.Config:
    return RMSNorm.Config(normalized_shape=model.hidden_size, eps=NORM_EPSILON, param_init=ONES)
