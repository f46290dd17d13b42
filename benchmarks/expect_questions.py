"""Answers of `parlay expect` to questions of public threads, beside what the threads found.

    python -m benchmarks.expect_questions [--json]

The questions were listed before the first was asked. What a thread does not tell is assumed in the file beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from benchmarks.output import Line, arguments_of, show
from orchestrator.config.loader import load_search_text
from orchestrator.planning.expect import answer_of
from orchestrator.planning.expected_rate import Training

QUESTIONS = Path(__file__).with_suffix(".yaml")
_ANY_TRAINER = {
    "schema": "parlay.search/1",
    "name": "question",
    "trainer": {"kind": "megatron-lm", "script": "pretrain_gpt.py"},
    "space": {"micro_batch_size": [1]},
}
_USUAL = {"precision": "bf16", "attention_kernel": "flash"}


def main() -> None:
    show(lines(), arguments_of(__doc__).json)


def lines() -> Iterator[Line]:
    """The answer to each question, with the two likeliest causes."""
    for question in yaml.safe_load(QUESTIONS.read_text("utf-8")):
        answer = answer_of(training := asked(question), measured_of(question, training), "", None, [])
        per_gpu = training.tflops_per_token / training.layout.num_gpus
        yield {
            "thread": question["thread"],
            "tflops": round(answer.measured_tflops_per_gpu or 0),
            "expected": [round(end * per_gpu) for end in (answer.low, answer.median, answer.high)],
            "verdict": answer.verdict,
            "causes": [cause.cause for cause in answer.causes[:2]],
            "nearest": answer.nearest[0].model,
            "found": question["found"] or None,
        }


def asked(question: Mapping[str, Any]) -> Training:
    """The training that a question is about."""
    baseline = {**_USUAL, **question["search"]["baseline"]}
    search = {**_ANY_TRAINER, **question["search"], "baseline": baseline}
    spec = load_search_text(yaml.safe_dump(search), Path.cwd(), [])
    assert spec.baseline is not None
    return Training(spec.model, spec.cluster, spec.baseline)


def measured_of(question: Mapping[str, Any], training: Training) -> float:
    """Tokens/s of all ranks."""
    if "tokens_per_sec" in question:
        return float(question["tokens_per_sec"])
    return float(question["tflops"]) * training.layout.num_gpus / training.tflops_per_token


if __name__ == "__main__":
    main()
