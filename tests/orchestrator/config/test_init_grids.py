"""Grids of other programs as search files: values, notes and refusals."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.config.init import render_from
from orchestrator.config.loader import load_search_file
from orchestrator.config.spec import SearchSpec
from orchestrator.planning.candidates import candidates_of
from search_spaces.errors import InputError

NEMO = """\
train_settings:
  model_size_in_b: 5 # unit in billion parameters
  num_nodes: 2
  gpus_per_node: 8
  gpu_memory_gb: 80
  vocab_size: 51200
  seq_length: 2048
  tensor_parallel_sizes: [1, 2, 4]
  pipeline_parallel_sizes: auto
  context_parallel_sizes: [1, 2]
  min_model_parallel_size: 2
  max_model_parallel_size: auto
  micro_batch_sizes: [1, 2]
  act_ckpt_layers: [0, 1]
"""
BRIDGE = """\
name = "bridge"
test_template_name = "MegatronBridge"

[cmd_args]
gpu_type = "h100"
hf_token = "not-to-be-copied"
model_recipe_name = "30b_a3b"
gpus_per_node = 8
num_gpus = 16
compute_dtype = "fp8_cs"
tp = [1, 2]
mb = "2"
gb = 512
ep = [8]
"""


def started_from(folder: Path, name: str, text: str) -> tuple[str, list[str]]:
    (folder / name).write_text(text)
    return render_from(folder / name)


def loaded(folder: Path, text: str, **filled: str) -> SearchSpec:
    """The search, after its user has filled in what the grid lacks."""
    sizes = {"num_layers": "32", "hidden_size": "4096", "num_attention_heads": "32", "num_key_value_heads": "32"}
    sizes |= {"ffn_hidden_size": "16384", "gated_mlp": "false", "vocab_size": "51200", "seq_length": "2048"}
    sizes |= {"tied_embeddings": "false", "position_embedding": "learned", "norm": "layernorm"}
    sizes |= {"accelerator": "a100-80gb", "gpus_per_node": "8", "num_nodes": "1"}
    for key, value in (sizes | filled).items():
        text = text.replace(f"{key}: FILL_IN", f"{key}: {value}")
    (folder / "search.yaml").write_text(text)
    return load_search_file(folder / "search.yaml")


def test_a_grid_of_nemo_becomes_the_axes_of_a_search(tmp_path):
    text, notes = started_from(tmp_path, "5b.yaml", NEMO)
    spec = loaded(tmp_path, text.replace("global_batch_size: FILL_IN", "global_batch_size: 256"))
    axes = spec.space.given_axes()
    assert axes["tensor_parallel"] == (1, 2, 4)
    assert axes["pipeline_parallel"] == (1, 2, 4, 8, 16)
    assert axes["micro_batch_size"] == (1, 2)
    assert axes["activation_checkpointing"] == ("none", "full")
    assert (spec.cluster.num_nodes, spec.cluster.gpus_per_node, spec.name) == (2, 8, "5b")
    assert (spec.model.vocab_size, spec.model.seq_length) == (51200, 2048)
    assert candidates_of(spec).layouts
    told = " ".join(notes)
    assert "a model of 5 billion parameters: num_layers, hidden_size" in told
    assert "fill in the GPU, which has 80 GB" in told
    assert "The global batch is unknown" in told
    assert "Only context_parallel_sizes 1 is tried" in told
    assert "min_model_parallel_size is ignored" in told
    assert "max_model_parallel_size" not in told


def test_of_megatron_bridge_the_gpu_is_known_and_no_secret_is_copied(tmp_path):
    text, notes = started_from(tmp_path, "bridge.toml", BRIDGE)
    spec = loaded(tmp_path, text)
    assert (spec.cluster.accelerator.name, spec.cluster.num_nodes) == ("h100-80gb", 2)
    assert (spec.global_batch_size, spec.space.given_axes()["micro_batch_size"]) == (512, (2,))
    assert "not-to-be-copied" not in text
    told = " ".join(notes)
    assert "Only ep 1 is tried: the file does not describe experts; with num_experts in the model" in told
    assert "Parlay's trainer does not support precision fp8_cs: bf16 is used." in told


@pytest.mark.bad_input(12)
@pytest.mark.parametrize(
    ("name", "text", "key", "told"),
    [
        ("a.yaml", NEMO.replace("[1, 2, 4]", "[1, two]"), "tensor_parallel_sizes", "is [1, 'two']"),
        ("a.yaml", NEMO.replace("num_nodes: 2", "num_nodes: true"), "num_nodes", "is True"),
        ("a.toml", BRIDGE.replace("= [1, 2]", "= [0]"), "tp", "is [0]"),
        ("a.toml", "cmd_args = [[[", None, "not TOML"),
    ],
)
def test_a_grid_that_cannot_be_is_refused_with_its_key(tmp_path, name, text, key, told):
    with pytest.raises(InputError) as refused:
        started_from(tmp_path, name, text)
    assert told in str(refused.value)
    assert refused.value.problems[0].key == key
    assert refused.value.problems[0].file == str(tmp_path / name)
