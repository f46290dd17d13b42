from __future__ import annotations

import pytest

from orchestrator.config.importers.launch_script import read_launch_script
from orchestrator.config.importers.registry import read_source
from orchestrator.config.init import render_from
from search_spaces.errors import InputError
from search_spaces.layouts.layout import Layout
from tests.orchestrator.recipe.exported import exported, our_spec
from tests.trials.trainers.specs import LLAMA
from trials.trainers.torchtitan.trainer import CONFIG_FILE, config_files

SPEC = our_spec(Layout(data_parallel=8, zero_stage=3, attention_kernel="flex", engine="torchtitan"), LLAMA)
MODULE = config_files(SPEC)[CONFIG_FILE]
TOKENS = "--training.num_tokens_per_microbatch_per_dp_rank"
RESHARD, SCHEDULE = "parallelism.fsdp_reshard_after_forward", "parallelism.pipeline_parallel_schedule"
LLAMA3 = "--module llama3 --config llama3_8b"
STAGES = "--parallelism.pipeline_parallel_degree 2"


def started(words: str, read_file=None):
    return read_launch_script(f"torchrun --nproc-per-node 8 -m torchtitan.train {words}", read_file)


def llama3(words: str = "", config: str = "llama3_8b"):
    return started(f"--module llama3 --config {config} {words}")


@pytest.mark.parametrize(
    ("words", "fields"),
    [
        ("", {"zero_stage": 3, "data_parallel": 8, "precision": "bf16", "activation_checkpointing": "selective"}),
        (
            "--parallelism.tensor-parallel-degree=2 --parallelism.no-enable-sequence-parallel",
            {"tensor_parallel": 2, "sequence_parallel": False},
        ),
        # Without effect on one rank, and for the space.
        ("activation_checkpoint:none", {"activation_checkpointing": "none", "sequence_parallel": True}),
        ("--parallelism.data_parallel_replicate_degree 8", {"zero_stage": 0, "data_parallel_replicas": 1}),
        ("--compile.enable --compile.components loss", {"torch_compile": False}),
        (f"{STAGES} --parallelism.pipeline_parallel_layers_per_stage 4", {"virtual_pipeline_stages": 4}),
        (f"{STAGES} --training.local_batch_size 8", {"micro_batch_size": 1, "grad_accum_steps": 8, "zero_stage": 2}),
        # The batch as it is said after 0.3.0.
        (f"{TOKENS} 32768 --training.max_context_length 4096", {"micro_batch_size": 8, "global_batch_size": 64}),
        ("--training.num_tokens_per_train_step=131072", {"grad_accum_steps": 2, "global_batch_size": 16}),
        (f"{STAGES} --parallelism.num_pp_microbatches 4", {"micro_batch_size": 1, "global_batch_size": 16}),
    ],
)
def test_words_are_read_as_torchtitans_parser_reads_them(words, fields):
    found = llama3(words)
    values = {**found.model, **found.layout, "global_batch_size": found.global_batch_size}
    assert {name: values[name] for name in fields} == fields


@pytest.mark.parametrize(
    ("config", "words", "told"),
    [
        ("llama3_debugmodel_float8", "", "The training leaves no linear layer in bf16"),
        ("llama3_8b_mxfp8", "", "The training converts every linear layer to mxfp8"),
        ("llama3_8b", "", "The training captures each pass in a CUDA graph, torchtitan's default"),
        ("llama3_8b", "--training.dtype bfloat16", "--training.dtype"),
        (
            "llama3_8b",
            "--parallelism.pipeline_parallel_degree 4",
            "--parallelism.pipeline_parallel_first_stage_less_layers",
        ),
    ],
)
def test_a_difference_is_noted_and_another_layout_is_no_baseline(config, words, told):
    found = llama3(words, config)
    assert any(each.startswith(told) for each in (*found.notes, *(str(problem.key) for problem in found.changed)))


def test_the_plainest_command_gives_a_baseline_and_its_graphs_are_noted_where_it_has_some(tmp_path):
    (tmp_path / "train.sh").write_text(f"torchrun --nproc-per-node 8 -m torchtitan.train {LLAMA3}\n")
    text, notes = render_from(tmp_path / "train.sh")
    assert "baseline:" in text
    assert [note for note in notes if "CUDA graph" in note]
    assert not [note for note in llama3("--training.disable_cuda_graphs").notes if "CUDA graph" in note]


@pytest.mark.parametrize("words", [f"{TOKENS} 12000", f"{TOKENS} $N"])
def test_a_batch_that_is_not_certain_is_asked_for(words):
    found = llama3(words)
    assert found.layout.keys().isdisjoint({"micro_batch_size", "grad_accum_steps"})
    assert found.global_batch_size is None
    assert {"micro_batch_size", "global_batch_size"} <= {*found.in_doubt}
    assert any("fill it in" in note or "$N" in note for note in found.notes)


def test_what_no_row_reads_is_named_once_without_its_value():
    notes = read_launch_script("NGPU=4 MODULE=llama3 CONFIG=llama3_8b HF_HOME=/x ./run_train.sh").notes
    assert "Exported variables that were not read: HF_HOME. Add those that matter to speed to space.env." in notes
    notes = llama3("--profiler.enable_profiling --training.steps 7 --checkpoint.enable $@").notes
    assert "Not read: --profiler.enable_profiling, --training.steps, --checkpoint.enable." in notes
    assert "$@ is in the training command, but the script does not set it." in notes


@pytest.mark.parametrize(
    ("words", "key", "rule"),
    [
        ("--job.config_file llama3_8b.toml", None, "--module and --config name"),
        ("--module torchft.llama3 --config llama3_8b", "--module", "torchtitan's own trainer"),
        ("--module llama3 --config llama3_debugmodel_nvfp4", "--config", "4-bit products"),
        ("--module llama3 --config sft_debugmodel", "--config", "whole sequences"),
        (f"{LLAMA3} --{RESHARD} sometimes", f"--{RESHARD}", "default, always and never"),
        (f"{LLAMA3} {STAGES} --{SCHEDULE} LoopedBFS", f"--{SCHEDULE}", "pipeline_schedule is one of gpipe"),
        (f"{LLAMA3} --training.enable_cpu_offload", "--training.enable_cpu_offload", "no value of offload"),
        (f"{LLAMA3} --activation_checkpoint.mode full", "--activation_checkpoint.mode", "0.3.0 has no such option"),
    ],
)
def test_older_commands_and_what_trains_something_else_are_refused(words, key, rule):
    with pytest.raises(InputError, match=rule) as refused:
        started(words)
    assert [problem.key for problem in refused.value.problems] == [key]
    with pytest.raises(InputError, match="no command"):
        read_launch_script("./run_train.sh --epochs 3")
    with pytest.raises(InputError, match="--module and --config name"):
        read_launch_script(f"CONFIG_FILE=llama3_8b.toml NGPU=4 ./run_train.sh {STAGES}")


@pytest.mark.parametrize("read_file", [None, lambda name: "def big():\n    return Trainer.Config()\n"])
def test_what_an_unknown_configuration_decides_is_left_open(read_file):
    found = started("--module my.own --config big --parallelism.pipeline_parallel_degree 2", read_file)
    assert (found.model, found.layout, found.global_batch_size) == ({}, {"pipeline_parallel": 2}, None)
    assert {"tensor_parallel", "zero_stage", "precision", "activation_checkpointing"} <= {*found.left_open}
    assert found.notes[0].startswith("The configuration big of my.own was not read")
    assert "tensor_parallel" in started("--module llama3 --config $CONFIG").left_open


def test_a_recipes_module_is_read_beside_the_script_and_by_itself(tmp_path):
    start = str(exported(SPEC)["torchtitan"].unrun_start).replace("YOUR_OPTIONS", "--training.global_batch_size 32")
    found = read_launch_script(start, {f"recipe/{CONFIG_FILE}": MODULE}.__getitem__)
    assert (found.model["num_layers"], found.layout["grad_accum_steps"]) == (LLAMA.num_layers, 4)
    assert (found.origins["model.num_layers"], found.left_open) == (f"recipe/{CONFIG_FILE}", ())
    (tmp_path / "mine.py").write_text(MODULE.replace('"seq_len": 32', '"seq_len": 64').replace("3e-4", "1e-4"))
    mine = read_source(tmp_path / "mine.py")
    assert mine is not None
    assert (mine.model["seq_length"], mine.notes) == (64, ("Not read: what parlay() sets besides VALUES.",))


@pytest.mark.parametrize("text", ["def f(:", MODULE.replace("VALUES", "OTHERS"), MODULE.replace("{", "made() or {", 1)])
def test_other_python_is_refused_with_the_json_as_the_way_on(text, tmp_path):
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(InputError, match="is not run") as refused:
        read_source(tmp_path / "mine.py")
    assert "save_config_file" in str(refused.value.problems[0].fix)
