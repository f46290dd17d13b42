"""Pytest plugin: writes the functions of ours that each test runs as JSON to the file named by FUNCTION_CALLS_TO."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections import defaultdict
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]

_tests: dict[CodeType, list[str]] = defaultdict(list)
_seen: set[CodeType] = set()
_running = [""]


def pytest_configure() -> None:
    threading.settrace(_note)
    sys.settrace(_note)


def _note(frame: FrameType, _event: str, _argument: Any) -> None:
    """Called once for each call of a Python function; None asks for nothing more about it."""
    code = frame.f_code
    if code not in _seen:
        _seen.add(code)
        _tests[code].append(_running[0])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item):
    _running[0] = item.nodeid
    _seen.clear()
    sys.settrace(_note)  # again: Python drops it where it runs out of stack, as some tests let it
    return (yield)


def pytest_sessionfinish() -> None:
    sys.settrace(None)
    found: dict[str, set[str]] = defaultdict(set)
    for code, tests in list(_tests.items()):  # threads that were started before go on noting
        if Path(code.co_filename).is_relative_to(ROOT):
            found[f"{Path(code.co_filename).relative_to(ROOT)}::{_function(code)}"] |= {*tests} - {""}
    listed = {function: sorted(tests) for function, tests in found.items()}
    Path(os.environ["FUNCTION_CALLS_TO"]).write_text(json.dumps(listed))


def _function(code: CodeType) -> str:
    """The outermost function that the code stands in."""
    return code.co_qualname.partition(".<locals>")[0]
