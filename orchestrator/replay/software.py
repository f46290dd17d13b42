"""Differences of the software and hardware of two measurements, by their fingerprints. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from orchestrator.config.answer import AnswerPart

_JOB_SPECIFIC = ("job_id", "probe_ms_by_rank")
_OBJECTS = ("scripts", "script_modified", "environment")
_MOST_RELEVANT = (
    *(
        "device",
        "scripts",
        "script_modified",
        "script_python_files",
        "script_commit",
        "torch",
        "cuda",
        "nccl",
        "transformer_engine",
        "megatron_core",
        "megatron_layers",
    ),
    *("deepspeed", "torchtitan", "torchao", "accelerate", "transformers", "gpu_driver", "python"),
)
_LEAST_RELEVANT = ("cpus", "kernel", "executable", "host", "hosts", "slow_hosts")


class FieldPair(AnswerPart):
    """A field with its value on both sides."""

    field: str
    a: Any
    b: Any


def field_differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[FieldPair]:
    """Rows for names whose values differ; None for a missing one."""
    for name in {**a, **b}:
        if a.get(name) != b.get(name):
            yield FieldPair(field=name, a=a.get(name), b=b.get(name))


def fingerprint_differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[FieldPair]:
    """Fields that differ, None where one side lacks them; fields that differ from job to job are left out.

    An environment variable or a file is a field of its own, such as `environment.NAME`, if both sides know theirs.
    """
    return list(field_differences(_fields(a, b), _fields(b, a)))


def software_differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[FieldPair]:
    """Fields in which two fingerprints differ, those that are most likely to matter first; without the command, which
    follows from layout and trainer section."""
    found = [pair for pair in fingerprint_differences(a, b) if pair.field != "command"]
    return sorted(found, key=lambda pair: _relevance(pair.field))


def _fields(fingerprint: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a fingerprint, with the entries of objects that the other one has, too."""
    fields = {name: value for name, value in fingerprint.items() if name not in (*_JOB_SPECIFIC, *_OBJECTS)}
    for name in _OBJECTS:
        if isinstance(fingerprint.get(name), Mapping) and isinstance(other.get(name), Mapping):
            fields |= {f"{name}.{key}": value for key, value in fingerprint[name].items()}
    return fields


def _relevance(name: str) -> int:
    """Place of a field, or of its object; environment variables and fields of no known place lie between the lists."""
    name = name.partition(".")[0]
    if name in _MOST_RELEVANT:
        return _MOST_RELEVANT.index(name)
    others = len(_MOST_RELEVANT)
    return others + 1 + _LEAST_RELEVANT.index(name) if name in _LEAST_RELEVANT else others
