"""`parlay schema`: the JSON schema of search files."""

from __future__ import annotations

from orchestrator.cli.options import AsJson
from orchestrator.cli.output import print_result


def schema(as_json: AsJson = False) -> None:
    """Print the JSON schema of search files, for editors."""
    from orchestrator.config.loader import json_schema

    print_result(json_schema(), True)
