"""Oracle of imports: what a script really starts, and what became of each option."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from benchmarks.check_imports import (
    Command,
    Import,
    Result,
    classified,
    differences,
    is_named,
    is_neutral,
    table,
    training_command,
)
from benchmarks.config_expectations import expected_of_config, flat
from benchmarks.import_cases import Case, Form, cases, launch_script
from benchmarks.import_expectations import Expected, launcher_sizes, megatron
from benchmarks.real_parsers import without_empty
from benchmarks.stubbed_runs import StubbedBash
from orchestrator.importers.option_table import Handling, OptionGroup, OptionTable

TABLE = OptionTable(
    "trainer",
    "trainer 1",
    (
        OptionGroup(Handling.READ, "", "num-layers= zero.stage="),
        OptionGroup(Handling.NO_EFFECT, "it only logs", "log= wandb="),
        OptionGroup(Handling.NOTED, "it changes kernels", "fused"),
        OptionGroup(Handling.REFUSED, "no axis", "experts="),
    ),
    neutral={"experts": "0|1"},
)


@pytest.mark.parametrize(
    ("name", "is_default", "imported", "outcome"),
    [
        ("num-layers", False, Import("text"), "read"),
        ("num-layers", False, Import("text", ("--num-layers was left out.",)), "noted"),
        ("log", False, Import("text"), "no effect"),
        ("wandb.project.name", False, Import("text"), "no effect"),
        ("fused", False, Import("text", ("--fused was left out.",)), "noted"),
        ("fused", False, Import("arguments: [--fused]"), "kept"),
        ("fused", False, Import("text"), "silent"),
        ("experts", True, Import("text"), "no effect"),
        ("experts", False, Import("text"), "silent"),
        ("experts", False, Import(problems=("no axis",)), "refused"),
        ("zero", True, Import("text"), "no effect"),
        ("unknown", True, Import("text"), "silent"),
    ],
)
def test_an_option_has_one_outcome(name, is_default, imported, outcome):
    assert dict(classified({name: is_default}, imported, [TABLE])) == {name: outcome}


@pytest.mark.parametrize(
    ("name", "note", "named"),
    [
        ("use-flash-attn", "--use_flash_attn was left out", True),
        ("zero_stage", "zero_stage 3 is not supported", True),
        ("moe", "--moe-router was left out", False),
        ("router", "--moe-router was left out", False),
    ],
)
def test_a_note_names_an_option_as_a_word_of_its_own(name, note, named):
    assert is_named(name, note) is named


@pytest.mark.parametrize(("value", "neutral"), [(None, True), ({}, True), (1, True), (8, False)])
def test_a_value_is_neutral_if_empty_or_by_the_table(value, neutral):
    assert is_neutral("experts", value, [TABLE]) is neutral


def test_a_field_that_differs_is_silent_unless_a_note_names_it_or_it_is_to_be_filled_in():
    text = "model: {num_layers: 4, hidden_size: FILL_IN}\nbaseline: {tensor_parallel: 2}\n"
    expected = [
        Expected("model.num_layers", 8, ("num-layers",)),
        Expected("model.hidden_size", 64, ("hidden-size",)),
        Expected("layout.tensor_parallel", 2, ()),
        Expected("layout.zero_stage", 1, ("use-distributed-optimizer",)),
    ]
    assert list(differences(expected, Import(text))) == [
        "model.num_layers is 4, the trainer has 8",
        "layout.zero_stage is 0, the trainer has 1",
    ]
    notes = ("--num-layers is not known.", "zero_stage 1 is not supported.")
    assert list(differences(expected, Import(text, notes))) == []


def test_without_a_baseline_an_axis_may_hold_the_value():
    text = "space: {zero_stage: [0, 1]}\n"
    expected = [Expected("layout.zero_stage", stage, ()) for stage in (1, 3)]
    assert list(differences(expected, Import(text))) == ["layout.zero_stage is 0, the trainer has 3"]


@pytest.mark.parametrize(
    ("words", "program"),
    [
        (["torchrun", "--nnodes", "2", "pretrain_gpt.py", "--bf16"], "pretrain_gpt.py"),
        (["python3", "-m", "torch.distributed.launch", "a/train.py"], "a/train.py"),
        (["srun", "-n", "2", "python", "-m", "package.train", "--bf16"], "package.train"),
    ],
)
def test_the_program_is_found_behind_its_launchers(words, program):
    found = training_command([["pip", "install", "x"], words])
    assert found is not None
    assert found.program == program


def test_the_training_command_has_most_of_the_characteristic_options():
    first, second = (
        ["python", "preprocess.py", "--seq-length=8"],
        ["torchrun", "t.py", "--num_layers=2", "--seq-length=8"],
    )
    assert training_command([first, second]) == Command(("torchrun",), "t.py", ("--num_layers=2", "--seq-length=8"))
    assert training_command([["pip", "install", "x"]]) is None


def test_an_option_without_its_value_is_not_parsed():
    parser = argparse.ArgumentParser()
    parser.add_argument("--save")
    parser.add_argument("--data", nargs="*")
    parser.add_argument("--bf16", action="store_true")
    words = ["--save", "--data", "--bf16", "--save", "", "x"]
    assert without_empty(parser, words) == (["--data", "--bf16", "x"], ["--save", "--save"])


def test_megatron_s_values_become_fields():
    values = {
        "num_layers": 4,
        "hidden_size": 96,
        "swiglu": True,
        "tokenizer_type": "NullTokenizer",
        "vocab_size": 100,
        "tensor_model_parallel_size": 2,
        "use_distributed_optimizer": True,
        "bf16": True,
    }
    found = {one.field: one.value for one in megatron(values, {"num_nodes": 2}, is_deepspeed=False)}
    assert found["model.ffn_hidden_size"] == 256
    assert found["model.vocab_size"] == 256
    values["tokenizer_type"] = "GPT2BPETokenizer"
    found = {one.field: one.value for one in megatron(values, {"num_nodes": 2}, is_deepspeed=False)}
    assert found["model.vocab_size"] == 50432
    assert found["layout.zero_stage"] == 1
    assert found["layout.precision"] == "bf16"
    assert found["cluster.num_nodes"] == 2
    assert "layout.micro_batch_size" not in found


def test_a_launcher_says_its_sizes():
    words = ["torchrun", "--nnodes=2", "--nproc_per_node", "8", "--max-restarts", "3"]
    assert launcher_sizes(words) == {"num_nodes": 2, "gpus_per_node": 8}


def test_a_deepspeed_config_has_expectations():
    config = {"train_batch_size": 32, "zero_optimization": {"stage": 3}, "bf16": {"enabled": True}}
    found = {one.field: one.value for one in expected_of_config("DeepSpeedExamples", config, None)}
    assert found == {
        "global_batch_size": 32,
        "layout.zero_stage": 3,
        "layout.precision": "bf16",
        "layout.overlap_comm": True,
        "layout.offload": "none",
    }


def test_a_nested_configuration_is_flattened():
    assert flat({"a": {"b": 1, "c": {}}, "d": [2]}) == {"a.b": 1, "a.c": {}, "d": [2]}


def test_files_are_found_by_project(tmp_path: Path):
    checkout = tmp_path / "Megatron-LM"
    test = checkout / "tests/functional_tests/test_cases/t5/small/model_config.yaml"
    for path, text in (
        (checkout / "examples/train.sh", "torchrun pretrain_gpt.py"),
        (checkout / "examples/clean.sh", "rm -r logs"),
        (checkout / ".github/run.sh", "python x.py"),
        (test, "MODEL_ARGS: {--bf16: true, --num-layers: 2}"),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    script = launch_script("examples/t5/pretrain_t5.py", {"--bf16": True, "--num-layers": 2})
    assert list(cases(checkout)) == [
        Case(Path("examples/train.sh"), Form.SCRIPT),
        Case(test.relative_to(checkout), Form.SCRIPT, script),
    ]
    assert "examples/t5/pretrain_t5.py \\\n    --bf16 \\\n    --num-layers 2\n" in script


def test_a_script_s_commands_are_recorded_and_do_nothing(tmp_path: Path):
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    (checkout / "sizes.sh").write_text("LAYERS=$(expr 2 + 2)\n")
    (checkout / "train.sh").write_text(
        """
        source ./sizes.sh
        rm -r sizes.sh
        OPTIONS=(--num-layers "$LAYERS" --save "")
        unheard-of --flag
        srun -n 2 bash -c "python train.py ${OPTIONS[*]} $1"
        torchrun train.py "${OPTIONS[@]}"
        """
    )
    scratch = tmp_path / "scratch"
    found = StubbedBash(checkout, scratch).commands(Path("train.sh"), Path())
    assert [command.words for command in found] == [
        ("rm", "-r", "sizes.sh"),
        ("unheard-of", "--flag"),
        ("srun", "-n", "2", "bash", "-c", "python train.py --num-layers 4 --save  "),
        ("python", "train.py", "--num-layers", "4", "--save"),
        ("torchrun", "train.py", "--num-layers", "4", "--save", ""),
    ]
    assert (scratch / "checkout/sizes.sh").exists()


def test_projects_are_summed_up():
    results = [
        Result("A", "1", Import("text"), {"x": "read", "y": "silent"}, ["--y"]),
        Result("A", "2", Import(problems=("no axis",)), {"x": "refused"}),
        Result("A", "3", Import(problems=("no command",)), is_training=False),
    ]
    (line,) = table(results)
    assert (line["files"], line["imported"], line["refused"], line["no_training"]) == (3, 1, 2, 1)
    assert line["options"] == {"read": 1, "no effect": 0, "noted": 0, "kept": 0, "refused": 1, "silent": 1}
    assert line["reasons"] == {"no axis": 1, "no command": 1}
