"""What stands in for the compiler, with a small module in its place; and that a trial does without it."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path

import pytest
import torch

from search_spaces.layout import Layout
from tests.trials.train.deepspeed_programs import IMPORTED
from tests.trials.train.trial_processes import make_spec
from trials.folder import read_json
from trials.train.no_compiler import COMPILER, imports_without_compiler, keep_undisabled, leave_compiler_out


@pytest.fixture
def absent(monkeypatch, tmp_path):
    """The compiler is left out; an import of it finds a small module."""
    (tmp_path / "small.py").write_text("def explain(): return 'the small one'\n")
    monkeypatch.delitem(sys.modules, COMPILER, raising=False)
    monkeypatch.setitem(vars(torch), "_dynamo", None)
    monkeypatch.setattr(sys, "meta_path", [Finder(tmp_path / "small.py"), *sys.meta_path])
    leave_compiler_out()
    yield torch._dynamo
    sys.modules.pop(COMPILER, None)


class Finder:
    """Finds the compiler in this file."""

    def __init__(self, path: Path):
        self._path = path

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return spec_from_file_location(name, self._path) if name == COMPILER else None


def test_what_is_asked_where_nothing_is_compiled_needs_no_compiler(absent):
    assert absent.disable(len, recursive=True, reason="hooks") is len
    assert absent.disable(recursive=False)(len) is len
    assert absent.config.error_on_nested_fx_trace is True
    assert not isinstance(torch.nn.Linear(1, 1), absent.OptimizedModule)
    assert COMPILER not in sys.modules


def test_anything_else_is_the_compilers_own(absent):
    assert absent.explain() == "the small one"
    assert torch._dynamo is sys.modules[COMPILER] is not absent


def test_a_module_that_imports_it_for_a_class_does_without(absent):
    with imports_without_compiler():
        from torch._dynamo import OptimizedModule
    assert OptimizedModule is absent.OptimizedModule
    assert COMPILER not in sys.modules


def test_one_that_wants_more_has_the_compiler(absent):
    with imports_without_compiler():
        from torch._dynamo import explain
    assert explain() == "the small one"  # type: ignore[call-arg]
    assert torch._dynamo is sys.modules[COMPILER] is not absent


def test_one_that_wants_a_part_of_it_is_told_that_there_is_none(absent):
    with pytest.raises(ImportError), imports_without_compiler():
        import torch._dynamo.decorators  # noqa: F401
    assert COMPILER not in sys.modules


def test_a_function_is_called_without_asking_the_compiler_to_keep_out(monkeypatch):
    called, kept = (torch._disable_dynamo(lambda number: -number) for _ in range(2))
    keep_undisabled(kept)
    monkeypatch.setitem(sys.modules, COMPILER, None)
    assert kept(1) == -1
    with pytest.raises(ImportError):
        called(1)


@pytest.mark.processes
@pytest.mark.timeout(120)
def test_a_pipeline_that_recomputes_imports_no_compiler(start):
    layout = Layout(pipeline_parallel=2, grad_accum_steps=2, activation_checkpointing="full")
    trial = start(make_spec(layout), program=("-m", "tests.trials.train.deepspeed_programs"))
    assert trial.wait() == [0, 0], trial.logs()
    imported = (read_json(trial.folder.path / IMPORTED) or {})["modules"]
    assert "torch.distributed.pipelining" in imported
    assert not {COMPILER, "torch._inductor"} & set(imported)
