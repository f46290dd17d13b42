"""torch without its compiler, where no layout asks for it.

torch imports the compiler, 800 modules and more than a second a rank, for what is no compiling: to tell it to keep out
of a function, to ask it for a setting, for the name of a class. Written for torch 2.13. Where another torch wants more
of it, it is imported as ever.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import torch.utils.checkpoint
from torch import nn

COMPILER = "torch._dynamo"


def leave_compiler_out() -> None:
    """Until somebody imports it by name."""
    if COMPILER in sys.modules:
        return
    torch._dynamo = _Absent(COMPILER)
    keep_undisabled(getattr(torch.utils.checkpoint, "_run_fn_with_dynamo_disabled", None))


def keep_undisabled(function: Any) -> None:
    """A function that torch disables for the compiler at its first call: leave what torch looks for from the second
    call on, so that it does not import the compiler at the first."""
    while (inner := getattr(function, "__wrapped__", None)) is not None:
        inner.__dynamo_disable = inner
        function = inner


def import_without_compiler(name: str) -> ModuleType:
    """A module that imports the compiler for itself: without it, where it was left out and that will do."""
    absent = vars(torch).get("_dynamo")
    if not isinstance(absent, _Absent):
        return importlib.import_module(name)
    sys.modules[COMPILER] = absent
    try:
        return importlib.import_module(name)
    except ImportError:
        pass  # it wants a part of the compiler
    finally:
        if sys.modules.get(COMPILER) is absent:
            del sys.modules[COMPILER]
    return importlib.import_module(name)


class _Absent(ModuleType):
    """What torch asks of the compiler where nothing is compiled; anything else is the compiler's to answer."""

    config = SimpleNamespace(error_on_nested_fx_trace=True)

    class OptimizedModule(nn.Module):
        """Nothing is one."""

    @staticmethod
    def disable(function: Callable | None = None, *_: Any, **__: Any) -> Callable:
        """With or without arguments of a decorator: there is nothing to keep out."""
        return function or (lambda decorated: decorated)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if sys.modules.get(COMPILER) is self:
            del sys.modules[COMPILER]
        return getattr(importlib.import_module(COMPILER), name)
