"""GPT-NeoX: its table, and its configuration for a layout, which a rank gets as an argument. Standard library only.

Key names: GPT-NeoX megatron/neox_arguments/{neox_args,deepspeed_args}.py as of 2026-05.
Rules: the same, and DeepSpeed's own.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from typing import Any

from search_spaces.errors import InputError
from search_spaces.model_shape import ModelShape
from search_spaces.rules.engine_rules import DEEPSPEED_RULES, bf16_reductions, half_precision_flash
from search_spaces.rules.rule import Rule, activations, clashes, engine_limits
from trials.trainers.base import NEVER, SCRIPT_KEYS, Invocation, LayoutExport, Trainer, train_iterations
from trials.trainers.common.deepspeed_config import DEEPSPEED, MICRO, STEPS, TOTAL, fp32_sums, zero_rows
from trials.trainers.common.log_lines import MEGATRON_LOG
from trials.trainers.common.recipe import own_arguments, script_or, user_template, with_variables
from trials.trainers.table import (
    SWITCH,
    Keys,
    Row,
    Table,
    Values,
    by_option,
    merged,
    nested,
    number,
    plain,
    plain_yaml,
    switch,
    word,
)
from trials.trial import TrialSpec

_WRITES_CHECKPOINTS = ("save", "extra_save_iters", "checkpoint_factor", "checkpoint_scale")
_GATES = {"silu": "swiglu", "relu": "reglu", "gelu": "geglu"}
_ACTIVATIONS = {name: (name, False) for name in _GATES} | {gate: (name, True) for name, gate in _GATES.items()}
"""(activation, whether it has a gate) by GPT-NeoX's words."""
_PRECISIONS = {"fp32": "fp32", "bf16": "bfloat16", "fp16": "fp16"}
_KERNELS = {"math": "global", "flash": "flash"}
PADDED_TO = "make_vocab_size_divisible_by"
TENSOR, PIPELINE = "model_parallel_size", "pipe_parallel_size"
_OF_TRANSFORMER_ENGINE = {"te_layernorm": "layernorm", "te_rmsnorm": "rmsnorm"}
_BIASES = ("use_bias_in_attn_linear", "use_bias_in_mlp")


# -- how a configuration is read


def degree(keys: Keys, name: str) -> int | None:
    """A parallel degree; 0 stages are one without DeepSpeed's pipeline engine."""
    return 1 if keys.value(name) == 0 else keys.count(name) or 1


def _ffn_hidden_size(keys: Keys) -> int | None:
    """The MLP's width as ParallelMLP of megatron/model/transformer.py computes it.

    Gate and gated part together have two thirds of the intermediate size, each rounded up to mlp_multiple_of.
    """
    width, multiple = _intermediate_size(keys), keys.count("mlp_multiple_of") or 1
    if width is None or keys.has("te_layernorm_mlp"):
        return width
    part = int(width * 2 / 3) // 2 if _activation(keys)[1] else width
    return -(-part // multiple) * multiple


def _intermediate_size(keys: Keys) -> int | None:
    if keys.has("intermediate_size"):
        return keys.count("intermediate_size")
    hidden, factor = keys.count("hidden_size"), keys.value("expansion_factor")
    if factor is not None and (type(factor) not in (int, float) or not 0 < factor < 10**6):
        raise InputError(keys.problem("expansion_factor", "a number above 0"))
    return int((factor or 4) * hidden) if hidden else None


def _activation(keys: Keys) -> tuple[str, bool]:
    return keys.chosen("activation", _ACTIVATIONS, ("gelu", False))


def _rotary_base(keys: Keys) -> int | None:
    return keys.whole("rotary_emb_base") if str(keys.value("pos_emb")) == "rotary" else None


def _linear_biases(keys: Keys) -> bool:
    has_biases = [keys.chosen(name, SWITCH, True) for name in _BIASES]
    if has_biases[0] is not has_biases[1]:
        name = _BIASES[has_biases.index(False)]
        raise InputError(keys.problem(name, "attention and MLP both have biases, or neither has"))
    return has_biases[0]


def _precision(keys: Keys) -> str:
    """`precision`, else that of the section that is enabled."""
    words = {theirs: ours for ours, theirs in _PRECISIONS.items()}
    stated = keys.chosen("precision", words, None, "precision is fp32, bf16 or fp16")
    enabled = [name for name in ("fp16", "bf16") if keys.chosen(f"{name}.enabled", SWITCH, False)]
    if stated and any(name != stated for name in enabled):
        raise InputError(keys.problem("precision", "precision and the sections fp16 and bf16 name one precision"))
    return stated or (enabled or ["fp32"])[0]


def _attention_kernel(keys: Keys) -> str:
    """The only word of `[[[kind, ...], layers], ...]`, or of a list of one kind for each layer. Transformer Engine
    chooses a kernel itself: flash in half precision."""
    if keys.has("te_mha"):
        return "math" if _precision(keys) == "fp32" else "flash"
    kernels = {theirs: ours for ours, theirs in _KERNELS.items()}
    types = {*re.findall(r"\w*[a-z]\w*", str(keys.value("attention_config") or "global"))}
    if len(types) > 1 or not types <= kernels.keys():
        rule = "attention_kernel is math (global) or flash in all layers; other attention is no part of a model"
        raise InputError(keys.problem("attention_config", rule))
    return kernels[types.pop()] if types else "math"


# -- how a layout is written


def _precision_keys(spec: TrialSpec) -> Values:
    precision = spec.layout.precision
    enabled = {} if precision == "fp32" else {f"{precision}.enabled": True}
    return {"precision": _PRECISIONS[precision], "fp16.enabled": False, **enabled, **fp32_sums(spec.layout)}


def _mlp(spec: TrialSpec) -> Values:
    """A gated MLP gets two thirds, half of it for the gate, rounded up (megatron/model/transformer.py)."""
    model = spec.model
    width = model.ffn_hidden_size * (3 if model.gated_mlp else 1)
    return {"intermediate_size": width, "mlp_multiple_of": 1, "activation": _activation_word(model)}


def _activation_word(model: ModelShape) -> str:
    return _GATES.get(model.mlp_activation, model.mlp_activation) if model.gated_mlp else model.mlp_activation


GPT_NEOX = Table(
    "GPT-NeoX",
    "2026-05-20 (ea7aefd8)",
    rows=(
        number("num_layers", "num_layers"),
        number("hidden_size", "hidden_size"),
        number("num_attention_heads", "num_attention_heads"),
        number("num_key_value_heads", "num_kv_heads", instead=("num_attention_heads",)),
        Row("ffn_hidden_size", _mlp, _ffn_hidden_size),
        Row("gated_mlp", read=lambda keys: _activation(keys)[1]),
        Row("activation", read=lambda keys: _activation(keys)[0]),
        # The tokenizer's vocabulary is padded to a multiple of this and the tensor degree: here to the model's own.
        Row("vocab_size", lambda spec: {PADDED_TO: spec.model.vocab_size // spec.layout.tensor_parallel}),
        number("seq_length", "seq_length"),
        Row("seq_length", lambda spec: {"max_position_embeddings": spec.model.seq_length}),
        word("norm", "norm", {name: name for name in ("layernorm", "rmsnorm")}, "layernorm", _OF_TRANSFORMER_ENGINE),
        word("position_embedding", "pos_emb", {name: name for name in ("learned", "rotary")}, "learned"),
        plain("rotary_base", "rotary_emb_base", _rotary_base),
        switch("tied_embeddings", "no_weight_tying", True, is_inverted=True),
        Row("linear_biases", lambda spec: dict.fromkeys(_BIASES, spec.model.has_biases), _linear_biases),
        word("qk_norm", "use_qk_layernorm", {False: False}, False),
        plain("tensor_parallel", TENSOR, lambda keys: degree(keys, TENSOR)),
        # 0 disables DeepSpeed's pipeline, which does not support ZeRO 2 and 3.
        Row(
            "pipeline_parallel",
            lambda spec: {PIPELINE: 0 if spec.layout.zero_stage > 1 else spec.layout.pipeline_parallel},
            lambda keys: degree(keys, PIPELINE),
        ),
        switch("sequence_parallel", "sequence_parallel", False),
        number("global_batch_size", TOTAL),
        number("micro_batch_size", MICRO),
        number("grad_accum_steps", STEPS),
        *zero_rows(_precision),
        word("activation_checkpointing", "checkpoint_activations", {"none": False, "full": True}, "none"),
        Row(
            "activation_checkpointing",
            lambda spec: {"checkpoint_num_layers": 1} if spec.layout.activation_checkpointing == "full" else {},
        ),
        Row("precision", _precision_keys, _precision),
        Row(
            "attention_kernel",
            lambda spec: {"attention_config": [[[_KERNELS[spec.layout.attention_kernel]], spec.model.num_layers]]},
            _attention_kernel,
        ),
    ),
    trains_another={
        **DEEPSPEED.trains_another,
        **by_option(
            {
                "experts are not read from this trainer": "moe_num_experts",
                "products and optimizer states in 8 bits are no axis of a layout": "te_fp8_mha use_bnb_optimizer",
                "activations in host memory are no value of offload": "checkpoint_in_cpu",
                "it chooses among a node's GPUs": "exclude include",
                "no field of the model section expresses it": "num_unique_layers soft_prompt_tuning.enabled use_mup",
                "model.sliding_window is not written for this trainer": "sliding_window_width",
            }
        ),
    },
)


def neox_config(spec: TrialSpec, template: Mapping[str, Any]) -> dict[str, Any]:
    """The template with the values of layout, model and rules; keys with underscores."""
    iterations = train_iterations(spec)
    return {
        **{key: value for key, value in neox_layout(spec, template).items() if key not in _WRITES_CHECKPOINTS},
        "train_iters": iterations,
        "lr_decay_iters": iterations,
        "log_interval": 1,
        "steps_per_print": NEVER,
        "eval_interval": NEVER,
        "seed": spec.seed,
    }


def neox_layout(spec: TrialSpec, template: Mapping[str, Any]) -> dict[str, Any]:
    """The template with the values of layout, model and batch, and its own length and checkpoints. Its loss scaling
    stays with fp16."""
    base = {key.replace("-", "_"): value for key, value in template.items()}
    dropped = ("bf16",) if spec.layout.precision == "fp16" else ("bf16", "fp16")
    kept = {key: value for key, value in base.items() if key not in dropped}
    zero = kept.get("zero_optimization") or {}
    kept["zero_optimization"] = {k: v for k, v in zero.items() if k not in ("offload_optimizer", "cpu_offload")}
    return merged(kept, nested(GPT_NEOX.written(spec)))


def neox_arguments(config: Mapping[str, Any]) -> list[str]:
    """The arguments of train.py, as deepy.py passes them: the whole configuration in base64."""
    return ["--megatron_config", base64.urlsafe_b64encode(json.dumps(config).encode()).decode()]


def neox_model_keys(model: ModelShape) -> dict[str, Any]:
    """Keys of a template by which GPT-NeoX, or an older release of it, would train another model, with the values for
    this one."""
    return {"activation": _activation_word(model), "mlp_type": "regular"}


NAME = "gpt-neox"

_CONFIG_FILE = "gpt_neox.yml"


def _invocation(spec: TrialSpec, python: str, folder: str) -> Invocation:
    config, given = neox_config(spec, spec.trainer["template"]), spec.trainer.get("arguments", ())
    # The file is only informative: train.py gets the configuration as an argument.
    files = {_CONFIG_FILE: plain_yaml(config)}
    return Invocation((python, spec.trainer["script"], *neox_arguments(config), *given), files)


def _files(spec: TrialSpec) -> dict[str, str]:
    return {_CONFIG_FILE: plain_yaml(neox_layout(spec, user_template(spec, NAME)))}


def _start(spec: TrialSpec) -> str:
    """GPT-NeoX refuses a key that is in two files, so the user's file holds only the other keys."""
    rest = "" if user_template(spec, NAME) else " YOUR_OTHER_KEYS.yml"
    script = script_or(spec, NAME, "train.py")
    arguments = f"{script} recipe/{_CONFIG_FILE}{rest}{own_arguments(spec, NAME)}"
    return f"{with_variables(spec)}python deepy.py {arguments}"


RULES: tuple[Rule, ...] = (
    *DEEPSPEED_RULES,
    half_precision_flash,
    *bf16_reductions,
    # megatron/model/transformer.py, ParallelMLP.forward
    clashes(
        "model.linear_biases",
        {"model.gated_mlp": (False,)},
        "GPT-NeoX adds biases in an MLP without a gate, and fails where there are none",
        values=(False,),
        fix="set model.gated_mlp to true, model.linear_biases to true, or use another engine",
    ),
    # "geglu" has the exact GELU.
    activations(("silu", "relu"), ("gelu", "relu", "silu")),
    *engine_limits(NAME, GPT_NEOX.limits),
)

_REFUSED = {"megatron-config": "a trial writes the configuration from the template"}

TRAINER = Trainer(
    rules={NAME: RULES},
    required_keys=("script", "template"),
    optional_keys=(*SCRIPT_KEYS, "observe"),
    argument_error=_REFUSED.get,
    table=GPT_NEOX,
    model_keys=neox_model_keys,
    invocation=_invocation,
    is_observed=True,
    log_format=MEGATRON_LOG,
    export=LayoutExport(NAME, "GPT-NeoX", NAME, RULES, _files, _start),
)
