"""Adapters beside frozen weights, and the part of a model that trains. Standard library only.

LoRA (Hu et al., arXiv 2106.09685, section 4.1) adds alpha / rank x B A x to the output of a linear module: A has shape
(rank, in), B (out, rank). QLoRA (Dettmers et al., arXiv 2305.14314, section 3) keeps the frozen weights beside it in
4-bit NormalFloat, and their scales in 8 bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from search_spaces.declared import declared, require_declared
from search_spaces.decoding import JsonObject
from search_spaces.errors import InputError, did_you_mean, format_value

if TYPE_CHECKING:
    from search_spaces.model_shape import ModelShape

ALL_LINEAR = "all-linear"
INPUT_SIZES: Mapping[str, str] = {
    "attention_input": "hidden_size",
    "attention_output": "attention_output_size",
    "mlp_input": "hidden_size",
    "mlp_product": "ffn_hidden_size",
}
"""Size of a model that each input of a layer's linear modules has."""
_LLAMA = {
    "q_proj": ("attention_input", "query_size"),
    "k_proj": ("attention_input", "key_value_size"),
    "v_proj": ("attention_input", "key_value_size"),
    "o_proj": ("attention_output", "hidden_size"),
    "gate_proj": ("mlp_input", "ffn_hidden_size"),
    "up_proj": ("mlp_input", "ffn_hidden_size"),
    "down_proj": ("mlp_product", "hidden_size"),
}
_GPT2 = {
    "c_attn": ("attention_input", "qkv_size"),
    "attn.c_proj": ("attention_output", "hidden_size"),
    "c_fc": ("mlp_input", "ffn_hidden_size"),
    "mlp.c_proj": ("mlp_product", "hidden_size"),
}
_MEGATRON = {
    "linear_qkv": ("attention_input", "qkv_size"),
    "linear_proj": ("attention_output", "hidden_size"),
    "linear_fc1": ("mlp_input", "mlp_inner_size"),
    "linear_fc2": ("mlp_product", "hidden_size"),
}
_TORCHTITAN = {
    "wqkv": ("attention_input", "qkv_size"),
    "wo": ("attention_output", "hidden_size"),
    "w1": ("mlp_input", "ffn_hidden_size"),
    "w2": ("mlp_product", "hidden_size"),
    "w3": ("mlp_input", "ffn_hidden_size"),
}
TRANSFORMERS, MEGATRON, TORCHTITAN = "transformers", "megatron-core", "torchtitan"
LINEAR_MODULES: Mapping[str, tuple[str, str]] = {**_LLAMA, **_GPT2, **_MEGATRON, **_TORCHTITAN}
"""Input and output size of each linear module of a layer, by the names of the libraries that build it."""
NAMES_OF_LIBRARY: Mapping[str, tuple[str, ...]] = {
    TRANSFORMERS: (*_LLAMA, *_GPT2),
    MEGATRON: tuple(_MEGATRON),
    TORCHTITAN: tuple(_TORCHTITAN),
}
NORMS, EMBEDDING, HEAD = "norms", "embed_tokens", "lm_head"
"""Modules that train whole, or not at all: all norms, the token table, and the output matrix."""
BYTES_OF_4_BITS = 0.5 + 0.127 / 8
"""Bytes of a weight in 4 bits with its share of the scales: 0.127 bits (arXiv 2305.14314, section 3)."""


@dataclass(frozen=True)
class Adapters(JsonObject):
    """Low-rank adapters of the layers' linear modules, which train while these are frozen."""

    rank: int = declared("Rank of each adapter; not searched, since it decides what the model learns.", ge=1, le=10**5)
    kind: str = declared(
        "lora: frozen weights stay as they are. qlora: those of the layers' linear modules are kept in 4 bits.",
        "lora",
        words=("lora", "qlora"),
    )
    alpha: float | None = declared(
        "Adapters' outputs are multiplied by alpha / rank; alpha is the rank when not given.", None, gt=0, le=10**6
    )
    target_modules: tuple[str, ...] = declared(
        "Linear modules that have adapters, by the trainer's own names: those of transformers (q_proj, c_attn),"
        " Megatron (linear_qkv) or torchtitan (wqkv). all-linear: all of a layer, as transformers names them.",
        (ALL_LINEAR,),
    )

    def __post_init__(self) -> None:
        require_declared(self, "adapters", "adapters.")
        if not self.target_modules:
            raise _bad("adapters.target_modules", [], "adapters have target modules", "name some, or all-linear")
        if self.alpha == self.rank:
            object.__setattr__(self, "alpha", None)

    def __str__(self) -> str:
        return f"{self.kind} of rank {self.rank}"

    @property
    def scale(self) -> float:
        """Factor of an adapter's output."""
        return 1.0 if self.alpha is None else self.alpha / self.rank


def adapted_modules(model: ModelShape) -> tuple[str, ...]:
    """Linear modules of each layer that have an adapter, every name once; none without adapters."""
    if model.adapters is None:
        return ()
    named = model.adapters.target_modules
    return _all_linear(model) if ALL_LINEAR in named else tuple(dict.fromkeys(named))


def _all_linear(model: ModelShape) -> tuple[str, ...]:
    names = _GPT2 if model.position_embedding == "learned" else _LLAMA
    return tuple(name for name in names if name != "gate_proj" or model.gated_mlp)


def module_sizes(model: ModelShape, name: str) -> tuple[int, int]:
    """Elements of the input and the output of a layer's linear module."""
    read, written = LINEAR_MODULES[name]
    return getattr(model, INPUT_SIZES[read]), getattr(model, written)


def module_parameters(model: ModelShape, name: str) -> int:
    """Parameters of one of `LINEAR_MODULES` in a layer, its biases included."""
    of_input, of_output = module_sizes(model, name)
    has_biases = model.has_biases or (model.qkv_bias and LINEAR_MODULES[name][0] == "attention_input")
    return of_output * (of_input + has_biases)


def adapter_parameters(model: ModelShape) -> int:
    """Parameters of a layer's adapters."""
    if model.adapters is None:
        return 0
    return model.adapters.rank * sum(sum(module_sizes(model, name)) for name in adapted_modules(model))


@dataclass(frozen=True)
class TrainedPart:
    """Parameters of a model that train, the adapters' among them: of a layer (a mean), of the embedding and of the head
    with its norm. `adapters` are those of a layer's adapters. `inputs` are the inputs of linear modules that gradients
    of weights need."""

    layer: float
    embedding: int
    head: int
    adapters: int
    inputs: frozenset[str]

    @classmethod
    def of(cls, model: ModelShape) -> TrainedPart:
        adapted, adapters = adapted_modules(model), adapter_parameters(model)
        table = model.vocab_size * model.hidden_size
        if model.trainable is None:
            head = model.norm_parameters + (0 if model.tied_embeddings else table)
            layer = model.layer_parameters
            return cls(layer, model.embedding_parameters, head, adapters, frozenset(INPUT_SIZES))
        linear = [name for name in dict.fromkeys(model.trainable) if name in LINEAR_MODULES]
        norms = NORMS in model.trainable
        return cls(
            adapters + sum(module_parameters(model, name) for name in linear) + norms * model.layer_norm_parameters,
            table * (EMBEDDING in model.trainable),
            table * (HEAD in model.trainable) + norms * model.norm_parameters,
            adapters,
            frozenset(LINEAR_MODULES[name][0] for name in (*adapted, *linear)),
        )


def describe_trained(model: ModelShape) -> str | None:
    """The parameters that train, in words; None where all do."""
    if model.trainable is None:
        return None
    names = [*([] if model.adapters is None else [str(model.adapters)]), *model.trainable]
    return f"{model.trainable_parameters:,} of {model.parameters:,} parameters train: {', '.join(names)}"


def require_trainable(model: ModelShape) -> None:
    """InputError unless the model has the modules that train, and some of each layer do."""
    if model.trainable is not None and (model.key_value_latent_size is not None or model.num_mtp_layers):
        key, rule = (
            "adapters" if model.adapters else "trainable",
            "models with latent attention or MTP layers train whole",
        )
        raise _bad(key, str(model.adapters or [*model.trainable]), rule, "train all weights, or another model")
    if model.adapters is not None:
        for name in model.adapters.target_modules:
            if name != ALL_LINEAR:
                _require_module(model, name, "adapters.target_modules", (*LINEAR_MODULES, ALL_LINEAR))
        _require_rank(model, model.adapters.rank)
    names = model.trainable
    libraries = [library for library, known in NAMES_OF_LIBRARY.items() if {*known} & {*(names or ())}]
    if len(libraries) > 1:
        rule = f"modules have the names of one library, not of {' and '.join(libraries)}"
        raise _bad("trainable", list(names or ()), rule, "use the names of the library that builds the model")
    for name in names or ():
        _require_module(model, name, "trainable", (*LINEAR_MODULES, NORMS, EMBEDDING, HEAD))
    if model.adapters is not None and model.adapters.kind == "qlora" and {*LINEAR_MODULES} & {*(names or ())}:
        rule = "linear modules of layers do not train in 4 bits"
        raise _bad("trainable", list(names or ()), rule, "leave them out, or set adapters.kind to lora")
    if names is not None and model.adapters is None and {*names} <= {HEAD}:
        rule = "a module of the layers or the embedding trains, so that gradients reach all layers"
        raise _bad("trainable", list(names), rule, "name a module of the layers, or give adapters")


def _require_module(model: ModelShape, name: str, key: str, known: tuple[str, ...]) -> None:
    has_experts = model.num_experts is not None
    if name not in known:
        rule = "modules are " + ", ".join(known)
        raise _bad(key, name, rule, did_you_mean(name, known) or "use one of these names")
    wanted = {
        "the model's MLPs have a gate": name not in ("gate_proj", "w1", "w3") or model.gated_mlp,
        "positions are learned, as in GPT-2": name not in _GPT2 or model.position_embedding == "learned",
        "positions are rotary, as in Llama": name not in _LLAMA or model.position_embedding == "rotary",
        "layers have MLPs, not experts": not (has_experts and name in LINEAR_MODULES) or _is_of_attention(name),
        "the output matrix is not the token table": name != HEAD or not model.tied_embeddings,
    }
    if lacking := next((rule for rule, is_so in wanted.items() if not is_so), None):
        raise _bad(key, name, f"{name} is a module of models where {lacking}", "name a module that the model has")


def _require_rank(model: ModelShape, rank: int) -> None:
    if model.num_experts is not None and ALL_LINEAR in model.adapters.target_modules:  # type: ignore[union-attr]
        rule = "experts have no adapters, and all-linear would name theirs"
        raise _bad("adapters.target_modules", ALL_LINEAR, rule, "name the modules of attention")
    for name in adapted_modules(model):
        if rank > (most := min(module_sizes(model, name))):
            rule = f"the rank is at most the smaller dimension of each module: {most} of {name}"
            raise _bad("adapters.rank", rank, rule, "use a smaller rank")


def _is_of_attention(name: str) -> bool:
    return LINEAR_MODULES[name][0].startswith("attention")


def _bad(key: str, value: object, rule: str, fix: str) -> InputError:
    return InputError.of("adapters", f"is {format_value(value):.80}", key=key, value=value, rule=rule, fix=fix)
