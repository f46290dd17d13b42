"""Exports, read by the parsers of installed trainers, each in a process of its own.

python -m tests.oracles.parsers TRAINER QUESTIONS.json ANSWERS.json
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from search_spaces.engines import ACCELERATE
from tests.oracles import configs
from tests.oracles.cases import Case
from tests.oracles.meanings import Meaning, of_accelerate, of_deepspeed
from tests.sources import ROOT


def understood(trainer: str, cases: Sequence[Case], folder: Path) -> list[Meaning]:
    """What the trainer understands of each export, whose files are written below the folder."""
    questions = [_question(case, folder / f"{number}") for number, case in enumerate(cases)]
    asked, answered = folder / "questions.json", folder / "answers.json"
    asked.write_text(json.dumps(questions))
    command = [sys.executable, "-m", "tests.oracles.parsers", trainer, str(asked), str(answered)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout[-2000:]
    of = of_accelerate if trainer == ACCELERATE else of_deepspeed
    return [of(values) for values in json.loads(answered.read_text())]


def _question(case: Case, folder: Path) -> Mapping[str, Any]:
    folder.mkdir()
    for name, text in case.files.items():
        (folder / name).write_text(text)
    layout = case.spec.layout
    return {"folder": folder.name, "data_parallel": layout.data_parallel, "has_pipeline": layout.pipeline_parallel > 1}


def _values(trainer: str, folder: Path, *, data_parallel: int, has_pipeline: bool) -> configs.Values:
    if trainer == ACCELERATE:
        return configs.of_accelerate(str(folder / "accelerate.yaml"))
    config = json.loads((folder / "ds_config.json").read_text())
    return configs.of_deepspeed(config, data_parallel, has_pipeline)


if __name__ == "__main__":
    sys.modules["mlflow"] = None  # type: ignore[assignment]  # DeepSpeed would set its logging up
    asked, answers = map(Path, sys.argv[2:])
    questions = json.loads(asked.read_text())
    given = [_values(sys.argv[1], asked.parent / question.pop("folder"), **question) for question in questions]
    answers.write_text(json.dumps(given, default=configs.plain))
