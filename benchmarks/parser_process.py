"""Questions to a trainer's own parser, which answers in a process of its own (real_parsers.py)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

DOWNLOADS = "PARLAY_DOWNLOADS"
"""Variable that names a folder with the trainers' checkouts."""


def ask(parser: str | None, checkout: Path, questions: Sequence[Any], scratch: Path) -> list[dict[str, Any]]:
    """The parser's answers, from a process of its own."""
    asked, answered = scratch / "questions.json", scratch / "answers.json"
    asked.write_text(json.dumps(questions))
    command = [sys.executable, "-m", "benchmarks.real_parsers", str(parser), str(checkout), str(asked), str(answered)]
    # In a folder of its own: GPT-NeoX writes logs where it runs.
    path = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        command,
        cwd=scratch,
        env=os.environ | {"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"{checkout.name}: its parser failed\n{done.stdout[-2000:]}")
    answers: list[dict[str, Any]] = json.loads(answered.read_text())
    return answers
