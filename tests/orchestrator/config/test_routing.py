"""`measure.routing` of a search file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit import MINIMAL, loaded, refusal

MODEL = (
    "model: {num_layers: 2, hidden_size: 64, num_attention_heads: 4, vocab_size: 256, seq_length: 32, num_experts: 8,"
    " experts_per_token: 2}"
)
EXPERTS = MINIMAL.replace("model: gpt2-tiny", MODEL)
COMMAND = EXPERTS + (
    "trainer:\n  kind: command\n  template: train {tensor_parallel}\n  patterns: {step_time_s: 'took (\\S+) s'}\n"
)


@pytest.mark.parametrize(
    ("model", "text", "routing"),
    [
        (MINIMAL, "", None),
        (EXPERTS, "", "balanced"),
        (EXPERTS, "measure: {routing: balanced}\n", "balanced"),
        (EXPERTS, "measure: {routing: skewed(2.50)}\n", "skewed(2.5)"),
        (EXPERTS, "measure: {routing: learned}\n", "learned"),
        (COMMAND, "", "learned"),
    ],
)
def test_it_is_balanced_where_it_can_be_forced_and_none_without_experts(
    tmp_path: Path, model: str, text: str, routing
) -> None:
    assert loaded(tmp_path, model + text).measure.routing == routing


@pytest.mark.parametrize(
    ("model", "text", "message", "fix"),
    [
        (EXPERTS, "even", "is 'even'", "for example skewed(2)"),
        (EXPERTS, "2", "is '2'", "for example skewed(2)"),
        (EXPERTS, "skewed(5)", "is skewed(5), but a token passes 2 of 8 experts", "skewed(4) or less"),
        (COMMAND, "skewed(2)", "is skewed(2) with trainer.kind command, which cannot force it", "remove it"),
        (COMMAND, "balanced", "is balanced with trainer.kind command, which cannot force it", "remove it"),
        (MINIMAL, "balanced", "has no effect: the model has no experts", "remove it"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, model: str, text: str, message: str, fix: str) -> None:
    problem = refusal(tmp_path, model + f"measure: {{routing: {text}}}\n")
    assert (problem.key, problem.message, problem.fix) == ("measure.routing", message, fix)
