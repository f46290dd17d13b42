"""Every layout is exported and read back as the same one, or refused with a rule."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from orchestrator.config.importers.accelerate import read_accelerate
from orchestrator.config.importers.gpt_neox import read_gpt_neox
from orchestrator.config.importers.imported_config import ImportedConfig
from orchestrator.config.importers.launch_script import read_launch_script
from orchestrator.config.importers.nanotron import read_nanotron
from orchestrator.config.importers.registry import read_automodel
from orchestrator.config.importers.torchtitan.saved import read_module
from orchestrator.recipe.exports import ExportStatus
from search_spaces.adapters import Adapters
from search_spaces.engines import ACCELERATE_LAUNCH, OWN_ENGINES, TORCHTITAN
from search_spaces.layouts.layout import AXES, EXPERT_GROUPS, Layout
from search_spaces.layouts.pipeline_split import SPLIT_FIELDS, chunk_layers
from search_spaces.model_shape import MODEL_DEFAULTS, RESOLVED_FIELDS, ModelShape
from search_spaces.schema.presets import MODELS, preset, preset_names
from search_spaces.schema.sections import ModelSection
from search_spaces.schema.validation import validate
from tests.oracles.cases import SHAPES, export_cases
from tests.orchestrator.recipe.exported import NOT_OURS, exported, half, our_spec
from tests.search_spaces.layouts.strategies import FIELD_VALUES, values_of
from tests.trials.trainers.specs import GPT2, LLAMA
from tests.trials.trainers.verified_options import (
    GPT_NEOX,
    MEGATRON_BRIDGE,
    MEGATRON_DEEPSPEED,
    MEGATRON_LM,
    NANOTRON,
    given_options,
    require_declared,
)
from trials.trainers.torchtitan.trainer import CONFIG_FILE
from trials.trial import TrialSpec

pytestmark = pytest.mark.slow

_ANY = FIELD_VALUES | {
    "num_nodes": st.just(1),
    "tensor_parallel": st.sampled_from([1, 2]),
    "pipeline_parallel": st.sampled_from([1, 2, 4]),
    "data_parallel": st.sampled_from([1, 2]),
    "grad_accum_steps": st.integers(1, 8),
    "virtual_pipeline_stages": st.sampled_from([1, 2]),
    "engine": st.sampled_from(OWN_ENGINES),
    "bucket_mib": values_of("bucket_mib", most=500),
    **dict.fromkeys(EXPERT_GROUPS, st.just(1)),
}
_USUAL = _ANY | {
    "precision": st.sampled_from(["bf16", "fp16"]),
    "attention_kernel": st.just("flash"),
    "torch_compile": st.just(False),
    "matmul_precision": st.just("same"),
    "grad_accum_steps": st.just(8),
    "zero_stage": st.integers(0, 1),
    "offload": st.just("none"),
}
_OVERLAPPED = {"overlap_comm": st.just(True)}
_PLAIN = {"overlap_comm": st.just(False), "bucket_mib": st.none(), "rank_order": st.just("tp-dp-pp")}
_OF_TORCHTITAN = {
    "precision": st.sampled_from(["fp32", "bf16"]),
    "attention_kernel": st.sampled_from(["flex", "flash"]),
    "zero_stage": st.sampled_from([0, 2, 3]),
    "recompute_modules": st.just("ops"),
    "data_parallel_replicas": st.just(1),
    "tensor_parallel_overlap": st.just(False),
    "matmul_precision": FIELD_VALUES["matmul_precision"],
    "engine": st.just(TORCHTITAN),
}
ENGINES = {"megatron-bridge": "megatron-lm", **dict.fromkeys(("accelerate", "nemo-automodel"), ACCELERATE_LAUNCH)}
"""Engines with another name than their trainer."""
_DATA_PARALLEL = _PLAIN | {
    "tensor_parallel": st.just(1),
    "pipeline_parallel": st.just(1),
    "data_parallel": st.sampled_from([1, 2, 4]),
    "zero_stage": st.sampled_from([0, 2, 3]),
    "data_parallel_replicas": st.sampled_from([1, 2]),
}
_MIXTURE = (_ANY, _USUAL | _OVERLAPPED, _USUAL | _PLAIN, _USUAL | _PLAIN | _OF_TORCHTITAN, _ANY | _DATA_PARALLEL)
layouts = st.one_of(*(st.builds(Layout, **fields) for fields in _MIXTURE)).map(Layout.canonical)
"""Anything, most of which some rule refuses, and what most trainers run."""


@given(layout=layouts, model=st.sampled_from([GPT2, LLAMA]))
@example(layout=Layout(grad_accum_steps=8, context_parallel=2, precision="bf16", attention_kernel="flash"), model=GPT2)
@example(layout=Layout(grad_accum_steps=8, precision="bf16", attention_kernel="flash", settings="env.A=1"), model=GPT2)
def test_every_layout_is_exported_and_read_back_or_refused_with_a_rule(layout, model):
    made = exported(our_spec(layout, model))
    assert set(made) == {"deepspeed", *NOT_OURS}
    for trainer in NOT_OURS:
        export = made[trainer]
        if export.status is ExportStatus.REFUSED:
            assert not export.files
            assert export.unrun_start is None
            assert (export.rule or "").startswith(f"{trainer}.")
            assert export.message
            continue
        read, said = read_export(trainer, export.files, our_spec(layout, model))
        # Settings are on the start line, not in the files.
        assert read == replace(layout.without_settings, engine=ENGINES.get(trainer, trainer)).canonical()
        assert said.items() <= asdict(model).items()


@pytest.mark.parametrize("shape", ["qwen3-moe", "deepseek", "latent"])
@pytest.mark.parametrize("trainer", ["megatron-lm", "megatron-bridge"])
def test_experts_latent_attention_and_further_tokens_are_read_back(trainer, shape):
    model = SHAPES[shape]
    degrees = dict.fromkeys(EXPERT_GROUPS, 2) if model.num_experts else {}
    layout = half(zero_stage=1, tensor_parallel=2, data_parallel=4, sequence_parallel=True, **degrees)
    spec = our_spec(layout, model)
    found, read_model = read_export(trainer, exported(spec)[trainer].files, spec)
    assert found == replace(layout, engine="megatron-lm")
    assert ModelShape(**{"vocab_size": model.vocab_size, **read_model}) == model


@pytest.mark.parametrize(
    ("trainer", "adapters", "zero_stage", "start"),
    [
        ("megatron-bridge", Adapters(8, "lora", 32, ("linear_qkv", "linear_fc2")), 1, "--recipe YOUR_FINETUNE_RECIPE "),
        ("nemo-automodel", Adapters(8, "lora", 32, ("q_proj", "v_proj")), 3, "-m nemo_automodel.cli.app "),
        ("nemo-automodel", Adapters(16, "qlora"), 2, "-m nemo_automodel.cli.app "),
    ],
)
def test_adapters_are_read_back_with_their_layout(trainer, adapters, zero_stage, start):
    spec = our_spec(half(tensor_parallel=2, zero_stage=zero_stage), replace(LLAMA, adapters=adapters, trainable=()))
    export = exported(spec)[trainer]
    found = _READERS[trainer](export.files, spec)
    assert Adapters(**{**found.adapters, "target_modules": tuple(found.adapters["target_modules"])}) == adapters
    layout, _ = read_export(trainer, export.files, spec)
    assert layout == replace(spec.layout, engine=ENGINES[trainer]).canonical()
    assert start in str(export.unrun_start)


@pytest.mark.walks
@pytest.mark.parametrize("trainer", NOT_OURS)
def test_layouts_that_cover_the_axes_are_read_back_as_they_were_exported(trainer):
    for case in export_cases(trainer):
        spec = replace(case.spec, gpus_per_node=case.spec.num_gpus // case.spec.num_nodes)
        layout, said = read_export(trainer, case.files, spec)
        exported_layout = replace(spec.layout, engine=ENGINES.get(trainer, trainer)).canonical()
        names = AXES.keys() - (SPLIT_FIELDS if layers_of(layout, spec) == layers_of(exported_layout, spec) else ())
        assert other_values(layout, exported_layout, names) == {}, case.files
        assert other_values(as_said(said, spec.model), spec.model, said) == {}, case.files


@pytest.mark.parametrize("trainer", ["megatron-lm", "megatron-bridge", "torchtitan"])
def test_chunks_of_a_stage_with_different_numbers_of_layers_are_read_back(trainer):
    kernel = {"attention_kernel": "flex"} if trainer == "torchtitan" else {}
    stages = {"pipeline_parallel": 2, "virtual_pipeline_stages": 2, "last_stage_layers": 3}
    spec = our_spec(half(**stages, **kernel, pipeline_schedule="interleaved_1f1b"), replace(LLAMA, num_layers=7))
    files = exported(spec)[trainer].files
    assert trainer == "torchtitan" or "Ett|tt|tt|tL" in "".join(files.values())
    layout, _ = read_export(trainer, files, spec)
    assert layers_of(layout, spec) == layers_of(spec.layout, spec) == (2, 2, 2, 1)


@pytest.mark.parametrize("name", preset_names(MODELS))
def test_a_ready_made_model_is_read_back_from_each_export_or_refused_with_a_rule(name):
    model = validate(ModelSection, preset(MODELS, name)).shape()
    for trainer in NOT_OURS:
        kernel = {"attention_kernel": "flex"} if trainer == "torchtitan" else {}
        spec = our_spec(half(zero_stage=0, **kernel), model)
        export = exported(spec)[trainer]
        if export.status is ExportStatus.REFUSED:
            assert (export.rule or "").startswith(f"{trainer}.")
            continue
        _, said = read_export(trainer, export.files, spec)
        assert other_values(as_said(said, model), model, said) == {}, trainer


def layers_of(layout: Layout, spec: TrialSpec) -> tuple[int, ...]:
    """The layers of each chunk, by which an engine's own split may have the name of another."""
    return chunk_layers(spec.model, layout)


def as_said(said: dict[str, Any], model: ModelShape) -> ModelShape:
    """The model as an export says it; what it cannot say, such as the size of a vocabulary, is the model's."""
    return replace(model, **said)


def other_values(found: Any, expected: Any, names: Any) -> dict[str, tuple[Any, Any]]:
    """The fields that differ, with both values."""
    pairs = {name: [getattr(each, RESOLVED_FIELDS.get(name, name)) for each in (found, expected)] for name in names}
    return {name: (one, other) for name, (one, other) in pairs.items() if one != other}


def words_of(text: str) -> list[str]:
    """Arguments in a file, as `$(grep -v '^#' FILE)` passes them."""
    return [word for line in text.splitlines() if not line.startswith("#") for word in line.split()]


def read_export(trainer: str, files: Mapping[str, str], spec: TrialSpec) -> tuple[Layout, dict[str, Any]]:
    """The canonical layout, and what is said of the model in ModelShape's names.

    `spec` gives only the number of nodes and of ranks per node, which are in the command line.
    """
    found, of_the_script = _READERS[trainer](files, spec), {}
    if trainer == "accelerate":
        assert (found.num_nodes, found.gpus_per_node) == (spec.num_nodes, spec.gpus_per_node)
        names = ("micro_batch_size", "grad_accum_steps", "attention_kernel")
        of_the_script = {name: getattr(spec.layout, name) for name in names}
    else:
        assert found.global_batch_size == spec.global_batch_size
    said = {"num_nodes": spec.num_nodes, **of_the_script, **found.layout}
    model = dict(found.model)
    if trainer in _WITHOUT_VOCABULARY:
        model.pop("vocab_size", None)
    own = {**MODEL_DEFAULTS, **model} if model else {}
    return Layout(**said, engine=ENGINES.get(trainer, trainer)).canonical(), own


_WITHOUT_VOCABULARY = ("megatron-lm", "megatron-deepspeed", "gpt-neox")
"""Their exports have no tokenizer, which is the user's with the data."""


def _megatron_lm(files: Mapping[str, str], spec: TrialSpec) -> ImportedConfig:
    words = words_of(files["megatron_args.txt"])
    given_options(words, MEGATRON_LM)
    return read_launch_script(f"{_torchrun(spec)} {shlex.join(words)}")


def _megatron_deepspeed(files: Mapping[str, str], spec: TrialSpec) -> ImportedConfig:
    words = words_of(files["megatron_deepspeed_args.txt"])
    given_options(words, MEGATRON_DEEPSPEED)
    config = files["megatron_deepspeed_config.json"]
    return read_launch_script(
        f"cat > ds.json <<EOF\n{config}\nEOF\n{_torchrun(spec)} {' '.join(words)} --deepspeed_config ds.json"
    )


def _torchrun(spec: TrialSpec, program: str = "pretrain_gpt.py") -> str:
    return f"torchrun --nnodes {spec.num_nodes} --nproc_per_node {spec.gpus_per_node} {program}"


def _megatron_bridge(files: Mapping[str, str], spec: TrialSpec) -> ImportedConfig:
    words = words_of(files["nemo_overrides.txt"])
    said = {key: _value(text) for key, text in (word.split("=", 1) for word in words)}
    require_declared(said, MEGATRON_BRIDGE)
    found = read_launch_script(f"{_torchrun(spec, 'run_recipe.py')} --recipe llama3_8b_config {shlex.join(words)}")
    assert found.left_open == ()
    return found


def _gpt_neox(files: Mapping[str, str], spec: TrialSpec) -> ImportedConfig:
    require_declared(yaml.safe_load(files["gpt_neox.yml"]), GPT_NEOX)
    return read_gpt_neox(files["gpt_neox.yml"])


def _nanotron(files: Mapping[str, str], spec: TrialSpec) -> ImportedConfig:
    require_declared(yaml.safe_load(files["nanotron.yaml"]), NANOTRON)
    return read_nanotron(files["nanotron.yaml"])


def _torchtitan(files: Mapping[str, str], spec: TrialSpec) -> ImportedConfig:
    found = read_module(files[CONFIG_FILE])
    assert (found.notes, found.left_open, found.in_doubt) == ((), (), ())
    return found


def _value(text: str) -> Any:
    """Parse a value as Hydra does: JSON's words and numbers, a list of words, else the text itself."""
    if text.startswith("["):
        return text.strip("[]").split(",")
    try:
        return json.loads(text)
    except ValueError:
        return text


_READERS = {
    "megatron-lm": _megatron_lm,
    "megatron-deepspeed": _megatron_deepspeed,
    "megatron-bridge": _megatron_bridge,
    "gpt-neox": _gpt_neox,
    "nanotron": _nanotron,
    TORCHTITAN: _torchtitan,
    "accelerate": lambda files, spec: read_accelerate(files["accelerate.yaml"]),
    "nemo-automodel": lambda files, spec: read_automodel(files["nemo_automodel.yaml"]),
}
