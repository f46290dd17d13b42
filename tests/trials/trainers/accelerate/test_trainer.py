"""A layout as accelerate's configuration and command lines; tests/trials/external/test_accelerate.py runs them."""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatchcase

import pytest
import yaml

from tests.trials.trainers.specs import spec_of
from trials.trainers.accelerate.config import ACCELERATE, accelerate_config
from trials.trainers.accelerate.trainer import TRAINER
from trials.trainers.registry import invocation
from trials.trial import TrialSpec

GIVEN = ["--batch={micro_batch_size}", "--steps", "{train_iterations}", "{torch_compile=true:--compiled}", "a b"]


def spec(**fields) -> TrialSpec:
    patterns = {"step_time_s": r"took (\S+) s"}
    made = spec_of("accelerate", trainer={"script": "/my/train.py", "arguments": GIVEN, "patterns": patterns}, **fields)
    return replace(made, accelerator="h100-80gb")


def test_a_rank_starts_by_the_launcher_with_the_arguments_of_its_layout():
    made = invocation(spec(zero_stage=3), "/env/python", "/run/a1")
    python, launcher, *words = made.command
    assert (python, launcher.endswith("trials/trainers/accelerate/launch.py")) == ("/env/python", True)
    assert words == ["/run/a1/accelerate.yaml", "/my/train.py", "--batch=1", "--steps", "40", "a b"]
    assert yaml.safe_load(made.files["accelerate.yaml"])["distributed_type"] == "FSDP"


@pytest.mark.parametrize(
    ("fields", "on_cpu", "kind"),
    [
        ({"data_parallel": 1, "zero_stage": 3}, False, "NO"),
        ({}, False, "MULTI_GPU"),
        ({}, True, "MULTI_CPU"),
        ({"zero_stage": 3}, True, "FSDP"),
    ],
)
def test_zero_2_and_3_over_several_ranks_are_fsdp(fields, on_cpu, kind):
    config = accelerate_config(replace(spec(**fields), accelerator="cpu" if on_cpu else "h100-80gb"))
    assert config["distributed_type"] == kind
    assert ("fsdp_config" in config) == (kind == "FSDP")
    assert config["use_cpu"] is on_cpu


@pytest.mark.slow
def test_what_is_refused_are_options_of_accelerates_own_parser():
    launch = pytest.importorskip("accelerate.commands.launch", reason="accelerate is not installed")
    names = {action.dest for action in launch.launch_command_parser()._actions}
    assert [p for p in ACCELERATE.trains_another if not any(fnmatchcase(name, p) for name in names)] == []


def test_the_export_says_how_to_start_with_the_users_arguments():
    several = replace(spec(data_parallel=16, num_nodes=2), num_gpus=16)
    assert TRAINER.export.start(several) == (
        'accelerate launch --config_file recipe/accelerate.yaml --machine_rank "$NODE_RANK" --main_process_ip'
        " \"$MASTER_ADDR\" --main_process_port 29500 /my/train.py --batch=1 --steps YOUR_ITERATIONS 'a b'"
    )
    [text] = TRAINER.export.files(several).values()
    assert yaml.safe_load(text)["num_machines"] == 2
    assert "micro-batches of 1 sequences, 4 a step and rank, attention flash" in text
    other = replace(spec(), trainer={"kind": "parlay"})
    assert TRAINER.export.start(other).endswith("recipe/accelerate.yaml YOUR_SCRIPT.py YOUR_OPTIONS")


def test_on_a_cpu_where_accelerate_launch_starts_a_single_rank_the_export_is_started_by_torchrun():
    on_cpu = replace(spec(data_parallel=16, num_nodes=2), num_gpus=16, accelerator="cpu")
    assert TRAINER.export.start(on_cpu).startswith(
        "ACCELERATE_USE_CPU=True ACCELERATE_MIXED_PRECISION=bf16 ACCELERATE_DYNAMO_BACKEND=NO torchrun --nnodes 2 "
    )
    sharded, half = ({"zero_stage": 3}, {"precision": "fp16"})
    for fields in (sharded, half):
        assert TRAINER.export.start(replace(on_cpu, layout=replace(on_cpu.layout, **fields))) is None
