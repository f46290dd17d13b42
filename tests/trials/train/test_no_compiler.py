"""What stands in for the compiler, with a small module in its place; and that a trial does without it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from search_spaces.layout import Layout
from tests.trials.train.deepspeed_programs import IMPORTED
from tests.trials.train.trial_processes import make_spec
from trials.folder import read_json
from trials.train import no_compiler
from trials.train.no_compiler import import_without_compiler, keep_undisabled, leave_compiler_out

SMALL = "colorsys"
"""Nothing else imports it."""


@pytest.fixture
def absent(monkeypatch, tmp_path):
    """The small module is the compiler, and left out; modules of the test may be imported from its folder."""
    monkeypatch.setattr(no_compiler, "COMPILER", SMALL)
    monkeypatch.delitem(sys.modules, SMALL, raising=False)
    monkeypatch.setitem(vars(torch), "_dynamo", None)
    monkeypatch.syspath_prepend(tmp_path)
    leave_compiler_out()
    yield torch._dynamo
    for name in (SMALL, "asks_its_class", "asks_a_part"):
        sys.modules.pop(name, None)


def test_what_is_asked_where_nothing_is_compiled_needs_no_compiler(absent):
    assert absent.disable(len, recursive=True, reason="hooks") is len
    assert absent.disable(recursive=False)(len) is len
    assert absent.config.error_on_nested_fx_trace is True
    assert not isinstance(torch.nn.Linear(1, 1), absent.OptimizedModule)
    assert SMALL not in sys.modules


def test_anything_else_is_the_compilers_own(absent):
    assert absent.rgb_to_hsv(0, 0, 0) == (0, 0, 0)
    assert SMALL in sys.modules


def test_a_module_that_imports_it_for_a_class_does_without(absent, tmp_path: Path):
    (tmp_path / "asks_its_class.py").write_text(f"from {SMALL} import OptimizedModule\n")
    assert import_without_compiler("asks_its_class").OptimizedModule is absent.OptimizedModule
    assert SMALL not in sys.modules


def test_one_that_wants_more_has_the_compiler(absent, tmp_path: Path):
    (tmp_path / "asks_a_part.py").write_text(f"from {SMALL} import OptimizedModule, hsv_to_rgb\n")
    assert import_without_compiler("asks_a_part").hsv_to_rgb(0, 0, 0) == (0, 0, 0)
    assert sys.modules[SMALL].__file__


def test_a_function_is_called_without_asking_the_compiler_to_keep_out(monkeypatch):
    called, kept = (torch._disable_dynamo(lambda number: -number) for _ in range(2))
    keep_undisabled(kept)
    monkeypatch.setitem(sys.modules, "torch._dynamo", None)
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
    assert not {"torch._dynamo", "torch._inductor"} & set(imported)
