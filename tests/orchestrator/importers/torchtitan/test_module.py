from __future__ import annotations

import pytest

from orchestrator.importers.registry import read_source
from orchestrator.importers.torchtitan.module import read_module
from search_spaces.errors import InputError

OWN = """\
from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.models.llama3 import model_registry
from torchtitan.trainer import Trainer


def mine() -> Trainer.Config:
    model_spec = model_registry("8B", attn_backend="varlen")
    return Trainer.Config(
        model_spec=model_spec,
        training=TrainingConfig(local_batch_size=2, seq_len=8192, steps=1000),
        parallelism=ParallelismConfig(tensor_parallel_degree=8, data_parallel_shard_degree=4),
        activation_checkpoint=None,
    )
"""
CHANGED = """\
def larger():
    config = llama3_8b()
    assert config.model_spec is not None
    config.training.seq_len = 16384
    config.parallelism = ParallelismConfig(data_parallel_shard_degree=4)
    config.parallelism.tensor_parallel_degree = 2
    config.activation_checkpoint = FullAC.Config()
    return config
"""


def test_a_module_like_torchtitans_registry_is_read(tmp_path):
    (tmp_path / "mine.py").write_text(OWN)
    found = read_source(tmp_path / "mine.py")
    assert found is not None
    assert (found.source, found.engine, found.global_batch_size) == ("torchtitan", "torchtitan", 8)
    assert (found.model["num_layers"], found.model["seq_length"]) == (32, 8192)
    assert found.layout["attention_kernel"] == "flash"
    assert (found.layout["tensor_parallel"], found.layout["data_parallel"]) == (8, 4)
    assert (found.layout["activation_checkpointing"], found.layout["sequence_parallel"]) == ("none", True)
    assert found.origins["baseline.tensor_parallel"] == "parallelism.tensor_parallel_degree (line 11)"


def test_options_that_a_function_changes_are_read_and_what_the_module_computes_is_asked_for():
    found = read_module(CHANGED)
    assert (found.model["num_layers"], found.model["seq_length"]) == (32, 16384)
    assert (found.layout["tensor_parallel"], found.layout["data_parallel"]) == (2, 4)
    assert found.layout["activation_checkpointing"] == "full"
    found = read_module(OWN.replace("tensor_parallel_degree=8", "tensor_parallel_degree=degree()"))
    assert {"tensor_parallel", "sequence_parallel"} <= {*found.in_doubt}
    assert "tensor_parallel" not in found.layout


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("def f(:", "a module is Python"),
        ("def f():\n    config = f()\n    return config\n", "a function starts from Trainer.Config"),
        (OWN.replace('"8B"', "SIZE"), "a model is one of torchtitan's llama3: debugmodel, 1B"),
        (OWN.replace('attn_backend="varlen"', "converters=[LoRAConverter.Config()]"), "one of linear layers"),
        (
            CHANGED.replace("    assert config.model_spec is not None\n", "    if x:\n        config = 1\n"),
            "calls and assignments",
        ),
    ],
)
def test_what_cannot_be_read_is_refused(text, rule):
    with pytest.raises(InputError, match=rule) as refused:
        read_module(text)
    assert refused.value.problems[0].fix
