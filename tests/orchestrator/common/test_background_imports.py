"""Slow imports in a thread: begun once, waited for, and never an error of their own."""

from __future__ import annotations

import threading

import pytest

from orchestrator.common import background_imports


@pytest.fixture(autouse=True)
def _no_imports_yet(monkeypatch):
    monkeypatch.setattr(background_imports, "_thread", None)


def test_without_imports_nothing_is_waited_for():
    background_imports.wait()


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


def test_a_process_begins_them_once():
    made = []
    for name in ("first", "second"):
        background_imports.start([lambda name=name: made.append(name)])
        background_imports.wait()
    assert made == ["first"]


def test_without_a_thread_they_are_left_to_who_uses_them(monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    background_imports.start([])
    background_imports.wait()
