from __future__ import annotations

import pytest

from search_spaces.engines import PARLAY, TRAINER_ENGINES, TRAINER_KINDS
from tests.sources import ROOT
from trials.trainers.registry import TRAINERS


def test_every_package_is_a_trainer_of_the_list_or_shared():
    packages = {path.parent.name for path in (ROOT / "trials" / "trainers").glob("*/__init__.py")}
    assert packages == {"common", *(name.replace("-", "_") for name in TRAINER_ENGINES)}


@pytest.mark.parametrize("name", TRAINER_ENGINES)
def test_a_trainer_has_rules_for_its_engines_and_no_other(name):
    assert tuple(TRAINERS[name].rules) == tuple(TRAINER_ENGINES[name])


@pytest.mark.parametrize("kind", [kind for kind in TRAINER_KINDS if kind != PARLAY])
def test_a_trainer_can_be_started_and_its_log_be_read(kind):
    trainer = TRAINERS[kind]
    assert trainer.invocation is not None
    assert trainer.log_format is not None or "patterns" in trainer.required_keys
