"""Each option is read, has no effect, is noted or refused, as its table says."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from orchestrator.importers.imported_config import ImportedConfig
from orchestrator.importers.settings import Setting
from orchestrator.importers.torchtitan.config import imported_settings
from orchestrator.importers.torchtitan.options import TORCHTITAN_OPTIONS
from orchestrator.importers.torchtitan.registry import flavor
from search_spaces.errors import InputError
from search_spaces.layouts.layout import AXES
from search_spaces.layouts.pipeline_split import SPLIT_FIELDS
from tests.orchestrator.importers.config_tables import require_table

BASE = {**flavor("debugmodel"), "parallelism.data_parallel_shard_degree": 2}
PIPELINE = {
    **BASE,
    "parallelism.pipeline_parallel_degree": 2,
    "parallelism.pipeline_parallel_layers_per_stage": 4,
    "activation_checkpoint": "full",
    "compile.enable": True,
}

TWO_STAGES = {"pipeline_parallel_degree": 2}
FLOAT8 = {"model_spec__float8__recipe_name": "rowwise"}


def read(text: str) -> ImportedConfig:
    """The import of options by dotted name, as YAML."""
    return imported_settings({name: Setting(value) for name, value in flattened(yaml.safe_load(text)).items()})


def flattened(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        found |= flattened(value, f"{name}.") if isinstance(value, dict) else {name: value}
    return found


def imported(**options: Any) -> ImportedConfig:
    return imported_settings({**{name: Setting(value) for name, value in BASE.items()}, **given(options)})


def listed(*layers: int) -> list[list[str]]:
    """Names of the modules of chunks with so many layers."""
    firsts = [sum(layers[:n]) for n in range(len(layers))]
    names = [[f"layers.{first + n}" for n in range(count)] for first, count in zip(firsts, layers, strict=True)]
    return [["tok_embeddings", *names[0]], *names[1:-1], [*names[-1], "norm", "lm_head"]]


def split(*layers: int) -> dict[str, Any]:
    """Options of a stage a list, with so many layers."""
    part = "parallelism__module_fqns_per_model_part"
    return {"parallelism__pipeline_parallel_degree": len(layers), part: listed(*layers)}


def given(options: dict[str, Any]) -> dict[str, Setting]:
    return {name.replace("__", "."): Setting(value) for name, value in options.items()}


def test_the_batch_is_a_local_batch_unless_said_and_the_reader_keeps_to_its_table(monkeypatch):
    assert imported().global_batch_size == 16
    found = imported(training__global_batch_size=64)
    assert (found.global_batch_size, found.layout["grad_accum_steps"]) == (64, 4)
    fp8 = {"model_spec.float8.recipe_name": "rowwise", "model_spec.float8.emulate": False}
    qwen3 = {"model_spec.name": "qwen3", "model_spec.num_experts": 8}
    others = [{**BASE, "optimizer.param_groups": [], **fp8}, PIPELINE, {**BASE, **qwen3}]
    require_table(read, TORCHTITAN_OPTIONS, BASE, others, monkeypatch)


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        ({}, {"zero_stage": 3, "data_parallel": 2, "data_parallel_replicas": 1}),
        ({"fsdp_reshard_after_forward": "never"}, {"zero_stage": 2}),
        (TWO_STAGES, {"zero_stage": 2, "micro_batch_size": 1, "grad_accum_steps": 8}),
        ({**TWO_STAGES, "pipeline_parallel_microbatch_size": 4}, {"micro_batch_size": 4, "grad_accum_steps": 2}),
        ({**TWO_STAGES, "pipeline_parallel_schedule": "interleaved1f1b"}, {"pipeline_schedule": "interleaved_1f1b"}),
        (
            {"pipeline_parallel_schedule": "Interleaved1F1B", "pipeline_parallel_layers_per_stage": 1, **TWO_STAGES},
            {"virtual_pipeline_stages": 4},
        ),
        (
            {"data_parallel_replicate_degree": 4, "data_parallel_shard_degree": 1, "context_parallel_degree": 2},
            {"data_parallel": 4, "data_parallel_replicas": 4, "context_parallel": 2, "zero_stage": 3},
        ),
        ({"tensor_parallel_degree": 2, "enable_sequence_parallel": False}, {"sequence_parallel": False}),
        ({}, {"precision": "bf16", "torch_compile": False, "activation_checkpointing": "selective"}),
        ({"training__mixed_precision_param": "float32", "training__dtype": "bfloat16"}, {"precision": "bf16"}),
    ],
)
def test_options_give_their_fields(options, fields):
    """Options of parallelism have their last name."""
    others = ("activation_checkpoint", "training", "compile", "model_spec")
    named = {name if name.startswith(others) else f"parallelism__{name}": value for name, value in options.items()}
    layout = imported(**named).layout
    assert {name: layout.get(name) for name in fields} == fields


@pytest.mark.parametrize(
    ("options", "note"),
    [
        (FLOAT8, "The training multiplies its head in 8 bits, too"),
        (
            {**FLOAT8, "model_spec__float8__filter_fqns": ["lm_head", "attention.wo", "auto_filter_small_kn"]},
            "The training leaves layers named attention.wo, auto_filter_small_kn in bf16",
        ),
        ({"model_spec__attn_backend": "flex_flash"}, "FlexAttention has another backend"),
        ({"compile__enable": True, "compile__components": ["loss"]}, "Trials compile the blocks"),
    ],
)
def test_differences_are_noted(options, note):
    assert [each for each in imported(**options).notes if each.startswith(note)]


@pytest.mark.parametrize(
    ("options", "changed"),
    [
        ({}, "training.disable_cuda_graphs"),
        ({"training__disable_cuda_graphs": True}, None),
        ({"training__disable_cuda_graphs": True, "training__dtype": "bfloat16"}, "training.dtype"),
        (split(1, 2, 1, 2), "parallelism.module_fqns_per_model_part"),
        (split(1, 5), None),
    ],
)
def test_what_trials_would_train_otherwise_is_another_baseline(options, changed):
    assert [problem.key for problem in imported(**options).changed] == [name for name in [changed] if name]


@pytest.mark.parametrize(
    ("stages", "layers", "said"),
    [
        (2, (3, 3), {}),
        (2, (1, 5), {"first_stage_layers": 1}),
        (2, (1, 2, 1, 2), {"first_stage_layers": 2, "virtual_pipeline_stages": 2}),
        (5, (1, 1, 1, 1, 2), {"last_stage_layers": 2}),
        (3, (1, 3, 2), {"first_stage_layers": 1, "last_stage_layers": 2}),
    ],
)
def test_lists_of_modules_are_the_split_that_they_say(stages, layers, said):
    found = imported(**split(*layers) | {"parallelism__pipeline_parallel_degree": stages})
    usual = {name: AXES[name].default for name in (*SPLIT_FIELDS, "virtual_pipeline_stages")}
    assert {name: found.layout.get(name, usual[name]) for name in usual} == usual | said
    of_lists = {name: found.origins[f"baseline.{name}"] for name in SPLIT_FIELDS if name in said}
    assert {*of_lists.values()} <= {"parallelism.module_fqns_per_model_part"}


@pytest.mark.parametrize(
    ("layers", "word"),
    [((4, 4), "even"), ((2, 2, 2, 1), "own"), ((1, 2, 2, 2), "embedding"), ((2, 3, 3, 2), "embedding+loss")],
)
def test_lists_of_modules_that_a_rule_splits_are_named_by_the_rule(layers, word):
    """The engine's own rule gives 7 and 1 layers of 8 with this vocabulary, and 2, 2, 2 and 1 of 7."""
    model = {"model_spec__vocab_size": 128_256, "model_spec__n_layers": sum(layers)}
    found = imported(**model, **split(*layers))
    assert found.layout.get("pipeline_split", "own") == word


@pytest.mark.parametrize(
    ("option", "value", "rule"),
    [
        ("parallelism__fsdp_reshard_after_forward", "sometimes", "default, always and never"),
        ("parallelism__tensor_parallel_degree", 0, "at least 1"),
        ("activation_checkpoint", "memory-budget", "not a memory budget"),
        ("model_spec__name", "llama4", "torchtitan's llama3 or qwen3"),
        ("model_spec__attn_backend", "sdpa", "flex or flash"),
    ],
)
def test_what_no_search_file_expresses_is_refused_by_name(option, value, rule):
    with pytest.raises(InputError, match=rule) as refused:
        imported(**{option: value})
    assert [problem.key for problem in refused.value.problems] == [option.replace("__", ".")]


def test_a_schedule_and_micro_batches_that_no_pipeline_of_a_search_has_are_refused():
    stages = {"parallelism__pipeline_parallel_degree": 2}
    with pytest.raises(InputError, match="pipeline_schedule is one of gpipe"):
        imported(**stages, parallelism__pipeline_parallel_schedule="LoopedBFS")
    with pytest.raises(InputError, match="local_batch_size is a multiple of it"):
        imported(**stages, parallelism__pipeline_parallel_microbatch_size=3)
    with pytest.raises(InputError, match="as many lists of modules"):
        imported(**split(1, 4, 1) | stages)
