from __future__ import annotations

import json
import shlex
from dataclasses import replace

import pytest
import yaml

from orchestrator.recipe.trainer_files import about_trainer_files, trainer_files
from tests.trials.trainers.specs import LLAMA, spec_of
from trials.trainers.megatron_args import read_megatron_script
from trials.trial import TrialSpec

COMMAND = {"template": "{python} train.py --tp {tensor_parallel} {zero_stage=1:--shard}", "patterns": "deepspeed"}


def files_of(kind: str, **given) -> tuple[TrialSpec, dict[str, str]]:
    spec = spec_of(kind, **given)
    return spec, trainer_files(spec, "/env/bin/python")


def test_megatrons_options_stand_as_a_shell_takes_them():
    spec, files = files_of("megatron-lm", tensor_parallel=2, trainer={"arguments": ["--data-path", "/my data/c4"]})
    words = shlex.split(files["megatron_args.txt"].replace("\\\n", " "))
    assert words[:2] == ["/env/bin/python", "/opt/pretrain_gpt.py"]
    assert words[-2:] == ["--data-path", "/my data/c4"]
    found = read_megatron_script("torchrun --nproc_per_node 4 " + files["megatron_args.txt"])
    assert found.layout["tensor_parallel"] == 2
    assert found.global_batch_size == spec.global_batch_size


def test_every_trainer_has_its_own_words():
    _, deepspeed = files_of("megatron-deepspeed", zero_stage=1)
    assert json.loads(deepspeed["ds_config.json"])["zero_optimization"]["stage"] == 1
    assert "--deepspeed_config ./ds_config.json" in deepspeed["megatron_deepspeed_args.txt"]
    _, neox = files_of("gpt-neox", trainer={"template": {"data_path": "/data"}})
    assert yaml.safe_load(neox["gpt_neox.yml"])["data_path"] == "/data"
    _, nanotron = files_of("nanotron", model=LLAMA, trainer={"template": {}})
    assert yaml.safe_load(nanotron["nanotron.yaml"])["parallelism"]["dp"] == 2
    _, command = files_of("command", zero_stage=1, trainer=COMMAND)
    assert command["command.txt"] == "/env/bin/python train.py \\\n    --tp 1 \\\n    --shard\n"


@pytest.mark.parametrize("kind", ["megatron-lm", "megatron-deepspeed", "gpt-neox", "nanotron", "command"])
def test_each_file_is_told_of(kind):
    trainer = COMMAND if kind == "command" else {"template": {}}
    spec, files = files_of(kind, model=LLAMA if kind == "nanotron" else spec_of(kind).model, trainer=trainer)
    told = list(about_trainer_files(spec.trainer, None, kind))
    assert {line.split("`")[1] for line in told} == set(files)


def test_what_only_a_table_answered_for_has_no_words():
    assert files_of("nanotron", trainer={"template": {}})[1] == {}  # a GPT-2 shape


def test_parlays_own_trainer_has_a_deepspeed_config_where_deepspeed_runs_the_layout():
    spec = replace(spec_of("megatron-lm"), trainer={"kind": "parlay"})
    assert set(trainer_files(spec, "python")) <= {"ds_config.json"}
    assert list(about_trainer_files({"kind": "parlay"}, "it cannot", "torch")) == [
        "There is no `ds_config.json`: it cannot."
    ]
