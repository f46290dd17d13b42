from __future__ import annotations

import pytest

from orchestrator.importers.launch_script import read_launch_script
from orchestrator.importers.registry import read_source
from orchestrator.importers.torchtitan.module import read_module
from search_spaces.errors import InputError
from search_spaces.layouts.layout import Layout
from tests.orchestrator.recipe.exported import exported, our_spec
from tests.trials.trainers.specs import LLAMA
from trials.trainers.torchtitan.module import CONFIG_FILE, config_module


def started(words: str, read_file=None):
    return read_launch_script(f"torchrun --nproc-per-node 8 -m torchtitan.train {words}", read_file)


def llama3(words: str = ""):
    return started(f"--module llama3 --config llama3_8b {words}")


@pytest.mark.parametrize(
    ("words", "field", "value"),
    [
        ("--parallelism.tensor_parallel_degree 2", "sequence_parallel", True),
        ("activation_checkpoint:none", "activation_checkpointing", "none"),
        ("--parallelism.data_parallel_shard_degree=4 --parallelism.data_parallel_replicate_degree=2", "zero_stage", 3),
        ("--parallelism.data_parallel_replicate_degree 8", "zero_stage", 0),
        ("--compile.enable --compile.components loss", "torch_compile", False),
    ],
)
def test_words_are_read_as_torchtitans_parser_reads_them(words, field, value):
    assert llama3(words).layout[field] == value


def test_another_run_train_and_an_older_torchtitan_are_refused():
    with pytest.raises(InputError, match="no command"):
        read_launch_script("./run_train.sh --epochs 3")
    with pytest.raises(InputError, match="--module and --config name"):
        started("--job.config_file llama3_8b.toml")


def test_a_module_beside_the_script_is_read(tmp_path):
    spec = our_spec(Layout(data_parallel=8, zero_stage=3, attention_kernel="flex", engine="torchtitan"), LLAMA)
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / CONFIG_FILE).write_text(config_module(LLAMA, spec.layout))
    start = str(exported(spec)["torchtitan"].unrun_start).replace("YOUR_OPTIONS", "--training.global_batch_size 32")
    found = read_launch_script(start, lambda name: (tmp_path / name).read_text())
    assert found.model["num_layers"] == LLAMA.num_layers
    assert (found.layout["zero_stage"], found.layout["grad_accum_steps"], found.left_open) == (3, 4, ())
    assert found.origins["model.num_layers"] == f"recipe/{CONFIG_FILE}"
    assert found.origins["global_batch_size"] == "--training.global_batch_size (line 1)"


def test_what_an_unknown_configuration_decides_is_left_open():
    found = started("--module my.own --config big --parallelism.pipeline_parallel_degree 2 --training.seq_len 4096")
    assert found.model == {"seq_length": 4096}
    assert found.layout == {"pipeline_parallel": 2}
    assert found.global_batch_size is None
    assert {"tensor_parallel", "zero_stage", "precision", "activation_checkpointing"} <= {*found.left_open}
    assert found.notes[0].startswith("The configuration big of my.own was not read; it decides tensor_parallel, ")
    found = started("--module llama3 --config $CONFIG")
    assert "tensor_parallel" in found.left_open
    assert "The configuration behind --config was not read; it decides" in " ".join(found.notes)
    notes = llama3("--training.global_batch_size $GBS $MORE").notes
    assert any(note.startswith("--training.global_batch_size is '$GBS', which was not used") for note in notes)
    assert "$MORE is in the training command, but the script does not set it." in notes


@pytest.mark.parametrize(
    ("words", "key", "rule"),
    [
        ("--module torchft.llama3 --config llama3_8b", "--module", "not one of its experiments"),
        ("--module llama3 --config llama3_debugmodel_nvfp4", "--config", "8-bit and 4-bit arithmetic"),
        ("--module llama3 --config sft_debugmodel", "--config", "every layer of a GPT"),
    ],
)
def test_what_no_search_file_expresses_is_refused_by_name(words, key, rule):
    with pytest.raises(InputError, match=rule) as refused:
        started(words)
    (problem,) = refused.value.problems
    assert (problem.key, problem.line) == (key, 1)


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
