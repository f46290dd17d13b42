"""`make docs`: docs/contract.md, a table for each object that Parlay prints or writes, from their types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import create_model

from orchestrator.cli.prepare import answers
from orchestrator.config.answer import AnswerPart
from orchestrator.search.lease import Lease
from tests.sources import ROOT
from trials.diagnostics.calibration import Measurements
from trials.diagnostics.fabric import FabricTimes
from trials.ledger.events import Event
from trials.measurement.node_metrics import NodeSample
from trials.measurement.step_log import StepRecord
from trials.outcome_types import MeasuredMetrics
from trials.trial import Outcome, TrialSpec

FILES = (TrialSpec, Outcome, MeasuredMetrics, StepRecord, NodeSample, Event, Lease, Measurements, FabricTimes)


def page() -> str:
    """The page as Markdown: answers, then what they and the files of a search are made of."""
    kinds: dict[str, Any] = {kind.__name__: (kind, ...) for kind in (*answers().values(), *FILES)}
    everything = create_model("Everything", __base__=AnswerPart, **kinds)
    found = everything.model_json_schema(mode="serialization")["$defs"]
    tables = (f"## {name}\n\n{_text(found[name])}\n\n{_table(found[name])}" for name in sorted(found))
    head = "# Contract\n\nMade by `make docs` from the types; `parlay schema NAME` prints one answer's JSON schema."
    return "\n\n".join((head, *tables)) + "\n"


def _table(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    rows = (f"| `{name}` | {_type(field)} | {_text(field)} |" for name, field in schema.get("properties", {}).items())
    return "\n".join(("| field | type | meaning |", "|---|---|---|", *rows))


def _text(schema: Mapping[str, Any]) -> str:
    return " ".join(schema.get("description", "").split())


def _type(schema: Mapping[str, Any]) -> str:
    return ", ".join(dict.fromkeys(_types(schema)))


def _types(schema: Mapping[str, Any]) -> Iterator[str]:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        yield f"[{name}](#{name.lower()})"
    elif "anyOf" in schema:
        yield from (word for part in schema["anyOf"] for word in _types(part))
    elif "const" in schema:
        yield f"`{schema['const']}`"
    elif schema.get("type") == "array":
        yield f"list of {_type(schema.get('items', {}))}"
    else:
        yield schema.get("type", "any")


if __name__ == "__main__":
    Path(ROOT / "docs" / "contract.md").write_text(page(), encoding="utf-8")
