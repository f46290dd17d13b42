"""ModelShape: a GPT's sizes, its parameters and its FLOPs. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any

from search_spaces.errors import InputError, format_value
from search_spaces.layouts.layout import Layout

POSITION_EMBEDDINGS = ("learned", "rotary")
NORMS = ("layernorm", "rmsnorm")
ACTIVATIONS = ("gelu", "silu", "relu", "squared_relu")
"""Activations of an MLP; `gelu` is the tanh approximation."""
DEFAULT_ROTARY_BASE = 10_000
NORM_EPSILON = 1e-5
"""Constant of every shape."""


@dataclass(frozen=True)
class ModelShape:
    """A decoder-only transformer. `vocab_size` is the padded one; `ffn_hidden_size` is the width of the MLP.

    `attention_head_size` None is hidden_size / num_attention_heads. `linear_biases` None is true with layernorm (GPT-2)
    and false with rmsnorm (Llama); without them `qkv_bias` gives the projection to queries, keys and values alone
    biases (Qwen2). The head never has any. With `qk_norm` queries and keys are normalised by head, before they are
    rotated (Qwen3). `activation` None is silu for a gated MLP, gelu for another. `rotary_base` is the base of rotary
    positions' periods.

    With `sliding_window` a position attends to itself and the window's positions before it, `sliding_window` in all,
    except in each `full_attention_every`-th layer (Gemma 3, gpt-oss). With `attention_sinks` each head has a learned
    logit that takes part in its softmax (gpt-oss). With `post_norms` the outputs of attention and MLP are normalised
    before they are added, too (Gemma 3).

    The trainer builds exactly this many parameters, which every outcome proves.
    """

    num_layers: int
    hidden_size: int
    num_attention_heads: int
    num_key_value_heads: int
    ffn_hidden_size: int
    gated_mlp: bool
    vocab_size: int
    seq_length: int
    tied_embeddings: bool
    position_embedding: str
    norm: str
    attention_head_size: int | None = None
    qkv_bias: bool = False
    qk_norm: bool = False
    activation: str | None = None
    rotary_base: int = DEFAULT_ROTARY_BASE
    linear_biases: bool | None = None
    sliding_window: int | None = None
    full_attention_every: int | None = None
    attention_sinks: bool = False
    post_norms: bool = False

    def __post_init__(self) -> None:
        for name in _SIZES:
            _require_size(name, getattr(self, name))
        for name in _OPTIONAL_SIZES:
            if getattr(self, name) is not None:
                _require_size(name, getattr(self, name))
        for name in _SWITCHES:
            if type(getattr(self, name)) is not bool and not (name == "linear_biases" and self.linear_biases is None):
                raise _bad(name, getattr(self, name), "true or false")
        for name, known in (("position_embedding", POSITION_EMBEDDINGS), ("norm", NORMS)):
            if getattr(self, name) not in known:
                raise _bad(name, getattr(self, name), "one of " + ", ".join(known))
        if self.activation not in (None, *ACTIVATIONS):
            raise _bad("activation", self.activation, "one of " + ", ".join(ACTIVATIONS))
        if self.qkv_bias and self.has_biases:
            raise _bad("qkv_bias", True, "true only where linear_biases is false; all linear layers have biases")
        if self.full_attention_every is not None and self.sliding_window is None:
            raise _bad("full_attention_every", self.full_attention_every, "given only with sliding_window")
        if self.rotary_base != DEFAULT_ROTARY_BASE and self.position_embedding != "rotary":
            raise _bad("rotary_base", self.rotary_base, f"{DEFAULT_ROTARY_BASE} where position_embedding is learned")
        if self.attention_head_size is None:
            self._require_divisible("hidden_size", "num_attention_heads")
        self._require_divisible("num_attention_heads", "num_key_value_heads")

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
        """Elements of all heads' queries, also of attention's output before its projection."""
        return self.num_attention_heads * self.head_size

    @property
    def key_value_size(self) -> int:
        """Elements of all heads' keys, or values."""
        return self.num_key_value_heads * self.head_size

    @property
    def mlp_activation(self) -> str:
        """Activation of the MLP, given or usual."""
        return self.activation or ("silu" if self.gated_mlp else "gelu")

    @property
    def features(self) -> tuple[str, ...]:
        """Fields beyond GPT-2's and Llama's architecture, which an engine may lack."""
        usual = "silu" if self.gated_mlp else "gelu"
        present = {
            "attention_head_size": self.query_size != self.hidden_size,
            "qkv_bias": self.qkv_bias,
            "qk_norm": self.qk_norm,
            "activation": self.mlp_activation != usual,
            "rotary_base": self.rotary_base != DEFAULT_ROTARY_BASE,
            "linear_biases": self.has_biases != (self.norm == "layernorm"),
            "sliding_window": self.sliding_window is not None,
            "attention_sinks": self.attention_sinks,
            "post_norms": self.post_norms,
        }
        return tuple(name for name, is_present in present.items() if is_present)

    @property
    def has_biases(self) -> bool:
        """True if all linear layers but the head have biases."""
        return self.norm == "layernorm" if self.linear_biases is None else self.linear_biases

    def window_of(self, layer: int) -> int | None:
        """Positions to which one attends in this layer, counted from 0; None for all before it."""
        is_full = self.full_attention_every is not None and (layer + 1) % self.full_attention_every == 0
        return None if is_full else self.sliding_window

    @property
    def layer_parameters(self) -> int:
        """Parameters of one transformer layer."""
        norms = (4 if self.post_norms else 2) * self.norm_parameters
        return self.attention_parameters + self.mlp_parameters + norms

    @property
    def unsplit_layer_parameters(self) -> int:
        """Parameters of one layer that every tensor-parallel rank holds whole: norms, and biases of both outputs."""
        norms = (4 if self.post_norms else 2) * self.norm_parameters
        return norms + self._head_norm_parameters + 2 * self.hidden_size * self.has_biases

    @property
    def _head_norm_parameters(self) -> int:
        return 2 * self._norm_parameters_of(self.head_size) * self.qk_norm

    @property
    def attention_parameters(self) -> int:
        """Parameters of one layer's attention."""
        h, qkv = self.hidden_size, self.query_size + 2 * self.key_value_size
        biases = qkv * (self.has_biases or self.qkv_bias) + h * self.has_biases
        sinks = self.num_attention_heads * self.attention_sinks
        return h * qkv + self.query_size * h + biases + self._head_norm_parameters + sinks

    @property
    def mlp_parameters(self) -> int:
        """Parameters of one layer's MLP."""
        h, f, widths_in = self.hidden_size, self.ffn_hidden_size, 2 if self.gated_mlp else 1
        return (widths_in + 1) * h * f + (widths_in * f + h if self.has_biases else 0)

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
    def head_parameters(self) -> int:
        """Final normalisation plus the output matrix, which a tied model shares with the token table."""
        return self.norm_parameters + (0 if self.tied_embeddings else self.vocab_size * self.hidden_size)

    @property
    def parameters(self) -> int:
        return self.embedding_parameters + self.num_layers * self.layer_parameters + self.head_parameters

    @property
    def parameters_of_cheap_products(self) -> int:
        """Parameters of a layer's products that torchtitan counts among the cheap operations: attention's output and
        the MLP's value."""
        return self.hidden_size * (self.query_size + self.ffn_hidden_size)

    @property
    def model_flops_per_token(self) -> int:
        """Forward and backward FLOPs per token without recomputation, attention counted in full.

        6 N + 12 L q s (PaLM, arXiv 2204.02311, appendix B) with q elements of all queries, N without an untied input
        embedding, whose lookup multiplies nothing. Layers with a sliding window of w positions have w in place of s.
        """
        return 6 * self._multiplied_parameters + 12 * self.query_size * self.attended_positions

    @property
    def causal_flops_per_token(self) -> float:
        """Model FLOPs with only those attention scores that the causal mask and windows leave, which a flash kernel
        really computes."""
        return 6 * self._multiplied_parameters + 12 * self.query_size * self.causal_positions

    @property
    def attended_positions(self) -> int:
        """Positions to which one attends, summed over the layers, those after it counted in layers without a window."""
        return self._full_layers * self.seq_length + (self.num_layers - self._full_layers) * self._window

    @property
    def causal_positions(self) -> float:
        """Positions to which one attends, a mean over the sequence summed over the layers: w - w^2 / 2s for a window of
        w, s / 2 for the whole sequence."""
        of_window = self._window - self._window**2 / (2 * self.seq_length)
        return self._full_layers * self.seq_length / 2 + (self.num_layers - self._full_layers) * of_window

    @property
    def _window(self) -> int:
        return min(self.seq_length, self.sliding_window or self.seq_length)

    @property
    def _full_layers(self) -> int:
        """Layers that attend to the whole sequence where others have a window."""
        return self.num_layers // self.full_attention_every if self.full_attention_every else 0

    @property
    def _multiplied_parameters(self) -> int:
        return self.parameters - (0 if self.tied_embeddings else self.embedding_parameters)

    def hardware_flops_per_token(self, layout: Layout) -> float:
        """Model FLOPs plus recomputation (Korthikanti, arXiv 2205.05198, section 6): the forward passes of whole
        layers, of MLPs, of core attentions, which are the scores and their product with values, and of the products
        among torchtitan's cheap operations (search_spaces/cost_model/recomputation.py)."""
        core_attention = 4 * self.query_size * self.attended_positions / self.num_layers
        forward = {
            "core_attn": core_attention,
            "mlp": 2 * self.mlp_parameters,
            "ops": 2 * self.parameters_of_cheap_products,
        }
        layers = layout.layers_recomputed(self.num_layers) * (2 * self.layer_parameters + core_attention)
        modules = self.num_layers * sum(forward[module] for module in layout.modules_recomputed)
        return self.model_flops_per_token + layers + modules

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ModelShape:
        """The inverse of `to_json`; raises InputError for a wrong value, TypeError for a wrong set of fields."""
        return cls(**data)


MODEL_DEFAULTS: Mapping[str, Any] = {f.name: f.default for f in fields(ModelShape) if f.default is not MISSING}
"""Fields that a model may leave out, with the value that then counts."""

_OPTIONAL_SIZES = ("attention_head_size", "sliding_window", "full_attention_every")
_SWITCHES = (
    "gated_mlp",
    "tied_embeddings",
    "qkv_bias",
    "qk_norm",
    "linear_biases",
    "attention_sinks",
    "post_norms",
)
_SIZES = (
    "num_layers",
    "hidden_size",
    "num_attention_heads",
    "num_key_value_heads",
    "ffn_hidden_size",
    "vocab_size",
    "seq_length",
    "rotary_base",
)


def _require_size(name: str, value: Any) -> None:
    if type(value) is not int or not 1 <= value <= 10**9:
        raise _bad(name, value, "a whole number from 1 to 1000000000")


def _bad(name: str, value: Any, rule: str) -> InputError:
    fix = "copy the sizes from the model's configuration"
    return InputError.of(
        "model", f"{name} is {format_value(value)}", key=f"model.{name}", value=value, rule=rule, fix=fix
    )
