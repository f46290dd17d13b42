"""Differences between a training and its trials, in words that several importers have."""

from __future__ import annotations

from typing import Any


def biases_of(norm: str) -> str:
    return f"a model with norm {norm} has {'no biases' if norm == 'rmsnorm' else 'biases'}"


def other_number_of_positions(setting: str, positions: Any) -> str:
    return f"{setting} is {positions}; a model has seq_length learned positions."
