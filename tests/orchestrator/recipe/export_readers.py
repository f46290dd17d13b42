"""Reads exports back as their trainers would: by the trainer's list of options, then as a layout."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

import yaml

from orchestrator.importers.accelerate import read_accelerate
from orchestrator.importers.gpt_neox import read_gpt_neox
from orchestrator.importers.launch_script import read_launch_script
from orchestrator.importers.nanotron import read_nanotron
from orchestrator.importers.torchtitan.module import read_module
from search_spaces.engines import ACCELERATE_LAUNCH, TORCHTITAN
from search_spaces.layouts.layout import Layout
from search_spaces.model_shape import MODEL_DEFAULTS
from tests.trials.trainers.verified_options import (
    BRIDGE_MAY_BE_NULL,
    GPT_NEOX,
    MEGATRON_BRIDGE,
    MEGATRON_DEEPSPEED,
    MEGATRON_LM,
    NANOTRON,
    parsed_options,
    require_declared,
)
from trials.trainers.torchtitan.module import CONFIG_FILE
from trials.trial import TrialSpec

Read = tuple[Layout, dict[str, Any]]
"""The canonical layout, and what is said of the model in ModelShape's names."""


def words_of(text: str) -> list[str]:
    """Arguments in a file, as `$(grep -v '^#' FILE)` passes them."""
    return [word for line in text.splitlines() if not line.startswith("#") for word in line.split()]


def read_export(trainer: str, files: Mapping[str, str], spec: TrialSpec) -> Read:
    """`spec` gives only the number of nodes and of ranks per node, which are in the command line."""
    layout, model = _READERS[trainer](files, spec)
    return layout.canonical(), {**MODEL_DEFAULTS, **model}


def _megatron_lm(files: Mapping[str, str], spec: TrialSpec) -> Read:
    words = words_of(files["megatron_args.txt"])
    parsed_options(words, MEGATRON_LM)
    found = read_launch_script(f"{_torchrun(spec)} {shlex.join(words)}")
    assert found.global_batch_size == spec.global_batch_size
    return Layout(**found.layout, engine="megatron-lm"), _without_vocabulary(found.model)


def _megatron_deepspeed(files: Mapping[str, str], spec: TrialSpec) -> Read:
    words = [*words_of(files["megatron_deepspeed_args.txt"]), "--deepspeed_config", "ds.json"]
    parsed_options(words, MEGATRON_DEEPSPEED)
    config = files["megatron_deepspeed_config.json"]
    found = read_launch_script(f"cat > ds.json <<EOF\n{config}\nEOF\n{_torchrun(spec)} {' '.join(words)}")
    assert found.global_batch_size == spec.global_batch_size
    return Layout(**found.layout, engine="megatron-deepspeed"), _without_vocabulary(found.model)


def _without_vocabulary(model: Mapping[str, Any]) -> dict[str, Any]:
    """The model but for the vocabulary: an export has no tokenizer, which is the user's with the data."""
    return {name: value for name, value in model.items() if name != "vocab_size"}


def _torchrun(spec: TrialSpec, program: str = "pretrain_gpt.py") -> str:
    return f"torchrun --nnodes {spec.num_nodes} --nproc_per_node {spec.gpus_per_node} {program}"


def _gpt_neox(files: Mapping[str, str], spec: TrialSpec) -> Read:
    require_declared(yaml.safe_load(files["gpt_neox.yml"]), GPT_NEOX, frozenset())
    found = read_gpt_neox(files["gpt_neox.yml"])
    assert found.global_batch_size == spec.global_batch_size
    model = {name: value for name, value in found.model.items() if name != "vocab_size"}  # the tokenizer decides it
    return Layout(**found.layout, num_nodes=spec.num_nodes, engine="gpt-neox"), model


def _nanotron(files: Mapping[str, str], spec: TrialSpec) -> Read:
    require_declared(dict(_flat(yaml.safe_load(files["nanotron.yaml"]))), NANOTRON, frozenset())
    found = read_nanotron(files["nanotron.yaml"])
    assert found.global_batch_size == spec.global_batch_size
    return Layout(**found.layout, num_nodes=spec.num_nodes, engine="nanotron"), dict(found.model)


def _flat(config: Mapping[str, Any], prefix: str = ""):
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _megatron_bridge(files: Mapping[str, str], spec: TrialSpec) -> Read:
    words = words_of(files["nemo_overrides.txt"])
    said = {key: _value(text) for key, text in (word.split("=", 1) for word in words)}
    require_declared(said, MEGATRON_BRIDGE, BRIDGE_MAY_BE_NULL)
    found = read_launch_script(f"{_torchrun(spec, 'run_recipe.py')} --recipe llama3_8b_config {' '.join(words)}")
    assert found.global_batch_size == spec.global_batch_size
    assert found.left_open == ()
    return Layout(**found.layout, engine="megatron-lm"), dict(found.model)


def _torchtitan(files: Mapping[str, str], spec: TrialSpec) -> Read:
    found = read_module(files[CONFIG_FILE])
    assert found.global_batch_size == spec.global_batch_size
    assert (found.notes, found.left_open, found.in_doubt) == ((), (), ())
    return Layout(**found.layout, num_nodes=spec.num_nodes, engine=TORCHTITAN), dict(found.model)


def _accelerate(files: Mapping[str, str], spec: TrialSpec) -> Read:
    """The batch and the kernel are in the user's script."""
    found = read_accelerate(files["accelerate.yaml"])
    assert (found.num_nodes, found.gpus_per_node) == (spec.num_nodes, spec.gpus_per_node)
    of_the_script = ("micro_batch_size", "grad_accum_steps", "attention_kernel")
    said = {**{name: getattr(spec.layout, name) for name in of_the_script}, **found.layout}
    return Layout(**said, engine=ACCELERATE_LAUNCH), {}


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
    "accelerate": _accelerate,
}
