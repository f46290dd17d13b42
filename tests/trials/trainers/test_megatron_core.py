"""A recipe's options for Megatron-LM, loaded by the real thing: megatron-core, and pretrain_gpt.py's own parser."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.check_exports import CORE_TAG, at_version, question
from benchmarks.check_imports import DOWNLOADS, ask
from benchmarks.export_cases import Case, export_cases
from benchmarks.export_meanings import differences, of_megatron_lm
from benchmarks.real_configs import fields_of, transformer_engine_stubbed
from tests.orchestrator.recipe.export_readers import words_of
from tests.trials.train.parity import needs_megatron
from tests.trials.trainers.core_configs import core_configs

pytestmark = [needs_megatron, pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

NOT_IN_CONFIGS = {"--make-vocab-size-divisible-by", "--ckpt-format", "--use-precision-aware-optimizer"}
"""Options of the tokenizer and of checkpoints, and one without which Megatron-LM refuses to offload."""
WITHOUT_MEANING = {"--no-gradient-accumulation-fusion"}
"""An option that changes a kernel alone."""


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return export_cases("megatron-lm")


def options_of(case: Case) -> list[list[str]]:
    return [line.split() for line in case.files["megatron_args.txt"].splitlines() if not line.startswith("#")]


def differing(case: Case, options: Sequence[Sequence[str]]) -> list[str]:
    """Differences of the layout from what megatron-core is configured to train."""
    with transformer_engine_stubbed():
        values, configs = core_configs([word for option in options for word in option], case.spec.num_gpus)
    return differences(case.spec, of_megatron_lm(values, {name: fields_of(made) for name, made in configs.items()}))


def test_megatron_core_is_configured_as_the_layout_says(cases):
    found = {case.spec.layout.key: differing(case, options_of(case)) for case in cases}
    assert not {key: sentences for key, sentences in found.items() if sentences}


def test_no_option_can_be_left_out(cases):
    """Each decides the meaning of some layout, or megatron-core does not take the others without it."""
    given = {option[0] for case in cases for option in options_of(case)}
    assert given - {name for name in given if any(is_needed(case, name) for case in cases)} == (
        (NOT_IN_CONFIGS | WITHOUT_MEANING) & given
    )


def is_needed(case: Case, name: str) -> bool:
    rest = [option for option in options_of(case) if option[0] != name]
    if len(rest) == len(options_of(case)):
        return False
    try:
        return bool(differing(case, rest))
    except (ArithmeticError, AssertionError, KeyError, RuntimeError, TypeError, ValueError):
        return True


@pytest.mark.processes
def test_pretrain_gpt_makes_the_same_configurations_of_the_options(cases, tmp_path):
    checkout = Path(os.environ.get(DOWNLOADS, "no downloads")) / "Megatron-LM"
    if not checkout.is_dir():
        pytest.skip(f"no downloads: {DOWNLOADS} names no folder with a checkout of Megatron-LM")
    words = [words_of(case.files["megatron_args.txt"]) for case in cases]
    questions = [question("megatron-lm", case, tmp_path / f"{n}") | {"words": words[n]} for n, case in enumerate(cases)]
    answers = ask("megatron-lm", at_version(checkout, CORE_TAG, tmp_path / "source"), questions, tmp_path)
    for case, given, answer in zip(cases, words, answers, strict=True):
        with transformer_engine_stubbed():
            _, configs = core_configs(given, case.spec.num_gpus)
        assert answer["configs"] == {name: fields_of(made) for name, made in configs.items()}
        assert answer["vocabulary"] == case.spec.model.vocab_size
