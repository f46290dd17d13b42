"""`measure.warm_start` of a search file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit import MINIMAL, loaded, refusal


@pytest.mark.parametrize(
    ("text", "value"),
    [("", None), ("auto", None), ("true", True), ("false", False)],
    ids=["absent", "auto", "true", "false"],
)
def test_it_is_auto_true_or_false(tmp_path: Path, text: str, value: bool | None) -> None:
    given = MINIMAL + (f"measure:\n  warm_start: {text}\n" if text else "")
    assert loaded(tmp_path, given).measure.warm_start is value


@pytest.mark.parametrize("text", ["maybe", "1", "null"])
def test_anything_else_is_refused(tmp_path: Path, text: str) -> None:
    problem = refusal(tmp_path, MINIMAL + f"measure:\n  warm_start: {text}\n")
    assert (problem.key, problem.rule) == ("measure.warm_start", "auto, true or false")


def test_true_is_refused_where_the_launcher_cannot_fork(tmp_path: Path) -> None:
    problem = refusal(tmp_path, MINIMAL + "measure:\n  warm_start: true\nlauncher:\n  kind: slurm\n")
    assert (problem.key, problem.line) == ("measure.warm_start", 8)
    assert problem.message == "is true with launcher.kind slurm"
    assert problem.rule == "ranks are forked by launcher.kind local or ray or slurm_pilot with trainer.kind parlay"
    assert problem.fix == "auto, which forks them where it can"


def test_true_is_refused_where_the_trainer_says_nothing_may_be_imported_before(tmp_path: Path) -> None:
    trainer = "trainer:\n  kind: megatron-lm\n  script: pretrain_gpt.py\n"
    problem = refusal(tmp_path, MINIMAL + "measure:\n  warm_start: true\n" + trainer)
    assert problem.message == "is true with trainer.kind megatron-lm"
