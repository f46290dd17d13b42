"""Packages of the ranks' interpreter on this machine, asked before anything is launched."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.config.spec import SearchSpec
from orchestrator.diagnostics.preflight.trainer import PACKAGES_PROGRAM, require_software, run_python
from search_spaces.engines import ACCELERATE_LAUNCH, MEGATRON_CORE
from search_spaces.errors import InputError
from search_spaces.layouts.layout import Layout
from search_spaces.model_shape import ModelShape
from tests.orchestrator.past_searches import spec_in
from trials.diagnostics.parity_models import SHAPES
from trials.ranks.engine_packages import PACKAGES

MATH, FLASH = (Layout(engine=MEGATRON_CORE, precision="bf16", attention_kernel=kernel) for kernel in ("math", "flash"))
SEQUENCE = replace(MATH, tensor_parallel=2, sequence_parallel=True)
MODEL = SHAPES["gpt2"]
GPU = "cluster.accelerator=a100-80gb"


def python_with(folder: Path, **installed: str) -> str:
    """An interpreter that answers with these packages, whatever it is asked."""
    path = folder / "python"
    versions = {name.replace("_", "-"): version for name, version in installed.items()}
    answer = json.dumps({"torch module": "found", **versions})
    path.write_text(f"#!/bin/sh\necho '{answer}'\n")
    path.chmod(0o755)
    return str(path)


def trained(*layouts: Layout) -> list[tuple[Layout, ModelShape]]:
    return [(layout, MODEL) for layout in layouts]


def search(folder: Path, python: str, *overrides: str) -> SearchSpec:
    return spec_in(folder, f"trainer.python={python}", "space.engine=megatron-core", *overrides)


@pytest.mark.bad_input(54)
@pytest.mark.parametrize(
    ("installed", "layout", "words"),
    [
        ({}, MATH, "megatron-core is not installed"),
        ({"megatron_core": "0.15.3"}, MATH, "megatron-core 0.15.3 is installed"),
        ({"megatron_core": "0.16.1"}, FLASH, "transformer-engine is not installed"),
        (
            {"megatron_core": "0.16.1"},
            SEQUENCE,
            "sequence_parallel is true with norm layernorm, and transformer-engine is not installed",
        ),
    ],
)
def test_what_ranks_here_would_lack_is_refused(tmp_path, installed, layout, words):
    python = python_with(tmp_path, **installed)
    with pytest.raises(InputError) as refused:
        require_software(search(tmp_path, python, GPU), trained(Layout(), layout, layout))
    [problem] = refused.value.problems
    assert (problem.code, problem.key, problem.value) == ("package", "trainer.python", python)
    assert problem.message == f"{python}: {words}"
    assert "megatron-core" in (problem.rule or "")
    assert (problem.fix or "").startswith("pip install '")


@pytest.mark.bad_input(54)
def test_what_the_trainer_accelerate_would_lack_here_is_refused(tmp_path):
    python = python_with(tmp_path, accelerate="1.14.0")
    with pytest.raises(InputError) as refused:
        require_software(search(tmp_path, python, GPU), trained(Layout(engine=ACCELERATE_LAUNCH)))
    [problem] = refused.value.problems
    assert problem.message == f"{python}: accelerate 1.14.0 is installed"
    assert problem.rule == "engine accelerate-launch was verified with accelerate>=1.15.0,<1.16"


@pytest.mark.parametrize(
    ("installed", "layout", "override"),
    [
        ({"megatron_core": "0.16.1", "apex": "0.1"}, SEQUENCE, GPU),
        ({"megatron_core": "0.16.4", "transformer_engine": "2.10.0", "flash_attn": "2.8.3"}, FLASH, GPU),
        ({"accelerate": "1.15.2"}, Layout(engine=ACCELERATE_LAUNCH), GPU),  # the script may do without transformers
        ({}, MATH, "launcher={kind: slurm}"),  # only a job can tell what its nodes have
    ],
)
def test_what_is_there_not_needed_or_elsewhere_is_not_refused(tmp_path, installed, layout, override):
    require_software(search(tmp_path, python_with(tmp_path, **installed), override), trained(layout))


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        *((answer, "runs no Python program") for answer in ("exit 1", "echo []", "exec yes")),
        ("echo '{}'", "has no torch"),
    ],
)
def test_what_is_no_python_or_lacks_torch_is_refused(tmp_path, answer, message):
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{answer}\n")
    python.chmod(0o755)
    with pytest.raises(InputError) as refused:
        require_software(search(tmp_path, str(python)), trained(Layout()))
    [problem] = refused.value.problems
    assert (problem.code, problem.key, problem.message) == ("interpreter", "trainer.python", f"{python} {message}")


@pytest.mark.slow
def test_a_python_without_packages_says_so(tmp_path):
    from sys import executable

    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {executable} -S "$@"\n')
    python.chmod(0o755)
    answered = run_python(str(python), PACKAGES_PROGRAM, 60)
    assert json.loads(answered) == dict.fromkeys(("deepspeed", "torch module", *PACKAGES))
