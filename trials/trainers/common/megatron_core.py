"""megatron-core's table: its configuration's fields for a layout and a model, and back. Standard library only.

Megatron-LM, Megatron-DeepSpeed and Megatron-Bridge spell these fields in their own way; the engine megatron-core is
configured by them. A row writes all of its fields; None is the core's default. Names and defaults: megatron/core/
transformer/transformer_config.py of core_v0.16.1 and of main (2026-08).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from search_spaces.errors import InputError
from search_spaces.layouts.layout import CHOICES, FUSED_DISPATCHERS, Layout
from search_spaces.model_shape import ModelShape
from trials.trainers.common.megatron_layout import LAYOUT_ROWS, has_experts, is_on
from trials.trainers.table import Keys, Row, Trained, Values, number, plain, switch, word

CLAMPED = {"glu_linear_offset": 1.0, "activation_func_clamp_value": 7.0}
"""Constants of `clamped_swiglu`; openai/gpt-oss, gpt_oss/torch/model.py, swiglu."""
ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu": "gelu", "relu": "relu", "squared_relu": "squared_relu"}
"""Activations by the name of their function."""
_FLEX = "flex"
"""Megatron's dispatcher by a library."""


def _from_0(keys: Keys, name: str) -> int | None:
    """A whole number that may be 0."""
    return 0 if str(keys.value(name)) == "0" else keys.count(name)


# -- a layer


def _key_value_heads(keys: Keys) -> int | None:
    return keys.count("num_query_groups") or keys.default("num_query_groups", keys.count("num_attention_heads"))


def _ffn_hidden_size(keys: Keys) -> int | None:
    hidden = None if keys.has("ffn_hidden_size") else keys.count("hidden_size")
    return keys.count("ffn_hidden_size") or keys.default("ffn_hidden_size", hidden and 4 * hidden)


def _head_size(keys: Keys) -> int | None:
    """Elements of a head's query; with latent attention those that are rotated, and the others."""
    if not is_latent(keys):
        return keys.count("kv_channels")
    others, rotated = (_read_latent(keys, name) for name in ("qk_head_dim", "qk_pos_emb_head_dim"))
    return others + rotated if others and rotated else None


def _qkv_bias(keys: Keys) -> bool:
    """False where all linear layers have biases, those of queries, keys and values among them."""
    has_all = is_on(keys, "add_bias_linear", True)
    has_all = keys.text("normalization") == "LayerNorm" if has_all is None else has_all
    return bool(is_on(keys, "add_qkv_bias")) and not has_all


def _of_activation(spec: Trained) -> Values:
    """The fused kernel of an MLP with biases is GELU's. That of experts clamps before it adds biases
    (megatron/core/fusions/fused_bias_geglu.py, weighted_bias_quick_geglu_impl)."""
    name, has_biases = spec.model.mlp_activation, spec.model.has_biases
    is_clamped = name == "clamped_swiglu"
    return {
        "gated_linear_unit": spec.model.gated_mlp,
        "activation_func": "quick_gelu" if is_clamped else name,
        **{constant: value if is_clamped else None for constant, value in CLAMPED.items()},
        "bias_activation_fusion": False if has_biases and name in ("squared_relu", "clamped_swiglu") else None,
    }


def _activation(keys: Keys) -> str | None:
    """None for one that no model section has."""
    name = keys.text("activation_func")
    if name == "quick_gelu" and all(keys.whole(constant) == value for constant, value in CLAMPED.items()):
        return "clamped_swiglu"
    return ACTIVATIONS.get(name or "")


def _position_embedding(keys: Keys) -> str | None:
    found: str | None = _POSITIONS.read(keys) if _POSITIONS.read else None
    if keys.has("no_position_embedding") and found == "learned":
        raise InputError(keys.problem("no_position_embedding", "a model's position_embedding is learned or rotary"))
    return found


_POSITIONS = word(
    "position_embedding", "position_embedding_type", {"learned": "learned_absolute", "rotary": "rope"}, "learned"
)


def _of_window(spec: Trained) -> Values:
    """Megatron counts the positions before one's own and those after it."""
    window = spec.model.sliding_window
    return {
        "window_size": None if window is None else [window - 1, 0],
        "window_attn_skip_freq": spec.model.full_attention_every,
    }


def _window(keys: Keys) -> int | None:
    if not (sizes := keys.words("window_size")):
        return None
    if len(sizes) != 2 or not sizes[0].isdigit() or sizes[1] != "0":
        raise InputError(keys.problem("window_size", "sliding_window is a number of positions up to one's own: N,0"))
    return int(sizes[0]) + 1


def _full_attention_every(keys: Keys) -> int | None:
    return keys.count("window_attn_skip_freq") if keys.has("window_size") else None


_LAYER = (
    number("num_layers", "num_layers"),
    number("hidden_size", "hidden_size"),
    plain("ffn_hidden_size", "ffn_hidden_size", _ffn_hidden_size),
    number("num_attention_heads", "num_attention_heads"),
    plain("num_key_value_heads", "num_query_groups", _key_value_heads),
    plain("attention_head_size", "kv_channels", _head_size),
    number("seq_length", "seq_length"),
    switch("gated_mlp", "gated_linear_unit", False),
    Row("activation", _of_activation, _activation),
    switch("linear_biases", "add_bias_linear", True),
    plain("qkv_bias", "add_qkv_bias", _qkv_bias),
    word("norm", "normalization", {"rmsnorm": "RMSNorm", "layernorm": "LayerNorm"}, "layernorm"),
    Row("position_embedding", _POSITIONS.write, _position_embedding),
    plain("rotary_base", "rotary_base", lambda keys: keys.whole("rotary_base")),
    switch("tied_embeddings", "share_embeddings_and_output_weights", True),
    Row("sliding_window", _of_window, _window),
    Row("full_attention_every", read=_full_attention_every),
    word("attention_sinks", "softmax_type", {True: "learnable", False: "vanilla"}, False),
    Row(
        "num_mtp_layers",
        lambda spec: {"mtp_num_layers": spec.model.num_mtp_layers or None},
        lambda keys: _from_0(keys, "mtp_num_layers"),
    ),
)


# -- latent attention

_LATENT_SIZES: Mapping[str, tuple[str, int | None]] = {
    "query_latent_size": ("q_lora_rank", None),
    "key_value_latent_size": ("kv_lora_rank", 32),
    "rotary_head_size": ("qk_pos_emb_head_dim", 64),
    "value_head_size": ("v_head_dim", 128),
}
"""Fields of latent attention by the model's, with Megatron's defaults."""
_DEFAULT_SIZES = {"qk_head_dim": 128, **dict(_LATENT_SIZES.values())}


def is_latent(keys: Keys) -> bool:
    """True with latent attention; where a recipe decides it, the sizes that only it has say so, too."""
    found = is_on(keys, "multi_latent_attention")
    return any(map(keys.has, _DEFAULT_SIZES)) if found is None else found


def _read_latent(keys: Keys, name: str) -> int | None:
    return keys.count(name) or keys.default(name, _DEFAULT_SIZES[name]) if is_latent(keys) else None


def _latent(spec: Trained) -> Values:
    """Latent attention, without scaled positions. Its norms are those of qk_layernorm, and its fused rotary kernel is
    YaRN's alone."""
    model, is_given = spec.model, spec.model.key_value_latent_size is not None
    return {
        "multi_latent_attention": is_given,
        **{name: getattr(model, field) for field, (name, _) in _LATENT_SIZES.items()},
        "qk_head_dim": model.head_size - (model.rotary_head_size or 0) if is_given else None,
        "rope_type": "rope" if is_given else None,
        "rotary_scaling_factor": 1.0 if is_given else None,
        "apply_rope_fusion": False if is_given else None,
        "qk_layernorm": model.qk_norm or is_given,
    }


def _qk_norm(keys: Keys) -> bool | None:
    return None if is_latent(keys) else is_on(keys, "qk_layernorm")


_ATTENTION = (
    Row("qk_norm", _latent, _qk_norm),
    *(
        Row(field, read=lambda keys, name=name: _read_latent(keys, name))  # type: ignore[misc]
        for field, (name, _) in _LATENT_SIZES.items()
    ),
)


# -- experts


def _experts(spec: Trained) -> Values:
    """Experts, with logits in fp32; the softmax of the chosen ones is Megatron's default. Grouped products with biases
    assert what is not fused (megatron/core/transformer/moe/experts.py, TEGroupedMLP)."""
    model, layout = spec.model, spec.layout
    library = layout.expert_dispatcher if layout.expert_dispatcher in FUSED_DISPATCHERS else None
    has_loss = model.aux_loss_coefficient is not None
    values = {
        "expert_tensor_parallel_size": layout.expert_tensor_parallel,
        "moe_router_topk": model.experts_per_token,
        "moe_ffn_hidden_size": model.expert_width,
        "moe_shared_expert_intermediate_size": model.shared_expert_ffn_hidden_size,
        "moe_layer_freq": moe_layer_freq(model),
        # A softmax over one expert has no gradient.
        "moe_router_load_balancing_type": "aux_loss"
        if has_loss
        else "sinkhorn"
        if model.experts_per_token == 1
        else "none",
        "moe_aux_loss_coeff": model.aux_loss_coefficient,
        "moe_router_dtype": "fp32",
        "moe_token_dispatcher_type": _FLEX if library else layout.expert_dispatcher,
        "moe_flex_dispatcher_backend": library,
        "moe_grouped_gemm": layout.precision != "fp32",
        "bias_dropout_fusion": False if model.has_biases else None,
    }
    return {"num_moe_experts": model.num_experts} | (values if model.num_experts else dict.fromkeys(values))


def moe_layer_freq(model: ModelShape) -> int | list[int]:
    """1 for each layer that has experts, 0 for one with an MLP; 1 where all have them."""
    layers = [int(model.has_experts(layer)) for layer in range(model.num_layers)]
    return 1 if all(layers) else layers


def _of_experts(name: str, default: int | None = None) -> Callable[[Keys], int | None]:
    """Reader of a number that models with experts have."""
    return lambda keys: keys.count(name) or keys.default(name, default) if has_experts(keys) else None


def _expert_tensor_parallel(keys: Keys) -> int | None:
    """By default all tensor-parallel ranks split an expert."""
    name = "expert_tensor_parallel_size"
    tensor = None if keys.has(name) or not has_experts(keys) else keys.count("tensor_model_parallel_size") or 1
    return _of_experts(name, tensor)(keys)


def _dispatcher(keys: Keys) -> str | None:
    """The dispatcher, by default all-gather; of `flex` the library, by default DeepEP."""
    if not has_experts(keys):
        return None
    name = "moe_token_dispatcher_type"
    found = keys.text(name) or keys.default(name, "allgather")
    if found == _FLEX:
        name = "moe_flex_dispatcher_backend"
        found = keys.text(name) or keys.default(name, FUSED_DISPATCHERS[0])
    if found not in (None, *CHOICES["expert_dispatcher"]):
        raise InputError(keys.problem(name, "expert_dispatcher is alltoall, allgather, deepep or hybridep"))
    return found


def _aux_loss(keys: Keys) -> float | None:
    """The loss over the tokens of a micro-batch; another way to balance experts is no field's."""
    if not has_experts(keys) or keys.text("moe_router_load_balancing_type") != "aux_loss":
        return None
    try:
        return float(keys.text("moe_aux_loss_coeff") or 0) or None
    except ValueError:
        raise InputError(keys.problem("moe_aux_loss_coeff", "a number")) from None


_EXPERTS = (
    Row("num_experts", _experts, lambda keys: _from_0(keys, "num_moe_experts") or None),
    plain("expert_parallel", "expert_model_parallel_size", _of_experts("expert_model_parallel_size", 1)),
    Row("expert_tensor_parallel", read=_expert_tensor_parallel),
    Row("experts_per_token", read=_of_experts("moe_router_topk", 2)),
    Row("expert_ffn_hidden_size", read=_of_experts("moe_ffn_hidden_size")),
    Row("shared_expert_ffn_hidden_size", read=_of_experts("moe_shared_expert_intermediate_size")),
    Row("aux_loss_coefficient", read=_aux_loss),
    Row("expert_dispatcher", read=_dispatcher),
)

CORE_ROWS = (*LAYOUT_ROWS, *_LAYER, *_ATTENTION, *_EXPERTS)


class _LayoutAndModel(NamedTuple):
    layout: Layout
    model: ModelShape
    global_batch_size: int


def core_fields(layout: Layout, model: ModelShape, rows: Sequence[Row] = CORE_ROWS) -> dict[str, Any]:
    """The configuration's fields by name; None where they have the core's default."""
    spec = _LayoutAndModel(layout, model, layout.global_batch_size)
    return {name: value for row in rows for name, value in row.write(spec).items()}


ANY_MODEL = ModelShape(1024, 64, 1, 1, 64, False, 128, 128, True, "learned", "layernorm")


def all_fields(rows: Sequence[Row]) -> dict[str, Any]:
    """Every field that the rows write, with the values of a dense model on one rank."""
    return core_fields(Layout(), ANY_MODEL, rows)
