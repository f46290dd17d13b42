"""Exports, read by the parsers of installed trainers, each in a process in which torch is patched for a CPU.

python -m tests.oracles.parsers TRAINER QUESTIONS.json ANSWERS.json
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from search_spaces.engines import ACCELERATE, TORCHTITAN
from tests.oracles import configs
from tests.oracles.cases import Case
from tests.oracles.meanings import MEANINGS, differences
from tests.sources import ROOT

Question = Mapping[str, Any]


@dataclass(frozen=True)
class Reading:
    """A layout by what its export's trainer understood: the number of fields, and sentences on those that differ."""

    layout: str
    compared: int
    differing: tuple[str, ...]
    is_loaded: bool = True


def read_back(trainer: str, cases: Sequence[Case], folder: Path) -> list[Reading]:
    """What the trainer understands of each export, whose files are written below the folder."""
    questions = [_question(trainer, case, folder / f"{number}") for number, case in enumerate(cases)]
    asked, answered = folder / "questions.json", folder / "answers.json"
    asked.write_text(json.dumps(questions))
    command = [sys.executable, "-m", "tests.oracles.parsers", trainer, str(asked), str(answered)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout[-2000:]
    answers = json.loads(answered.read_text())
    return [_reading(trainer, case, answer) for case, answer in zip(cases, answers, strict=True)]


def _question(trainer: str, case: Case, folder: Path) -> Question:
    folder.mkdir()
    for name, text in case.files.items():
        (folder / name).write_text(text)
    layout = case.spec.layout
    parallel = {"data_parallel": layout.data_parallel, "has_pipeline": layout.pipeline_parallel > 1}
    return {"folder": str(folder), "world": case.spec.num_gpus, **parallel}


def _reading(trainer: str, case: Case, answer: Mapping[str, Any]) -> Reading:
    if answer["error"]:
        return Reading(case.spec.layout.key, 0, (f"not loaded, {answer['error']}",), is_loaded=False)
    understood = MEANINGS[trainer](answer["values"])
    return Reading(case.spec.layout.key, len(understood), tuple(differences(case.spec, understood)))


def main() -> None:
    trainer, questions, answers = sys.argv[1:]
    given = [_answer(_PARSERS[trainer], question) for question in json.loads(Path(questions).read_text())]
    Path(answers).write_text(json.dumps(given, default=configs.plain))


def _answer(parse: Callable[[Question], Any], question: Question) -> dict[str, Any]:
    try:
        return {"values": parse(question), "error": None}
    except (Exception, SystemExit) as error:
        return {"values": {}, "error": f"{type(error).__name__}: {error}"}


def _deepspeed(question: Question) -> configs.Values:
    config = json.loads((Path(question["folder"]) / "ds_config.json").read_text())
    return configs.of_deepspeed(config, question["data_parallel"], question["has_pipeline"])


def _torchtitan(question: Question) -> configs.Values:
    """By the words that the recipe's command line has, with the folder in place of recipe/."""
    folder = Path(question["folder"])
    words = ["--module", f"{folder.name}.torchtitan_config", "--config", "parlay"]
    return configs.of_torchtitan(words, str(folder.parent), question["world"])


def _accelerate(question: Question) -> configs.Values:
    return configs.of_accelerate(str(Path(question["folder"]) / "accelerate.yaml"))


_PARSERS: Mapping[str, Callable[[Question], Any]] = {
    "deepspeed": _deepspeed,
    TORCHTITAN: _torchtitan,
    ACCELERATE: _accelerate,
}

if __name__ == "__main__":
    main()
