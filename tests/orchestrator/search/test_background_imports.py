"""Imports in a thread, beside the driver."""

from __future__ import annotations

import threading

import pytest

from orchestrator.search import background_imports


@pytest.fixture(autouse=True)
def _no_imports_yet(monkeypatch):
    monkeypatch.setattr(background_imports, "_thread", None)


def test_the_imports_are_made_in_order_and_waited_for():
    gate, made = threading.Event(), []
    background_imports.start([gate.wait, lambda: made.append("first"), lambda: made.append("second")])
    assert made == []
    gate.set()
    background_imports.wait()
    assert made == ["first", "second"]


def test_an_import_that_fails_is_left_to_who_uses_it():
    made = []
    background_imports.start([lambda: [][0], lambda: made.append("second")])
    background_imports.wait()
    assert made == ["second"]
