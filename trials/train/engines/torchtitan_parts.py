"""Parts of a configuration of torchtitan 0.3.0, from plain values. A recipe has a copy of this file."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn
from torchtitan.components.lora import LoRAConverter
from torchtitan.components.quantization import Float8LinearConverter, MXFP8LinearConverter
from torchtitan.config import ParallelismConfig
from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC, _disable_dynamo_lru_cache
from torchtitan.distributed.pipeline_parallel import pipeline_llm
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
from torchtitan.models.common.param_init import depth_scaled_std, skip_param_init
from torchtitan.models.llama3.model import Llama3Model, Llama3TransformerBlock
from torchtitan.models.llama3.parallelize import parallelize_llama
from torchtitan.models.llama3.state_dict_adapter import Llama3StateDictAdapter
from torchtitan.models.qwen3.model import Qwen3Model, Qwen3TransformerBlock
from torchtitan.models.qwen3.parallelize import parallelize_qwen3
from torchtitan.models.qwen3.state_dict_adapter import Qwen3StateDictAdapter
from torchtitan.protocols.model_spec import ModelSpec

Values = Mapping[str, Any]


def model_spec(values: Values) -> ModelSpec:
    """The model with torchtitan's own initial weights of llama3."""
    name = values["model_spec"]["name"]
    is_qwen3 = name == "qwen3"
    kind = Qwen3Model if is_qwen3 else Llama3Model
    return ModelSpec(
        name=name,
        flavor="parlay",
        model=converted(model_config(values, kind), values),
        parallelize_fn=parallelize_qwen3 if is_qwen3 else parallelize_llama,
        pipelining_fn=pipeline_llm,
        post_optimizer_build_fn=None,
        state_dict_adapter=Qwen3StateDictAdapter if is_qwen3 else Llama3StateDictAdapter,
    )


@dataclass(frozen=True, kw_only=True)
class Model:
    """Sizes of a llama3 or qwen3."""

    name: str
    n_layers: int
    dim: int
    n_heads: int
    n_kv_heads: int
    hidden_dim: int
    vocab_size: int
    seq_len: int
    rope_theta: float
    attn_backend: str
    enable_weight_tying: bool
    head_dim: int | None = None
    qk_norm: bool = False
    num_experts: int | None = None
    experts_per_token: int | None = None
    expert_hidden_dim: int | None = None
    shared_expert_hidden_dim: int | None = None
    num_dense_layers: int = 0
    expert_layer_every: int = 1
    float8: Values | None = None
    mxfp8: Values | None = None
    lora: Values | None = None

    @classmethod
    def of(cls, values: Values) -> "Model":
        return cls(**values["model_spec"], seq_len=values["training"]["seq_len"])

    @property
    def head_size(self) -> int:
        return self.head_dim or self.dim // self.n_heads

    def has_experts(self, layer: int) -> bool:
        past_dense = layer - self.num_dense_layers
        return self.num_experts is not None and past_dense >= 0 and (past_dense + 1) % self.expert_layer_every == 0


def model_config(values: Values, kind: type[Decoder]) -> Decoder.Config:
    """llama3 or qwen3, as a class of `kind`, with products in 16 bits."""
    model = Model.of(values)
    size = {"in_features": model.dim, "out_features": model.vocab_size}
    table = skip_param_init if model.enable_weight_tying else partial(nn.init.normal_, std=1.0)
    std = model.dim**-0.5
    head = partial(nn.init.trunc_normal_, std=std, a=-3 * std, b=3 * std)
    return kind.Config(
        dim=model.dim,
        vocab_size=model.vocab_size,
        enable_weight_tying=model.enable_weight_tying,
        tok_embeddings=Embedding.Config(
            num_embeddings=model.vocab_size, embedding_dim=model.dim, param_init={"weight": table}
        ),
        norm=_norm(model.dim),
        lm_head=Linear.Config(**size, param_init={"weight": head}),
        layers=[_layer(model, layer) for layer in range(model.n_layers)],
    )


def _layer(model: Model, layer: int) -> TransformerBlock.Config:
    depth = _normal(depth_scaled_std(0.02, layer))
    has_experts = model.has_experts(layer)
    kind = Qwen3TransformerBlock if model.name == "qwen3" else Llama3TransformerBlock
    return kind.Config(
        attention_norm=_norm(model.dim),
        ffn_norm=_norm(model.dim),
        attention=_attention(model, depth),
        feed_forward=None if has_experts else _mlp(model, model.hidden_dim, depth),
        moe=_experts(model, depth) if has_experts else None,
    )


def _attention(model: Model, depth: Values) -> GQAttention.Config:
    """Attention. qwen3 turns the halves of a head, and has no default for its size."""
    is_qwen3 = model.name == "qwen3"
    rope = CosSinRoPE if is_qwen3 else ComplexRoPE
    return make_gqa_config(
        dim=model.dim,
        n_heads=model.n_heads,
        n_kv_heads=model.n_kv_heads,
        head_dim=model.head_size if is_qwen3 else model.head_dim,
        wqkv_param_init=_normal(0.02),
        wo_param_init=depth,
        inner_attention=get_attention_config(model.attn_backend),
        fuse_qkv=True,
        rope=rope.Config(dim=model.head_size, max_seq_len=model.seq_len, theta=float(model.rope_theta), scaling="none"),
        qk_norm=_norm(model.head_size) if model.qk_norm else None,
    )


def _mlp(model: Model, width: int, depth: Values) -> FeedForward.Config:
    return make_ffn_config(dim=model.dim, hidden_dim=width, w1_param_init=_normal(0.02), w2w3_param_init=depth)


def _experts(model: Model, depth: Values) -> MoE.Config:
    """Experts, weighted by the softmax over those that were chosen, without the bias by which torchtitan balances their
    loads."""
    shared, normal = model.shared_expert_hidden_dim, _normal(0.02)["weight"]
    return make_moe_config(
        num_experts=model.num_experts,
        router=make_router_config(
            dim=model.dim,
            num_experts=model.num_experts,
            top_k=model.experts_per_token,
            gate_param_init=depth,
            score_func="softmax",
            route_norm=True,
        ),
        routed_experts=make_routed_experts_config(
            dim=model.dim,
            hidden_dim=model.expert_hidden_dim,
            num_experts=model.num_experts,
            top_k=model.experts_per_token,
            param_init={"w1_EFD": normal, "w2_EDF": depth["weight"], "w3_EFD": depth["weight"]},
            comm_backend="standard",
        ),
        shared_experts=None if shared is None else _mlp(model, shared, depth),
        load_balance_coeff=None,
    )


def _norm(width: int) -> RMSNorm.Config:
    return RMSNorm.Config(normalized_shape=width, param_init={"weight": nn.init.ones_})


def _normal(std: float) -> Values:
    return {"weight": partial(nn.init.trunc_normal_, std=std)}


def converted(config: Decoder.Config, values: Values) -> Decoder.Config:
    """The model with linear layers that multiply in 8 bits, and with adapters, where the values say so."""
    model, is_compiled = Model.of(values), values["compile"]["enable"]
    for converter, options in ((Float8LinearConverter, model.float8), (MXFP8LinearConverter, model.mxfp8)):
        if options is not None:
            config = converter.Config(**options, model_compile_enabled=is_compiled).build().convert(config)
    return config if model.lora is None else LoRAConverter.Config(**model.lora).build().convert(config)


def parallelism(values: Values) -> ParallelismConfig:
    """torchtitan's default backend, spmd_types, needs FSDP2 of torch 2.14."""
    return ParallelismConfig(**values["parallelism"], spmd_backend="partial_dtensor")


def recomputation(values: Values) -> FullAC.Config | SelectiveAC.Config | None:
    """Recomputation of whole layers, of each chunk's first ones, or of all but attention and every other matrix
    multiplication. The forward pass has no randomness, so no generator's state is kept."""
    policy, layers = values["activation_checkpoint"]["policy"], values["activation_checkpoint"].get("layers")
    if policy == "none":
        return None
    if policy == "selective":
        return SelectiveAC.Config(preserve_rng_state=False)
    return (
        FirstLayersAC.Config(layers=layers, preserve_rng_state=False)
        if layers
        else FullAC.Config(preserve_rng_state=False)
    )


class FirstLayersAC(FullAC):
    """torchtitan's recomputation of whole layers, of the first ones alone."""

    @dataclass(kw_only=True, slots=True)
    class Config(FullAC.Config):
        layers: int

    def apply(self, model: nn.Module) -> None:
        _disable_dynamo_lru_cache()
        layers = model.get_submodule("layers")
        for name, layer in list(layers.named_children())[: self.config.layers]:
            layers.register_module(name, self._wrap_block(layer))
