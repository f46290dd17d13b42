"""ModelShape: a GPT's sizes, its parameters and its FLOPs. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cached_property
from typing import Any

from search_spaces.adapters import EMBEDDING, HEAD, Adapters, TrainedPart, adapter_parameters, require_trainable
from search_spaces.declared import declared, declared_fields, field_types, require_declared
from search_spaces.decoding import JsonObject
from search_spaces.errors import InputError, format_value
from search_spaces.layouts.layout import Layout

ACTIVATIONS = ("gelu", "silu", "relu", "squared_relu", "clamped_swiglu")
"""Activations of an MLP; `gelu` is the tanh approximation, `clamped_swiglu` that of gpt-oss: gate x sigmoid(1.702 gate)
x (value + 1), both clamped at 7."""
DEFAULT_ROTARY_BASE = 10_000
NORM_EPSILON = 1e-5
"""Constant of every shape."""


_MOST_LAYERS = 10_000


def _size(description: str, default: Any = MISSING, ge: int = 1, le: int = 10**9, **about: Any) -> Any:
    return declared(description, default, ge=ge, le=le, **about)


@dataclass(frozen=True)
class ModelShape(JsonObject):
    """A decoder-only transformer; a field's declaration says what it is.

    The head never has biases. Queries and keys are normalised by head before they are rotated. A window has
    `sliding_window` positions, that of the token itself among them. A token's experts are weighted by the softmax of
    their logits (Mixtral). The loss of `aux_loss_coefficient` is added, times it, for each layer with experts: E times
    the sum over experts of their share of the choices and their mean probability, over the tokens of one micro-batch
    (Fedus et al., arXiv 2101.03961, section 2.2). Latent attention (DeepSeek-AI, arXiv 2405.04434, section 2.1) has one
    rotated key for all heads. Layers for further tokens are those of DeepSeek-AI, arXiv 2412.19437, section 2.2.

    With `document_length` a token attends only to its own document, and positions start again with each: so many tokens
    the document of a token has in its sequence, a mean over the tokens. It follows from the data and is no size of the
    weights. Neither are `has_dropout`, whose masks are kept for the backward pass, and `fuses_loss`, where one kernel
    computes the loss and its gradient: they follow from the trainer's options.

    A fine-tuning trains `adapters` and the modules that `trainable` names; all other weights are frozen. Where
    `trainable` is None, all weights train. Sequences of one that `is_finetuned` are examples, of at most `seq_length`.

    The trainer builds exactly this many parameters, adapters included, which every outcome proves.
    """

    num_layers: int = _size("Transformer layers.", le=_MOST_LAYERS)
    hidden_size: int = _size("Width of the residual stream.")
    num_attention_heads: int = _size("Attention heads.")
    num_key_value_heads: int = _size("Key-value heads; as many as attention heads when not given.", in_file=None)
    ffn_hidden_size: int = _size(
        "Width of the MLP; 4 x hidden_size when not given. Required with gated_mlp.", in_file=None
    )
    gated_mlp: bool = declared("A gated MLP (SwiGLU, three matrices) instead of GPT-2's two.", in_file=False)
    vocab_size: int = _size("Vocabulary, already padded: a multiple of every tensor_parallel tried.")
    seq_length: int = _size("Tokens per sequence.")
    tied_embeddings: bool = declared("Use the token table as the output matrix, as in GPT-2.", in_file=True)
    position_embedding: str = declared("Position embedding.", words=("learned", "rotary"), in_file="learned")
    norm: str = declared(
        "layernorm (GPT-2) or rmsnorm (Llama); see linear_biases.", words=("layernorm", "rmsnorm"), in_file="layernorm"
    )
    attention_head_size: int | None = _size(
        "Size of an attention head; hidden_size / num_attention_heads when not given.", None
    )
    qkv_bias: bool = declared("Biases of queries, keys and values alone, with norm rmsnorm (Qwen2).", False)
    qk_norm: bool = declared("Normalise each head's queries and keys (Qwen3).", False)
    activation: str | None = declared(
        "Activation of the MLP; silu with gated_mlp, else gelu, when not given.", None, words=ACTIVATIONS
    )
    rotary_base: int = _size("Base of rotary positions' periods.", DEFAULT_ROTARY_BASE, ge=2)
    linear_biases: bool | None = declared(
        "Biases of all linear layers but the head; true with layernorm, false with rmsnorm when not given.", None
    )
    sliding_window: int | None = _size("Positions to which one attends; all before it when not given.", None)
    full_attention_every: int | None = _size(
        "With sliding_window, each layer of so many attends to all positions (Gemma 3: 6, gpt-oss: 2).",
        None,
        le=_MOST_LAYERS,
        needs="sliding_window",
    )
    attention_sinks: bool = declared("A learned logit in each head's softmax (gpt-oss).", False)
    post_norms: bool = declared("Normalise the outputs of attention and MLP, too (Gemma 3).", False)
    num_experts: int | None = _size("Experts of a layer, in place of its MLP; none when not given.", None)
    experts_per_token: int | None = _size(
        "Experts that one token passes (top k). Required with num_experts.", None, needs="num_experts"
    )
    expert_ffn_hidden_size: int | None = _size(
        "Width of an expert; ffn_hidden_size when not given.", None, needs="num_experts"
    )
    shared_expert_ffn_hidden_size: int | None = _size(
        "Width of the shared expert, which every token passes; none when not given. Several count as one of their sum.",
        None,
        needs="num_experts",
    )
    num_dense_layers: int = _size(
        "First layers that have an MLP, not experts (DeepSeek-V3: 3).",
        0,
        ge=0,
        le=_MOST_LAYERS,
        needs="num_experts",
    )
    expert_layer_every: int = _size(
        "After those, each layer of so many has experts (Llama 4: 2).", 1, le=_MOST_LAYERS, needs="num_experts"
    )
    key_value_latent_size: int | None = _size(
        "Multi-head latent attention: the vector from which keys and values are projected (DeepSeek-V3: 512).", None
    )
    query_latent_size: int | None = _size(
        "The vector from which latent attention projects queries; the hidden state when not given.",
        None,
        needs="key_value_latent_size",
    )
    rotary_head_size: int | None = _size(
        "Elements of attention_head_size that latent attention rotates (DeepSeek-V3: 64 of 192).",
        None,
        needs="key_value_latent_size",
    )
    value_head_size: int | None = _size(
        "Size of a head's value in latent attention.", None, needs="key_value_latent_size"
    )
    num_mtp_layers: int = _size(
        "Further layers that predict the tokens after the next (MTP).", 0, ge=0, le=_MOST_LAYERS
    )
    aux_loss_coefficient: float | None = declared(
        "Factor of the loss that balances experts, over a micro-batch's tokens; none when not given.",
        None,
        gt=0,
        le=1,
        needs="num_experts",
    )
    document_length: float | None = declared(
        "Packed documents that only attend to themselves: tokens of a token's document in its sequence, a mean over the"
        " tokens. Parlay's own trainer has that of trainer.data.",
        None,
        ge=1,
    )
    has_dropout: bool = False
    fuses_loss: bool = False
    adapters: Adapters | None = None
    trainable: tuple[str, ...] | None = None
    is_finetuned: bool = field(default=False, compare=False)

    def __post_init__(self) -> None:
        require_declared(self, "model", "model.", _FIX)
        for name, found in MODEL_FIELDS.items():
            needed = found.metadata.get("needs")
            if needed is not None and getattr(self, needed) is None and getattr(self, name) != found.default:
                raise _bad(name, getattr(self, name), f"given only with {needed}")
        if self.qkv_bias and self.has_biases:
            raise _bad("qkv_bias", True, "true only where linear_biases is false; all linear layers have biases")
        if self.rotary_base != DEFAULT_ROTARY_BASE and self.position_embedding != "rotary":
            raise _bad("rotary_base", self.rotary_base, f"{DEFAULT_ROTARY_BASE} where position_embedding is learned")
        if self.attention_head_size is None:
            self._require_divisible("hidden_size", "num_attention_heads")
        self._require_divisible("num_attention_heads", "num_key_value_heads")
        if (self.document_length or 0) > self.seq_length:
            raise _bad("document_length", self.document_length, f"a number from 1 to seq_length {self.seq_length}")
        if self.num_experts is not None:
            self._require_experts(self.num_experts)
        if self.key_value_latent_size is not None:
            self._require_latent_attention()
        if self.query_size > 10**9:
            sizes = f"num_attention_heads {self.num_attention_heads} x attention_head_size {self.head_size}"
            raise _bad("attention_head_size", self.attention_head_size, f"{sizes} is at most 1000000000")
        self._leave_out_usual_values()
        require_trainable(self)

    def _require_experts(self, num_experts: int) -> None:
        if self.experts_per_token is None or self.experts_per_token > num_experts:
            rule = f"given with num_experts, at most {num_experts}"
            raise _bad("experts_per_token", self.experts_per_token, rule)
        if not self.num_expert_layers:
            rule = f"less than num_layers {self.num_layers}, so that a layer has experts"
            raise _bad("num_dense_layers", self.num_dense_layers, rule)

    def _require_latent_attention(self) -> None:
        for name in ("attention_head_size", "rotary_head_size", "value_head_size"):
            if getattr(self, name) is None:
                raise _bad(name, None, "given with key_value_latent_size")
        if (self.rotary_head_size or 0) >= self.head_size:
            raise _bad("rotary_head_size", self.rotary_head_size, f"less than attention_head_size {self.head_size}")
        if self.num_key_value_heads != self.num_attention_heads:
            rule = f"num_attention_heads {self.num_attention_heads} with key_value_latent_size"
            raise _bad("num_key_value_heads", self.num_key_value_heads, rule)
        for name in ("linear_biases", "qkv_bias", "qk_norm"):
            if getattr(self, name):
                raise _bad(name, True, "false with key_value_latent_size: latent attention has norms of its own")

    def _leave_out_usual_values(self) -> None:
        """Set fields with the value that counts without them to None, so that equal models are equal."""
        usual = {
            "attention_head_size": self.query_size == self.hidden_size and self.key_value_latent_size is None,
            "activation": self.activation == self._usual_activation,
            "linear_biases": self.linear_biases == (self.norm == "layernorm"),
            "expert_ffn_hidden_size": self.expert_ffn_hidden_size == self.ffn_hidden_size,
        }
        for name, is_usual in usual.items():
            if is_usual:
                object.__setattr__(self, name, None)

    def _require_divisible(self, whole: str, part: str) -> None:
        a, b = getattr(self, whole), getattr(self, part)
        if a % b:
            raise _bad(whole, a, f"{whole} {a} must be a multiple of {part} {b}")

    @property
    def head_size(self) -> int:
        """Elements of a head's query, key or value."""
        return self.attention_head_size or self.hidden_size // self.num_attention_heads

    @property
    def query_size(self) -> int:
        """Elements of all heads' queries."""
        return self.num_attention_heads * self.head_size

    @property
    def qkv_size(self) -> int:
        """Elements of all heads' queries, keys and values."""
        return self.query_size + 2 * self.key_value_size

    @property
    def mlp_inner_size(self) -> int:
        """Elements of an MLP's first product: of the gate and the value, or of the value alone."""
        return self.ffn_hidden_size * (2 if self.gated_mlp else 1)

    @property
    def latent_size(self) -> int:
        """Elements of the vectors from which latent attention projects queries, keys and values."""
        return (self.key_value_latent_size or 0) + (self.query_latent_size or 0)

    @property
    def key_value_size(self) -> int:
        """Elements of all heads' keys, or values."""
        return self.num_key_value_heads * self.head_size

    @property
    def attention_output_size(self) -> int:
        """Elements of attention's output before its projection: a value for each head."""
        return self.num_attention_heads * (self.value_head_size or self.head_size)

    @property
    def mlp_activation(self) -> str:
        """Activation of the MLP, given or usual."""
        return self.activation or self._usual_activation

    @property
    def _usual_activation(self) -> str:
        return "silu" if self.gated_mlp else "gelu"

    @property
    def features(self) -> tuple[str, ...]:
        """Features beyond GPT-2's and Llama's architecture, which an engine may lack: fields, and the word of
        `activation` that is no function of one value."""
        present = [name for name in _FEATURES if getattr(self, name) != MODEL_DEFAULTS[name]]
        if self.key_value_latent_size is not None:
            present.remove("attention_head_size")
        words = {"activation": "clamped_swiglu"} if self.activation == "clamped_swiglu" else {}
        if self.adapters is not None and self.adapters.kind == "qlora":
            words["adapters"] = "qlora"
        if not self.trainable:  # adapters alone
            present = [name for name in present if name != "trainable"]
        return tuple(words.get(name, name) for name in present)

    @property
    def has_biases(self) -> bool:
        """True if all linear layers but the head have biases."""
        return self.norm == "layernorm" if self.linear_biases is None else self.linear_biases

    def window_of(self, layer: int) -> int | None:
        """Positions to which one attends in this layer, counted from 0; None for all before it."""
        is_full = self.full_attention_every is not None and (layer + 1) % self.full_attention_every == 0
        return None if is_full else self.sliding_window

    def has_experts(self, layer: int) -> bool:
        """True if this layer, counted from 0, has experts in place of its MLP."""
        past_dense = layer - self.num_dense_layers
        return self.num_experts is not None and past_dense >= 0 and (past_dense + 1) % self.expert_layer_every == 0

    def with_experts_in_layers(self, has_experts: bool) -> ModelShape:
        """The model with experts in all of its layers, or in none."""
        if has_experts:
            return replace(self, num_dense_layers=0, expert_layer_every=1)
        of_experts = [f.name for f in MODEL_FIELDS.values() if "num_experts" in (f.name, f.metadata.get("needs"))]
        return replace(self, **{name: MODEL_DEFAULTS[name] for name in of_experts})

    @property
    def num_expert_layers(self) -> int:
        """MoE layers, excluding MTP."""
        return 0 if self.num_experts is None else (self.num_layers - self.num_dense_layers) // self.expert_layer_every

    @property
    def layer_parameters(self) -> float:
        """Parameters of one transformer layer, all experts counted; a mean where only some have experts."""
        return _mean(self._parameters_of_layers(self.num_experts or 0), self.num_layers)

    @property
    def active_layer_parameters(self) -> float:
        """Parameters of one transformer layer that one token passes; a mean where only some layers have experts."""
        return _mean(self._parameters_of_layers(self.experts_per_token or 0), self.num_layers)

    def _parameters_of_layers(self, routed: int) -> int:
        """Parameters of all layers, with `routed` experts in those that have any."""
        dense, with_experts = (self._parameters_of_layer(has, routed) for has in (False, True))
        return (self.num_layers - self.num_expert_layers) * dense + self.num_expert_layers * with_experts

    def _parameters_of_layer(self, has_experts: bool, routed: int) -> int:
        experts = routed * self.parameters_per_expert + self._parameters_beside_routed
        norms = (4 if self.post_norms else 2) * self.norm_parameters
        mlp = experts if has_experts else self.mlp_parameters
        return self.attention_parameters + norms + mlp + adapter_parameters(self)

    @property
    def _parameters_beside_routed(self) -> int:
        """Parameters of an expert layer's router and shared expert."""
        return (self.num_experts or 0) * (self.hidden_size + self.has_biases) + self._shared_expert_parameters

    @property
    def _shared_expert_parameters(self) -> int:
        width = self.shared_expert_ffn_hidden_size
        return self._mlp_parameters_of(width) if width else 0

    @property
    def expert_width(self) -> int:
        """Width of one routed expert."""
        return self.expert_ffn_hidden_size or self.ffn_hidden_size

    @property
    def parameters_per_expert(self) -> int:
        """Parameters of one routed expert."""
        return self._mlp_parameters_of(self.expert_width)

    @property
    def routed_parameters_per_layer(self) -> int:
        """Parameters of all routed experts of a layer that has them, 0 for a model without experts."""
        return (self.num_experts or 0) * self.parameters_per_expert

    @property
    def routed_parameters(self) -> int:
        """Parameters of all routed experts of the model."""
        return self.num_expert_layers * self.routed_parameters_per_layer + self.routed_mtp_parameters

    @property
    def unsplit_layer_parameters(self) -> int:
        """Parameters of one layer that every tensor-parallel rank holds whole: norms, and biases of both outputs."""
        return self.layer_norm_parameters + 2 * self.hidden_size * self.has_biases

    @property
    def layer_norm_parameters(self) -> int:
        """Parameters of one layer's norms, those of heads among them."""
        return (4 if self.post_norms else 2) * self.norm_parameters + self._head_norm_parameters

    @property
    def _head_norm_parameters(self) -> int:
        return 2 * self._norm_parameters_of(self.head_size) * self.qk_norm

    @property
    def attention_parameters(self) -> int:
        """Parameters of one layer's attention."""
        if self.key_value_latent_size is not None:
            return self._latent_attention_parameters(self.key_value_latent_size)
        h, qkv = self.hidden_size, self.query_size + 2 * self.key_value_size
        biases = qkv * (self.has_biases or self.qkv_bias) + h * self.has_biases
        sinks = self.num_attention_heads * self.attention_sinks
        return h * qkv + self.query_size * h + biases + self._head_norm_parameters + sinks

    def _latent_attention_parameters(self, latent: int) -> int:
        h, heads, rotated = self.hidden_size, self.num_attention_heads, self.rotary_head_size or 0
        queries = h * self.query_size
        if self.query_latent_size is not None:
            queries = self.query_latent_size * (h + self.query_size) + self._norm_parameters_of(self.query_latent_size)
        keys_values = latent * (heads * (self.head_size - rotated) + self.attention_output_size)
        return (
            queries
            + h * (latent + rotated)
            + self._norm_parameters_of(latent)
            + keys_values
            + (self.attention_output_size * h + heads * self.attention_sinks)
        )

    @property
    def mlp_parameters(self) -> int:
        """Parameters of one layer's MLP."""
        return self._mlp_parameters_of(self.ffn_hidden_size)

    def _mlp_parameters_of(self, width: int) -> int:
        h, widths_in = self.hidden_size, 2 if self.gated_mlp else 1
        return (widths_in + 1) * h * width + (widths_in * width + h if self.has_biases else 0)

    @property
    def norm_parameters(self) -> int:
        """Parameters of one normalisation: gain, and shift of layernorm."""
        return self._norm_parameters_of(self.hidden_size)

    def _norm_parameters_of(self, width: int) -> int:
        return width * (2 if self.norm == "layernorm" else 1)

    @property
    def embedding_parameters(self) -> int:
        """Token table plus learned positions."""
        positions = self.seq_length if self.position_embedding == "learned" else 0
        return (self.vocab_size + positions) * self.hidden_size

    @property
    def parameters(self) -> int:
        layers = self._parameters_of_layers(self.num_experts or 0) + self.mtp_parameters
        head = 0 if self.tied_embeddings else self.vocab_size * self.hidden_size
        return self.embedding_parameters + layers + self.norm_parameters + head

    @cached_property
    def trained(self) -> TrainedPart:
        """The part of the model that trains."""
        return TrainedPart.of(self)

    @property
    def trainable_parameters(self) -> int:
        """Parameters that train, adapters included."""
        if self.trainable is None:
            return self.parameters
        return int(self.num_layers * self.trained.layer) + self.trained.embedding + self.trained.head

    @property
    def trains_head(self) -> bool:
        """True if the output matrix trains, which may be the token table."""
        names = {HEAD, *([EMBEDDING] if self.tied_embeddings else [])}
        return self.trainable is None or not names.isdisjoint(self.trainable)

    @property
    def linear_parameters_in_4_bits(self) -> int:
        """Weights of a layer's linear modules that QLoRA keeps in 4 bits; none otherwise."""
        if self.adapters is None or self.adapters.kind != "qlora":
            return 0
        attention = self.hidden_size * (self.qkv_size + self.attention_output_size)
        return attention + (0 if self.num_experts else self.hidden_size * (self.mlp_inner_size + self.ffn_hidden_size))

    @property
    def active_parameters(self) -> int:
        """Parameters that one token passes: of the routed experts those that it is sent to."""
        others = (self.num_experts or 0) - (self.experts_per_token or 0)
        expert_layers = self.num_expert_layers + self._expert_mtp_layers
        return self.parameters - others * self.parameters_per_expert * expert_layers

    @property
    def mtp_parameters(self) -> int:
        """Parameters of the MTP layers: each has two norms, a projection of the previous hidden state and the token's
        embedding, a layer as the last, and a final norm."""
        layer = self._parameters_of_layer(self.has_experts(self.num_layers - 1), self.num_experts or 0)
        return self.num_mtp_layers * (2 * self.hidden_size**2 + 3 * self.norm_parameters + layer)

    @property
    def routed_mtp_parameters(self) -> int:
        """Parameters of the MTP layers' routed experts."""
        return self._expert_mtp_layers * self.routed_parameters_per_layer

    @property
    def _expert_mtp_layers(self) -> int:
        return self.num_mtp_layers if self.has_experts(self.num_layers - 1) else 0

    @property
    def _dense_mlp_parameters(self) -> int:
        return (self.num_layers - self.num_expert_layers) * self.mlp_parameters

    @property
    def _passed_expert_parameters(self) -> int:
        """Parameters of routers and experts of all layers that one token passes."""
        passed = (self.experts_per_token or 0) * self.parameters_per_expert + self._parameters_beside_routed
        return self.num_expert_layers * passed

    @property
    def active_mlp_width(self) -> float:
        """Elements inside the MLPs that one token passes in a layer; a mean over the layers."""
        return sum(self.mlp_widths)

    @property
    def mlp_widths(self) -> tuple[float, float, float]:
        """The parts of `active_mlp_width` in MLPs of layers without experts, in routed and in shared experts."""
        routed = (self.experts_per_token or 0) * self.expert_width
        of_dense = (self.num_layers - self.num_expert_layers) * self.ffn_hidden_size
        of_experts = (self.num_expert_layers * width for width in (routed, self.shared_expert_ffn_hidden_size or 0))
        dense, routed_width, shared = (_mean(total, self.num_layers) for total in (of_dense, *of_experts))
        return dense, routed_width, shared

    def recomputed_parameters(self, module: str) -> float:
        """Parameters of the products that a token passes again in a layer where this module is recomputed, a mean over
        the layers."""
        of_all_layers = {
            "mla_up_proj": self.num_layers * self._up_projection_parameters,
            "mlp": self._dense_mlp_parameters,
            "moe": self._passed_expert_parameters,
            "shared_experts": self.num_expert_layers * self._shared_expert_parameters,
            "ops": self.num_layers * self.parameters_of_cheap_products,
        }
        return _mean(of_all_layers.get(module, 0), self.num_layers)

    @property
    def _up_projection_parameters(self) -> int:
        """Parameters of latent attention's products that give the heads' queries, keys and values."""
        if self.key_value_latent_size is None:
            return 0
        keys = self.num_attention_heads * (self.head_size - (self.rotary_head_size or 0))
        queries = (self.query_latent_size or self.hidden_size) * self.query_size
        return queries + self.key_value_latent_size * (keys + self.attention_output_size)

    @property
    def parameters_of_cheap_products(self) -> int:
        """Parameters of a layer's products that torchtitan counts among the cheap operations: attention's output and
        the MLP's value."""
        return self.hidden_size * int(self.attention_output_size + self.active_mlp_width)

    @property
    def model_flops_per_token(self) -> float:
        """Forward and backward FLOPs per token without recomputation, attention counted in full.

        6 N + 6 L (q + v) s (PaLM, arXiv 2204.02311, appendix B) with q elements of all queries, v of attention's
        output, N the active parameters without an untied input embedding, whose lookup multiplies nothing. Layers with
        a sliding window of w positions have w in place of s; with documents s is `document_length`. A layer that
        predicts further tokens counts as a layer with a head of its own. A frozen weight has no gradient: 4 N of the
        frozen weights, and 6 N of those that train, since activations' gradients pass all layers.
        """
        return 6 * (self._multiplied_parameters + self.scored_size * self.attended_positions) - self._unneeded_flops

    @property
    def causal_flops_per_token(self) -> float:
        """Model FLOPs with only those attention scores that the causal mask and windows leave, which a flash kernel
        really computes."""
        return 6 * (self._multiplied_parameters + self.scored_size * self.causal_positions) - self._unneeded_flops

    @property
    def _unneeded_flops(self) -> float:
        """FLOPs of a token for gradients of frozen weights."""
        if self.trainable is None:
            return 0
        looked_up = self.trained.embedding * (not self.tied_embeddings)
        return 2 * (self._multiplied_parameters - (self.trainable_parameters - looked_up))

    @property
    def scored_size(self) -> int:
        """Elements of all heads that one score's two products multiply: a key's and a value's."""
        return self.query_size + self.attention_output_size

    @property
    def attended_positions(self) -> float:
        """Positions to which one attends, summed over the layers, those after it counted in layers without a window. A
        window of documents of varying length is at most this."""
        return self._full_layers * self.attention_length + self._windowed_layers * self._window

    @property
    def causal_positions(self) -> float:
        """Positions to which one attends, a mean over the sequence summed over the layers: w - w^2 / 2s for a window of
        w, s / 2 for the whole sequence, with s as in `attention_length`."""
        of_window = self._window - self._window**2 / (2 * self.attention_length)
        return self._full_layers * self.attention_length / 2 + self._windowed_layers * of_window

    @property
    def attention_length(self) -> float:
        """Tokens of the part of a sequence in which a token attends: its document, or all of it."""
        return self.document_length or self.seq_length

    @property
    def _window(self) -> float:
        return min(self.attention_length, self.sliding_window or self.attention_length)

    @property
    def _full_layers(self) -> int:
        """Layers that attend to the whole sequence where others have a window."""
        return self.num_layers // self.full_attention_every if self.full_attention_every else 0

    @property
    def _windowed_layers(self) -> int:
        """Layers that attend to a window, the whole sequence where there is none; those for further tokens, too."""
        return self.num_layers + self.num_mtp_layers - self._full_layers

    @property
    def _multiplied_parameters(self) -> int:
        looked_up = 0 if self.tied_embeddings else self.embedding_parameters
        return self.active_parameters - looked_up + self.num_mtp_layers * self.vocab_size * self.hidden_size

    def with_documents(self, length: float | None) -> ModelShape:
        """The model on documents of this mean length; the same where it is None."""
        return self if length is None else replace(self, document_length=length)

    def hardware_flops_per_token(self, layout: Layout) -> float:
        """Model FLOPs plus recomputation (Korthikanti, arXiv 2205.05198, section 6): the forward passes of whole
        layers, of modules, of core attentions, which are the scores and their product with values, and of the products
        among torchtitan's cheap operations (search_spaces/cost_model/recomputation.py)."""
        core_attention = 2 * self.scored_size * self.attended_positions / self.num_layers
        layers = layout.layers_recomputed(self.num_layers) * (2 * self.active_layer_parameters + core_attention)
        modules = sum(2 * self.recomputed_parameters(module) for module in layout.modules_recomputed)
        scores = core_attention * ("core_attn" in layout.modules_recomputed)
        return self.model_flops_per_token + layers + self.num_layers * (modules + scores)


RESOLVED_FIELDS: Mapping[str, str] = {
    "attention_head_size": "head_size",
    "activation": "mlp_activation",
    "linear_biases": "has_biases",
    "expert_ffn_hidden_size": "expert_width",
}
"""Property with the value that counts of a field whose None stands for the usual one."""
MODEL_DEFAULTS: Mapping[str, Any] = {f.name: f.default for f in fields(ModelShape) if f.default is not MISSING}
"""Fields that a model may leave out, with the value that then counts."""


def field_of_feature(name: str) -> str:
    """Field that gives a model a feature."""
    return {"clamped_swiglu": "activation", "qlora": "adapters"}.get(name, name)


_FEATURES = (
    *("attention_head_size", "qkv_bias", "qk_norm", "activation", "rotary_base", "linear_biases", "sliding_window"),
    *("attention_sinks", "post_norms", "num_experts", "key_value_latent_size", "num_mtp_layers"),
    *("aux_loss_coefficient", "document_length", "adapters", "trainable"),
)
MODEL_FIELDS = declared_fields(ModelShape)
"""Fields that a search file may give."""
FIELD_TYPES = field_types(ModelShape)
"""Type of each field; one whose default is None may be None, too."""


def _mean(total: int, count: int) -> float:
    """The total over the count, a whole number where it divides."""
    return total // count if total % count == 0 else total / count


_FIX = "copy the sizes from the model's configuration"


def _bad(name: str, value: Any, rule: str) -> InputError:
    message = f"{name} is {format_value(value)}"
    return InputError.of("model", message, key=f"model.{name}", value=value, rule=rule, fix=_FIX)
