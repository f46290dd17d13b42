"""peft's adapters in a model of transformers, and the part of the model that trains.

Written for peft 0.21 and bitsandbytes 0.50.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers.modeling_utils import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from search_spaces.adapters import EMBEDDING, NAMES_OF_LIBRARY, NORMS, TRANSFORMERS, Adapters, adapted_modules
from search_spaces.model_shape import ModelShape
from trials.train.engines.engine import TrainingConfig
from trials.train.engines.named_weights import NORM, NamedWeights
from trials.train.engines.sharding import round_frozen


def freeze_untrained(built: PreTrainedModel, training: TrainingConfig, weights: NamedWeights) -> None:
    """Add the adapters, and leave nothing else to train but the modules that `trainable` names.

    Weights in 4 bits are drawn first, since they take no values later; all others are still to be set.
    """
    model = training.model
    if model.adapters is not None:
        if model.adapters.kind == "qlora":
            weights.set(built)
            _quantize(built, training)
        _add_adapters(built, model, model.adapters)
    for name, parameter in built.named_parameters():
        parameter.requires_grad_("lora_" in name or _is_named(name, model.trainable or ()))
    round_frozen(built, training.dtype)


def _add_adapters(built: PreTrainedModel, model: ModelShape, adapters: Adapters) -> None:
    from peft import LoraConfig, inject_adapter_in_model

    config = LoraConfig(
        r=adapters.rank,
        lora_alpha=adapters.scale * adapters.rank,  # type: ignore[arg-type]
        target_modules=list(adapted_modules(model)),
        fan_in_fan_out=model.position_embedding == "learned" and adapters.kind == "lora",  # GPT-2's are (in, out)
        init_lora_weights=False,
    )
    inject_adapter_in_model(config, built)


def _is_named(parameter: str, modules: tuple[str, ...]) -> bool:
    """True if a parameter is one of these modules, or of all norms."""
    path = f".{parameter.rpartition('.')[0].removesuffix('.base_layer')}"
    names = (*modules, "wte") if EMBEDDING in modules else modules
    return path.endswith(tuple(f".{name}" for name in names)) or (NORMS in modules and bool(NORM.search(path)))


def _quantize(built: PreTrainedModel, training: TrainingConfig) -> None:
    """Keep all linear modules of the layers in 4-bit NormalFloat, and their scales in 8 bits."""
    of_layers = tuple(f".{name}" for name in NAMES_OF_LIBRARY[TRANSFORMERS])
    linear_modules: list[tuple[str, Any]] = [pair for pair in built.named_modules() if pair[0].endswith(of_layers)]
    for path, linear in linear_modules:
        parent, _, name = path.rpartition(".")
        setattr(built.get_submodule(parent), name, _in_4_bits(linear, training))
    built.is_loaded_in_4bit = True  # type: ignore[assignment]  # as peft asks


def _in_4_bits(linear: Any, training: TrainingConfig) -> nn.Module:
    from bitsandbytes.nn import Linear4bit, Params4bit

    weight = linear.weight.detach()
    weight = weight.T.contiguous() if isinstance(linear, Conv1D) else weight
    rows, columns = weight.shape
    made = Linear4bit(columns, rows, bias=False, compute_dtype=training.dtype, quant_type="nf4")
    made.weight = Params4bit(weight.to(training.dtype), requires_grad=False, quant_type="nf4")
    made.bias = linear.bias
    return made.to(training.device)
