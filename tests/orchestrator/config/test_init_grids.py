"""Grids of other programs as search files: values, notes and refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.config.init import render_from
from search_spaces.errors import InputError

NEMO = """\
train_settings:
  model_size_in_b: 5 # unit in billion parameters
  num_nodes: 2
  gpus_per_node: 8
  seq_length: 2048
  tensor_parallel_sizes: [1, 2, 4]
  pipeline_parallel_sizes: auto
  context_parallel_sizes: [1, 2]
  act_ckpt_layers: [0, 1]
"""
BRIDGE = """\
test_template_name = "MegatronBridge"

[cmd_args]
gpu_type = "h100"
hf_token = "not-to-be-copied"
gpus_per_node = 8
num_gpus = 16
compute_dtype = "fp8_cs"
mb = "2"
gb = 512
"""


def started_from(folder: Path, name: str, text: str) -> tuple[dict[str, Any], str]:
    """The search and its notes."""
    (folder / name).write_text(text)
    made, notes = render_from(folder / name)
    assert "not-to-be-copied" not in made
    return yaml.safe_load(made), " ".join(notes)


def test_a_grid_of_nemo_becomes_the_axes_of_a_search(tmp_path):
    search, told = started_from(tmp_path, "5b.yaml", NEMO)
    axes = {"tensor_parallel": [1, 2, 4], "pipeline_parallel": [1, 2, 4, 8, 16]}
    assert (axes | {"activation_checkpointing": ["none", "full"]}).items() <= search["space"].items()
    assert (search["cluster"]["num_nodes"], search["model"]["seq_length"], search["name"]) == (2, 2048, "5b")
    assert "a model of 5 billion parameters: num_layers, hidden_size" in told
    assert "Only context_parallel_sizes 1 is tried" in told


def test_of_megatron_bridge_the_gpu_is_known_and_no_secret_is_copied(tmp_path):
    search, told = started_from(tmp_path, "bridge.toml", BRIDGE)
    assert search["cluster"] == {"accelerator": "h100-80gb", "gpus_per_node": 8, "num_nodes": 2}
    assert (search["global_batch_size"], search["space"]["micro_batch_size"]) == (512, [2])
    assert "Parlay's trainer does not support precision fp8_cs: bf16 is used." in told


@pytest.mark.bad_input(12)
@pytest.mark.parametrize(
    ("name", "text", "key", "told"),
    [
        ("a.yaml", NEMO.replace("[1, 2, 4]", "[1, two]"), "tensor_parallel_sizes", "is [1, 'two']"),
        ("a.toml", BRIDGE.replace('"2"', "[0]"), "mb", "is [0]"),
    ],
)
def test_a_grid_that_cannot_be_is_refused_with_its_key(tmp_path, name, text, key, told):
    with pytest.raises(InputError) as refused:
        started_from(tmp_path, name, text)
    assert told in str(refused.value)
    assert refused.value.problems[0].key == key
    assert refused.value.problems[0].file == str(tmp_path / name)
