"""Values that an import of a configuration must have read, by the configuration itself or its trainer's parser."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from benchmarks.import_expectations import Expected

Values = Mapping[str, Any]
_MEBI = 2**20


def load_config(path: Path) -> Any:
    """The YAML or JSON in a file; None if it is neither."""
    try:
        return json.loads(path.read_text()) if path.suffix == ".json" else yaml.safe_load(path.read_text())
    except (ValueError, yaml.YAMLError):
        return None


def flat(config: Any, above: str = "") -> dict[str, Any]:
    """The values of a nested configuration by dotted key."""
    if not isinstance(config, Mapping) or not config:
        return {above: config}
    found: dict[str, Any] = {}
    for key, value in config.items():
        found |= flat(value, f"{above}.{key}" if above else str(key))
    return found


def expected_of_config(project: str, config: Values, parsed: Values | None) -> Iterator[Expected]:
    """Expectations from a configuration; `parsed` are the values of the trainer's own parser, if it was asked."""
    readers: dict[str, Iterator[Expected]] = {"nanotron": _nanotron(flat(config)), "gpt-neox": _gpt_neox(parsed or {})}
    expected = readers.get(project) or (_accelerate(config) if "distributed_type" in config else _deepspeed(config))
    return (one for one in expected if one.value is not None)


def _nanotron(keys: Values) -> Iterator[Expected]:
    heads = keys.get("model.model_config.num_attention_heads", 32)
    for field, name, default in (
        ("num_layers", "num_hidden_layers", 32),
        ("hidden_size", "hidden_size", 4096),
        ("num_attention_heads", "num_attention_heads", 32),
        ("num_key_value_heads", "num_key_value_heads", heads),
        ("ffn_hidden_size", "intermediate_size", 11008),
        ("tied_embeddings", "tie_word_embeddings", False),
    ):
        value = keys.get(f"model.model_config.{name}")
        yield _key(f"model.{field}", default if value is None else value, f"model.model_config.{name}")
    yield _key("model.seq_length", keys.get("tokens.sequence_length"), "tokens.sequence_length")
    for field, name in (("tensor_parallel", "tp"), ("pipeline_parallel", "pp")):
        yield _key(f"layout.{field}", keys.get(f"parallelism.{name}"), f"parallelism.{name}")
    yield _key("layout.micro_batch_size", keys.get("tokens.micro_batch_size"), "tokens.micro_batch_size")
    yield _key("layout.zero_stage", keys.get("optimizer.zero_stage"), "optimizer.zero_stage")
    precision = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}.get(str(keys.get("model.dtype")))
    yield _key("layout.precision", precision, "model.dtype")
    recomputes = "full" if keys.get("parallelism.recompute_layer") else "none"
    yield _key("layout.activation_checkpointing", recomputes, "parallelism.recompute_layer")
    if keys.get("parallelism.tp", 1) > 1:
        is_split = str(keys.get("parallelism.tp_mode")).upper() == "REDUCE_SCATTER"
        yield _key("layout.sequence_parallel", is_split, "parallelism.tp_mode")
    if keys.get("parallelism.dp"):
        factors = ("tokens.micro_batch_size", "tokens.batch_accumulation_per_replica", "parallelism.dp")
        micro, steps, data = (keys.get(name) or 1 for name in factors)
        yield Expected("global_batch_size", micro * steps * data, factors)


def _gpt_neox(values: Values) -> Iterator[Expected]:
    for field, read, names in _GPT_NEOX:
        yield Expected(field, read(values) if values else None, names)


def _gated(values: Values) -> bool:
    return str(values.get("activation")) in ("geglu", "reglu", "swiglu", "bilinear", "glu")


def neox_ffn(values: Values) -> int:
    """Width of the MLP as megatron/model/transformer.py makes it: of a gated one both halves are in one matrix."""
    width = values.get("intermediate_size") or int((values.get("expansion_factor") or 4) * values["hidden_size"])
    multiple = values.get("mlp_multiple_of") or 1
    inner = int(width * 2 / 3) // 2 if _gated(values) else width
    return -(-inner // multiple) * multiple


def _neox_norm(values: Values) -> str:
    return "rmsnorm" if str(values["norm"]).endswith("rmsnorm") else "layernorm"


_ZERO_STAGE = ("zero_optimization.stage", "zero_stage", "zero_optimization")
_GPT_NEOX: tuple[tuple[str, Callable[[Values], Any], tuple[str, ...]], ...] = (
    ("model.num_layers", lambda v: v["num_layers"], ("num_layers",)),
    ("model.hidden_size", lambda v: v["hidden_size"], ("hidden_size",)),
    ("model.num_attention_heads", lambda v: v["num_attention_heads"], ("num_attention_heads",)),
    ("model.num_key_value_heads", lambda v: v["num_kv_heads"] or v["num_attention_heads"], ("num_kv_heads",)),
    ("model.ffn_hidden_size", neox_ffn, ("intermediate_size", "expansion_factor", "activation")),
    ("model.gated_mlp", _gated, ("activation",)),
    ("model.seq_length", lambda v: v["seq_length"], ("seq_length",)),
    ("model.tied_embeddings", lambda v: not v["no_weight_tying"], ("no_weight_tying",)),
    ("model.position_embedding", lambda v: v["pos_emb"], ("pos_emb",)),
    ("model.norm", _neox_norm, ("norm",)),
    ("layout.tensor_parallel", lambda v: v["model_parallel_size"], ("model_parallel_size",)),
    ("layout.pipeline_parallel", lambda v: max(1, v["pipe_parallel_size"]), ("pipe_parallel_size",)),
    (
        "layout.micro_batch_size",
        lambda v: v["train_micro_batch_size_per_gpu"],
        ("train_micro_batch_size_per_gpu", "train_batch_size", "gradient_accumulation_steps"),
    ),
    (
        "layout.precision",
        lambda v: {"fp16": "fp16", "bfloat16": "bf16"}.get(v["precision"], "fp32"),
        ("precision", "fp16", "bf16", "fp16.enabled", "bf16.enabled"),
    ),
    ("layout.zero_stage", lambda v: (v["zero_optimization"] or {}).get("stage", 0), _ZERO_STAGE),
    (
        "layout.activation_checkpointing",
        lambda v: "full" if v["checkpoint_activations"] else "none",
        ("checkpoint_activations",),
    ),
    ("layout.sequence_parallel", lambda v: bool(v["sequence_parallel"]), ("sequence_parallel",)),
)


def _deepspeed(config: Values) -> Iterator[Expected]:
    zero = config.get("zero_optimization")
    zero = zero if isinstance(zero, Mapping) else {}
    yield _key("global_batch_size", _whole(config.get("train_batch_size")), "train_batch_size")
    micro = _whole(config.get("train_micro_batch_size_per_gpu"))
    yield _key("layout.micro_batch_size", micro, "train_micro_batch_size_per_gpu")
    stage = zero.get("stage", 0)
    yield _key("layout.zero_stage", _whole(stage), "zero_optimization.stage")
    half = [name for name, key in (("bf16", "bf16"), ("bf16", "bfloat16"), ("fp16", "fp16")) if _enabled(config, key)]
    if not {"auto"} & {str((config.get(key) or {}).get("enabled")) for key in ("bf16", "fp16", "bfloat16")}:
        yield Expected("layout.precision", half[0] if half else "fp32", ("bf16", "fp16", "amp", "precision"))
    if stage in (1, 2, 3):
        overlap = zero.get("overlap_comm")
        overlap = stage == 3 if overlap is None else overlap
        yield _key(
            "layout.overlap_comm", overlap if isinstance(overlap, bool) else None, "zero_optimization.overlap_comm"
        )
        yield _key("layout.bucket_mib", _bucket(zero, half), "zero_optimization.reduce_bucket_size")
        device = (zero.get("offload_optimizer") or {}).get("device", "none")
        is_offloaded = device == "cpu" or zero.get("cpu_offload") is True
        yield Expected(
            "layout.offload",
            "optimizer" if is_offloaded else "none",
            ("zero_optimization.offload_optimizer", "zero_optimization.cpu_offload", "offload_optimizer"),
        )


def _bucket(zero: Values, half: list[str]) -> int | None:
    elements = zero.get("reduce_bucket_size")
    if type(elements) not in (int, float) or elements == 5e8:
        return None
    return max(1, round(elements * (2 if half else 4) / _MEBI))


def _enabled(config: Values, key: str) -> bool:
    section = config.get(key)
    return isinstance(section, Mapping) and section.get("enabled") is True


def _whole(value: Any) -> int | None:
    return value if type(value) is int else None


def _accelerate(config: Values) -> Iterator[Expected]:
    precision = {"bf16": "bf16", "fp16": "fp16", "no": "fp32"}.get(str(config.get("mixed_precision")))
    yield _key("layout.precision", precision, "mixed_precision")
    nodes, ranks = _whole(config.get("num_machines")), _whole(config.get("num_processes"))
    yield _key("cluster.num_nodes", nodes, "num_machines")
    if nodes and ranks:
        yield Expected("cluster.gpus_per_node", ranks // nodes, ("num_machines", "num_processes"))
    section = config.get("deepspeed_config")
    if config.get("distributed_type") == "DEEPSPEED" and isinstance(section, Mapping):
        yield _key("layout.zero_stage", _whole(section.get("zero_stage")), "deepspeed_config.zero_stage")
        is_offloaded = section.get("offload_optimizer_device") == "cpu"
        offload = "optimizer" if is_offloaded else "none"
        yield _key("layout.offload", offload, "deepspeed_config.offload_optimizer_device")
    section = config.get("fsdp_config")
    if config.get("distributed_type") == "FSDP" and isinstance(section, Mapping):
        strategy = str(section.get("fsdp_sharding_strategy", "FULL_SHARD"))
        stage = {"FULL_SHARD": 3, "1": 3, "SHARD_GRAD_OP": 2, "2": 2, "NO_SHARD": 0, "3": 0}.get(strategy)
        yield _key("layout.zero_stage", stage, "fsdp_config.fsdp_sharding_strategy")


def _key(field: str, value: Any, name: str) -> Expected:
    return Expected(field, value, (name,))
