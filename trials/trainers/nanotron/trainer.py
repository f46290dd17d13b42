"""nanotron: its table, and its configuration file for a layout. Standard library only.

Key names: nanotron src/nanotron/config/{config,parallelism_config,models_config}.py.
Rules: nanotron src/nanotron/config and parallel/pipeline_parallel/engine.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from search_spaces.model_shape import ModelShape
from search_spaces.rules.engine_rules import too_few_micro_batches
from search_spaces.rules.rule import Rule, engine_limits
from trials.ranks.cuda_connections import ONE
from trials.trainers.base import NEVER, SCRIPT_KEYS, Invocation, LayoutExport, Trainer, train_iterations
from trials.trainers.common.log_lines import MIB_PER_GIB, LogFormat, labelled, number_in
from trials.trainers.common.recipe import own_arguments, script_or, torchrun, user_template
from trials.trainers.table import (
    Keys,
    Row,
    Table,
    by_option,
    fixed,
    merged,
    nested,
    number,
    plain,
    plain_yaml,
    switch,
    word,
)
from trials.trial import TrialSpec

_MODEL = "model.model_config."
_ACTIVATIONS = {"silu": "silu", "gelu": "gelu_pytorch_tanh", "relu": "relu", "squared_relu": "relu2"}


def _vocab_size(keys: Keys) -> int | None:
    """The padded vocabulary; None for -1, with which the tokens decide it."""
    if keys.value(f"{_MODEL}vocab_size") == -1:
        return None
    size = keys.count(f"{_MODEL}vocab_size") or 32000
    multiple = (keys.count("model.make_vocab_size_divisible_by") or 1) * (keys.count("parallelism.tp") or 1)
    return -(-size // multiple) * multiple


def _qkv_bias(keys: Keys) -> bool:
    """Qwen2's; a Llama ignores the key (models/llama.py)."""
    return keys.has(f"{_MODEL}is_qwen2_config") and keys.has(f"{_MODEL}attention_bias")


def _schedule(keys: Keys) -> str | None:
    """The schedule of more than one stage: by default all forward passes come first."""
    schedules, has_stages = {"1f1b": "1f1b", "afab": "gpipe"}, (keys.count("parallelism.pp") or 1) > 1
    found = keys.chosen("parallelism.pp_engine", schedules, "gpipe", "pipeline_schedule is 1f1b or gpipe")
    return found if has_stages else None


NANOTRON = Table(
    "nanotron",
    "2026-04-07 (2411b022)",
    rows=(
        number("num_layers", f"{_MODEL}num_hidden_layers", 32),
        number("hidden_size", f"{_MODEL}hidden_size", 4096),
        number("num_attention_heads", f"{_MODEL}num_attention_heads", 32),
        number("num_key_value_heads", f"{_MODEL}num_key_value_heads", 32, instead=(f"{_MODEL}num_attention_heads",)),
        number("ffn_hidden_size", f"{_MODEL}intermediate_size", 11008),
        plain("vocab_size", f"{_MODEL}vocab_size", _vocab_size),
        number("seq_length", "tokens.sequence_length"),
        Row("seq_length", lambda spec: {f"{_MODEL}max_position_embeddings": spec.model.seq_length}),
        switch("tied_embeddings", f"{_MODEL}tie_word_embeddings", False),
        Row(
            "rotary_base",
            lambda spec: {f"{_MODEL}rope_theta": float(spec.model.rotary_base)},
            lambda keys: keys.whole(f"{_MODEL}rope_theta"),
        ),
        word("activation", f"{_MODEL}hidden_act", _ACTIVATIONS),
        Row("qkv_bias", read=_qkv_bias),
        *fixed(gated_mlp=True, norm="rmsnorm", position_embedding="rotary"),
        number("tensor_parallel", "parallelism.tp"),
        number("pipeline_parallel", "parallelism.pp"),
        number("data_parallel", "parallelism.dp"),
        number("micro_batch_size", "tokens.micro_batch_size"),
        number("grad_accum_steps", "tokens.batch_accumulation_per_replica"),
        word("zero_stage", "optimizer.zero_stage", {0: 0, 1: 1}),
        word("activation_checkpointing", "parallelism.recompute_layer", {"none": False, "full": True}, "none"),
        word("sequence_parallel", "parallelism.tp_mode", {False: "ALL_REDUCE", True: "REDUCE_SCATTER"}, False),
        Row(
            "pipeline_schedule",
            lambda spec: {"parallelism.pp_engine": "afab" if spec.layout.pipeline_schedule == "gpipe" else "1f1b"},
            _schedule,
            ("none", "1f1b", "gpipe"),
        ),
        word("precision", "model.dtype", {"bf16": "bfloat16", "fp16": "float16"}, "bf16", {"float32": "fp32"}),
        Row(
            "attention_kernel",
            read=lambda keys: keys.chosen(
                f"{_MODEL}_attn_implementation",
                {"flash_attention_2": "flash", "sdpa": "flash"},
                "flash",
                "attention_kernel is math or flash; ring attention is context parallelism, which this trainer's"
                " layouts do not have",
            ),
            values=("flash",),
        ),
        *fixed(offload="none", overlap_comm=False, bucket_mib=None),
    ),
    trains_another=by_option(
        {
            "context parallelism is no axis of a layout with this trainer": "parallelism.context_parallel_size",
            "experts are not read from this trainer": f"""
                parallelism.expert_parallel_size {_MODEL}moe* {_MODEL}is_llamoe_config
                """,
            "no field of the model section expresses it": f"""
                {_MODEL}rope_scaling {_MODEL}no_rope_layer {_MODEL}flex_attention_mask {_MODEL}is_mamba_config
                """,
            "model.sliding_window is not written for this trainer": f"{_MODEL}sliding_window_size",
            "StarCoder2's layers are not read": f"{_MODEL}is_starcoder2_config",
        }
    ),
)


def nanotron_config(spec: TrialSpec, template: Mapping[str, Any]) -> dict[str, Any]:
    """The template with the values of layout, model and rules."""
    ours = {
        "general": {"seed": spec.seed},
        "checkpoints": {"checkpoint_interval": NEVER, "save_initial_state": False, "save_final_state": False},
        "logging": {"iteration_step_info_interval": 1},
        "tokens": {"train_steps": train_iterations(spec)},
    }
    return merged(nanotron_layout(spec, template), ours)


def nanotron_layout(spec: TrialSpec, template: Mapping[str, Any]) -> dict[str, Any]:
    """The template with the values of layout, model and batch, and its own length and checkpoints."""
    config = merged(template, nested(NANOTRON.written(spec)))
    if spec.model.qkv_bias:
        config["model"]["model_config"] = _as_qwen2(config["model"]["model_config"])
    if not spec.layout.sequence_parallel:
        config["parallelism"]["tp_linear_async_communication"] = False  # it requires reduce_scatter
    return config


def nanotron_model_keys(model: ModelShape) -> dict[str, Any]:
    """Keys of a template by which nanotron would train another model, with the values for this one."""
    return {f"{_MODEL}hidden_act": _ACTIVATIONS[model.mlp_activation], f"{_MODEL}attention_bias": model.qkv_bias}


def _as_qwen2(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration as Qwen2Config, with biases of queries, keys and values."""
    kept = {key: value for key, value in config.items() if key != "is_llama_config"}
    return {**kept, "is_qwen2_config": True, "attention_bias": True}


NAME = "nanotron"

_CONFIG_FILE = "nanotron.yaml"


def _invocation(spec: TrialSpec, python: str, folder: str) -> Invocation:
    given = spec.trainer.get("arguments", ())
    words = (python, spec.trainer["script"], "--config-file", f"{folder}/{_CONFIG_FILE}", *given)
    config = nanotron_config(spec, spec.trainer["template"])
    return Invocation(words, {_CONFIG_FILE: plain_yaml(config)}, ONE)


def _log_rank(spec: TrialSpec) -> int:
    """The first rank of the last stage."""
    return spec.layout.mesh.rank(pp=spec.layout.pipeline_parallel - 1)


def _files(spec: TrialSpec) -> dict[str, str]:
    return {_CONFIG_FILE: plain_yaml(nanotron_layout(spec, user_template(spec, NAME)))}


def _start(spec: TrialSpec) -> str:
    config = f"recipe/{_CONFIG_FILE}" if user_template(spec, NAME) else "YOUR_CONFIG_WITH_THESE_KEYS.yaml"
    start = f"{torchrun(spec, ONE)} {script_or(spec, NAME, 'run_train.py')} --config-file {config}"
    return start + own_arguments(spec, NAME)


RULES: tuple[Rule, ...] = (
    too_few_micro_batches(1, "nanotron's 1F1B needs at least pipeline_parallel - 1 micro-batches a step"),
    *engine_limits(NAME, NANOTRON.limits),
)

_PREFIXED = r"([-+]?\d+\.?\d*(?:[eE][-+]?\d+)?|nan|inf)([KMBGTP]?)"
_LOG = LogFormat(
    {
        "iteration": number_in(r"\biteration: (\d+) / \d+ \|"),
        "step_time_ms": labelled(r"\belapsed_time_per_iteration_ms:", number=_PREFIXED),
        "loss": labelled(r"\blm_loss:", number=_PREFIXED),
        "grad_norm": labelled(r"\bgrad_norm:", number=_PREFIXED),
        # Only whole numbers: a larger batch is rounded to three digits, such as 1.02K.
        "global_batch_size": labelled(r"\bglobal_batch_size:", number=r"(\d+)"),
        "tokens_per_sec": labelled(r"\btokens_per_sec:", number=_PREFIXED),
        "tokens_per_sec_per_gpu": labelled(r"\btokens_per_sec_per_gpu:", number=_PREFIXED),
        "tflops": labelled(r"\bmodel_tflops_per_gpu:", number=_PREFIXED),
        "memory_gib": labelled(r"\bcuda_max_memory_reserved:", number=_PREFIXED, factor=2**-30),
    },
    {"memory_gib": number_in(r"Peak reserved: ([\d.]+)MiB", 1 / MIB_PER_GIB)},
)

_REFUSED = {"config-file": "a trial writes the configuration from the template"}

TRAINER = Trainer(
    rules={NAME: RULES},
    required_keys=("script", "template"),
    optional_keys=(*SCRIPT_KEYS, "observe"),
    argument_error=_REFUSED.get,
    table=NANOTRON,
    model_keys=nanotron_model_keys,
    invocation=_invocation,
    is_observed=True,
    log_format=_LOG,
    log_rank=_log_rank,
    export=LayoutExport(NAME, "nanotron", NAME, RULES, _files, _start),
)
