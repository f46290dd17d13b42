"""`parlay schema`: the JSON schema of search files."""

from __future__ import annotations

from orchestrator.cli.options import AsJson
from orchestrator.cli.output import answer


def schema(as_json: AsJson = False) -> None:
    """Print the JSON schema of search files, for editors."""
    from orchestrator.config.loader import json_schema

    answer(json_schema(), True)
