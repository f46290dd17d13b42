"""Configuration of torchtitan's trainer for a layout.

Written for torchtitan 0.3.0: torchtitan/config/configs.py, torchtitan/models/llama3 and torchtitan/models/qwen3.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from torch import nn
from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.components.optimizer import LRSchedulersContainer, OptimizersContainer, ParamGroupConfig
from torchtitan.components.quantization import Float8LinearConverter, MXFP8LinearConverter
from torchtitan.config import CompileConfig, ParallelismConfig
from torchtitan.config import TrainingConfig as TitanTraining
from torchtitan.distributed.activation_checkpoint import ActivationCheckpointing, FullAC, SelectiveAC
from torchtitan.models.common import ComplexRoPE, CosSinRoPE, Embedding, Linear, RMSNorm
from torchtitan.models.common.attention import GQAttention
from torchtitan.models.common.config_utils import (
    get_attention_config,
    make_ffn_config,
    make_gqa_config,
    make_moe_config,
    make_routed_experts_config,
    make_router_config,
)
from torchtitan.models.common.decoder import Decoder, TransformerBlock
from torchtitan.models.common.feed_forward import FeedForward
from torchtitan.models.common.moe import MoE
from torchtitan.models.llama3.model import Llama3TransformerBlock
from torchtitan.models.qwen3.model import Qwen3TransformerBlock

from search_spaces.layouts.layout import Layout
from search_spaces.model_shape import ModelShape
from trials.train.engines.engine import TrainingConfig
from trials.train.engines.optimizer import OptimizerConfig
from trials.train.engines.torchtitan_first_layers import FirstLayersAC
from trials.train.engines.torchtitan_weights import LayerWeights, ParameterInit, drawn
from trials.train.model.initial_weights import output_matrix, token_table
from trials.trainers.torchtitan.config import (
    ATTENTION,
    compile_arguments,
    converter,
    head_dim,
    is_qwen3,
    norm_arguments,
    parallelism_arguments,
    recomputation_policy,
    rope_arguments,
    router_arguments,
    training_arguments,
)

_UNENDING = 10**9
_STEPS_BETWEEN_COLLECTIONS = 10
"""torchtitan collects garbage itself, by default every 50 steps: longer than many a trial, whose host memory would
seem to grow."""
ONES = {"weight": nn.init.ones_}


def parallelism_config(model: ModelShape, layout: Layout) -> ParallelismConfig:
    """Degrees, schedule and split of the layers."""
    return ParallelismConfig(**parallelism_arguments(model, layout))


def training_config(training: TrainingConfig) -> TitanTraining:
    """Batch, precision and clipping."""
    return TitanTraining(
        max_norm=training.optimizer.max_grad_norm,
        steps=_UNENDING,
        gc_freq=_STEPS_BETWEEN_COLLECTIONS,
        **training_arguments(training.model, training.layout),
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


def recomputation(layout: Layout) -> ActivationCheckpointing.Config | None:
    """Recomputation of whole layers, of each chunk's first ones, or of selected operations."""
    found = recomputation_policy(layout)
    return None if found is None else _POLICIES[found[0]].Config(**found[1])


_POLICIES = {policy.__name__: policy for policy in (FirstLayersAC, FullAC, SelectiveAC)}


def compile_config(layout: Layout) -> CompileConfig:
    """Compilation of blocks and loss."""
    return CompileConfig(**compile_arguments(layout))


def loss_config(model: ModelShape) -> CrossEntropyLoss.Config:
    """Cross entropy over the whole logits."""
    return CrossEntropyLoss.Config(global_vocab_size=model.vocab_size)


def model_config(training: TrainingConfig, kind: type[Decoder]) -> Decoder.Config:
    """llama3 or qwen3 of the model's shape with Parlay's initial weights, as a class of `kind`."""
    model, source = training.model, training.weights
    size = (model.vocab_size, model.hidden_size)
    config = kind.Config(
        dim=model.hidden_size,
        vocab_size=model.vocab_size,
        enable_weight_tying=model.tied_embeddings,
        tok_embeddings=Embedding.Config(
            num_embeddings=size[0], embedding_dim=size[1], param_init=drawn(partial(token_table, model, source))
        ),
        norm=_norm(model),
        lm_head=Linear.Config(
            in_features=size[1], out_features=size[0], param_init=drawn(partial(output_matrix, model, source))
        ),
        layers=[_layer(training, layer) for layer in range(model.num_layers)],
    )
    found = converter(model, training.layout)
    return config if found is None else _CONVERTERS[found[0]].Config(**found[1]).build().convert(config)


_CONVERTERS = {made.__name__: made for made in (Float8LinearConverter, MXFP8LinearConverter)}


def _layer(training: TrainingConfig, layer: int) -> TransformerBlock.Config:
    model = training.model
    weights = LayerWeights(model, training.weights, layer)
    has_experts = model.has_experts(layer)
    kind = Qwen3TransformerBlock if is_qwen3(model) else Llama3TransformerBlock
    return kind.Config(
        attention_norm=_norm(model),
        ffn_norm=_norm(model),
        attention=_attention(training, weights),
        feed_forward=None if has_experts else _mlp(model, weights),
        moe=_experts(model, weights) if has_experts else None,
    )


def _mlp(model: ModelShape, weights: LayerWeights) -> FeedForward.Config:
    return _gated_mlp(model, model.ffn_hidden_size, weights.mlp_in, weights.mlp_out())


def _gated_mlp(
    model: ModelShape, width: int, inner: Callable[[int], ParameterInit], outer: ParameterInit
) -> FeedForward.Config:
    """A gated MLP with the initial weights of its two inner products and of its outer one."""
    mlp = make_ffn_config(dim=model.hidden_size, hidden_dim=width, w1_param_init=inner(0), w2w3_param_init={})
    mlp.w3.param_init, mlp.w2.param_init = inner(1), outer
    return mlp


def _experts(model: ModelShape, weights: LayerWeights) -> MoE.Config:
    """Experts, among which the router chooses without the bias by which torchtitan balances their loads."""
    routing = router_arguments(model)
    return make_moe_config(
        num_experts=routing["num_experts"],
        router=make_router_config(dim=model.hidden_size, gate_param_init=weights.router(), **routing),
        routed_experts=make_routed_experts_config(
            dim=model.hidden_size,
            hidden_dim=model.expert_width,
            num_experts=routing["num_experts"],
            top_k=routing["top_k"],
            param_init=weights.experts(),
            comm_backend="standard",
        ),
        shared_experts=_shared_expert(model, weights),
        load_balance_coeff=None,
    )


def _shared_expert(model: ModelShape, weights: LayerWeights) -> FeedForward.Config | None:
    if model.shared_expert_ffn_hidden_size is None:
        return None
    return _gated_mlp(model, model.shared_expert_ffn_hidden_size, weights.shared_in, weights.shared_out())


def _attention(training: TrainingConfig, weights: LayerWeights) -> GQAttention.Config:
    """Attention. qwen3's rotary embedding turns halves of a head, as Parlay's does."""
    model = training.model
    rope = CosSinRoPE if is_qwen3(model) else ComplexRoPE
    attention = make_gqa_config(
        dim=model.hidden_size,
        n_heads=model.num_attention_heads,
        n_kv_heads=model.num_key_value_heads,
        head_dim=head_dim(model),
        wqkv_param_init={},
        wo_param_init=weights.attention_out(),
        inner_attention=get_attention_config(ATTENTION[training.layout.attention_kernel]),
        fuse_qkv=True,
        rope=rope.Config(**rope_arguments(model)),
        qk_norm=replace(_norm(model), normalized_shape=model.head_size) if model.qk_norm else None,
    )
    attention.qkv_linear.wqkv.param_init = weights.qkv()
    return attention


def _norm(model: ModelShape) -> RMSNorm.Config:
    return RMSNorm.Config(param_init=ONES, **norm_arguments(model))
