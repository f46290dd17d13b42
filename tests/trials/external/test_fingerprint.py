"""Identity of a user's own program in the fingerprint of its measurement."""

from __future__ import annotations

import sys
from hashlib import sha256
from pathlib import Path

import pytest

from tests.trials.trainers.specs import spec_of
from trials.attempt_result import are_comparable, program_change
from trials.external.fingerprint import fingerprint
from trials.ranks.environment import RankEnvironment
from trials.trial import TrialSpec

ENV = RankEnvironment(rank=0, world_size=1, local_rank=0)


def command_spec(template: str, **layout: int) -> TrialSpec:
    return spec_of("command", trainer={"script": None, "template": template}, **layout)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text("print('step')\n")
    return path


def digest(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("kind", ["accelerate", "megatron-lm", "megatron-deepspeed"])
def test_an_edited_script_is_another_program(script, kind):
    spec = spec_of(kind, trainer={"script": str(script), "patterns": {}})
    before, first = fingerprint(spec, ENV), digest(script)
    assert before["scripts"] == {str(script): first}
    script.write_text("import time\ntime.sleep(0.5)\nprint('step')\n")
    now = fingerprint(spec, ENV)
    assert not are_comparable(before, now)
    change = program_change(before, now)
    assert all(part in change for part in (str(script), first[:12], digest(script)[:12]))


def test_of_a_command_the_program_and_its_script_are_hashed_and_no_data(script, tmp_path):
    start, tokens, settings = tmp_path / "start.sh", tmp_path / "tokens.bin", tmp_path / "settings.json"
    start.write_text('#!/bin/sh\nexec "$@"\n')
    start.chmod(0o700)
    tokens.write_bytes(b"\0\1" * 50)
    settings.write_text("{}")
    command = f"{start} {sys.executable} --data {tokens} {script} --settings {settings} {tmp_path}"
    assert fingerprint(command_spec(command), ENV)["scripts"] == {str(p): digest(p) for p in (start, script)}
    assert "scripts" not in fingerprint(command_spec("{python} -m train --data train.py"), ENV)


def test_layouts_of_one_search_are_comparable_and_the_command_is_recorded_without_the_attempts_own_words(script):
    template = f"{{python}} {script} --mb {{micro_batch_size}} --out {{attempt_folder}}/out"
    one, two = (fingerprint(command_spec(template, micro_batch_size=size), ENV) for size in (1, 2))
    assert one["command"] == f"'{{python}}' {script} --mb 1 --out '{{attempt_folder}}/out'"
    assert one["command"] != two["command"]
    assert are_comparable(one, two)


def test_a_script_that_this_rank_cannot_read_is_unknown(tmp_path):
    spec = spec_of("accelerate", trainer={"script": str(tmp_path / "gone.py"), "patterns": {}})
    assert "scripts" not in fingerprint(spec, ENV)
