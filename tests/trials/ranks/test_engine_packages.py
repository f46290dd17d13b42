"""Packages of engine megatron-core: verified versions, faults, and the end of a rank."""

from __future__ import annotations

import configparser
from dataclasses import replace

import pytest

from search_spaces.adapters import Adapters
from search_spaces.engines import ACCELERATE, MEGATRON_CORE, TORCHTITAN
from search_spaces.layouts.layout import Layout
from tests.sources import ROOT
from tests.trials.train.trial_processes import make_spec
from trials.diagnostics.parity_models import SHAPES
from trials.ranks.engine_packages import (
    APEX,
    BITSANDBYTES,
    FLASH_ATTENTION,
    FLASH_ATTENTION_3,
    FLASH_ATTENTION_4,
    PACKAGED_ENGINES,
    PACKAGES,
    PEFT,
    TORCH,
    TORCHAO,
    TRANSFORMER_ENGINE,
    TRANSFORMERS,
    VERIFIED,
    VersionRange,
    more_packages_of,
    package_faults,
    packages_of,
    require_imported,
    require_packages,
    takes_transformer_engine,
)
from trials.ranks.environment import RankEnvironment
from trials.ranks.failures import TrialFailure, reason_of
from trials.train.program import require_runnable
from trials.trial import FailureReason

MATH, FLASH = (Layout(engine=MEGATRON_CORE, precision="bf16", attention_kernel=kernel) for kernel in ("math", "flash"))
GPT2, LLAMA = SHAPES["gpt2"], SHAPES["llama"]
GPU = "a100-80gb"
NOTHING = dict.fromkeys(PACKAGES)
WELL = {**NOTHING, MEGATRON_CORE: "0.16.1", TRANSFORMER_ENGINE: "2.9.0", FLASH_ATTENTION: "2.8.1"}


RELEASES = ("0.16.1", "0.16.10", "0.16.2+local", "0.16.1.post1")
OTHERS = ("0.16.0", "0.16", "0.16.1rc0", "0.16.2.dev3", "0.17", "0.17.0", "1.0", "unknown", "")


def test_a_release_of_the_range_is_verified_and_nothing_else():
    verified = VersionRange("0.16.1", "0.17")
    assert [version for version in RELEASES + OTHERS if version in verified] == [*RELEASES]


FP8 = {"matmul_precision": "fp8_rowwise"}
STAGES = {"pipeline_parallel": 2}
TITAN_LAYOUT, TITAN_FLASH = (Layout(engine=TORCHTITAN, attention_kernel=kernel) for kernel in ("flex", "flash"))
SPED_LAYOUT = Layout(engine=ACCELERATE)
TITAN, SPED = {TORCHTITAN: "0.3.0"}, {ACCELERATE: "1.15.0", TRANSFORMERS: "5.23.1"}


@pytest.mark.parametrize(
    ("layout", "accelerator", "installed", "words"),
    [
        (MATH, GPU, {**WELL, TRANSFORMER_ENGINE: None}, []),
        (MATH, "cpu", {**WELL, MEGATRON_CORE: None}, ["megatron-core is not installed"]),
        (MATH, GPU, {**WELL, MEGATRON_CORE: "0.17.0"}, ["megatron-core 0.17.0 is installed"]),
        (FLASH, GPU, {**WELL, FLASH_ATTENTION: None}, ["flash-attn is not installed"]),
        (FLASH, GPU, {**WELL, FLASH_ATTENTION: "2.8.3"}, ["flash-attn 2.8.3 is installed"]),
        (FLASH, GPU, {**WELL, TRANSFORMER_ENGINE: "2.11.0", FLASH_ATTENTION: "2.8.3"}, []),
        (FLASH, GPU, {}, ["megatron-core is not installed", "transformer-engine is not installed"]),
        (Layout(engine="deepspeed", attention_kernel="flash"), GPU, {}, []),
        (replace(TITAN_LAYOUT, **STAGES), "cpu", {**TITAN, TORCH: "2.13.0+cpu"}, []),
        (replace(TITAN_LAYOUT, **STAGES), GPU, {**TITAN, TORCH: "2.13.0"}, ["pip install 'torch>=2.14'"]),
        (replace(TITAN_LAYOUT, **FP8), GPU, {**TITAN, TORCHAO: "0.18.0"}, []),
        (replace(TITAN_LAYOUT, **FP8), GPU, TITAN, ["pip install 'torchao>=0.18,<0.19'"]),
        (TITAN_LAYOUT, "cpu", {TORCHTITAN: "0.2.2"}, ["pip install 'torchtitan>=0.3.0,<0.4'"]),
        (TITAN_FLASH, GPU, TITAN, []),
        (TITAN_FLASH, "cpu", TITAN, []),
        (TITAN_FLASH, "h200-141gb", TITAN, [FLASH_ATTENTION_3]),
        (TITAN_FLASH, "h200-141gb", {**TITAN, FLASH_ATTENTION_3: "1"}, []),
        (TITAN_FLASH, "gb200-186gb", TITAN, [FLASH_ATTENTION_4]),
        (SPED_LAYOUT, GPU, SPED, []),
        (SPED_LAYOUT, GPU, {ACCELERATE: "1.15.0"}, ["pip install 'transformers>=5.23.0,<5.24'"]),
    ],
)
def test_what_a_layout_lacks_is_named(layout, accelerator, installed, words):
    found = [str(fault) for fault in package_faults(layout, LLAMA, accelerator, {**NOTHING, **installed})]
    assert len(found) == len(words)
    assert all(word in fault for word, fault in zip(words, found, strict=True))


@pytest.mark.parametrize(
    ("layout", "kind", "missing"),
    [
        (SPED_LAYOUT, "lora", [PEFT]),
        (SPED_LAYOUT, "qlora", [PEFT, BITSANDBYTES]),
        (Layout(engine="torch"), "lora", []),
    ],
)
def test_adapters_of_accelerate_are_those_of_packages(layout, kind, missing):
    model = replace(LLAMA, adapters=Adapters(4, kind), trainable=())
    for installed, lacking in ((SPED, missing), ({**SPED, PEFT: "0.21.2", BITSANDBYTES: "0.50.2"}, [])):
        found = package_faults(layout, model, "cpu", {**NOTHING, **installed})
        assert [fault.package for fault in found] == lacking
    assert list(more_packages_of(layout, model)) == missing


@pytest.mark.parametrize(
    ("precision", "is_installed", "is_taken"), [("bf16", True, True), ("fp32", True, False), ("bf16", False, False)]
)
def test_layers_that_multiply_fp32_as_tf32_are_not_taken_for_it(precision, is_installed, is_taken):
    assert takes_transformer_engine(replace(MATH, precision=precision), is_installed) == is_taken


@pytest.mark.bad_input(54)
@pytest.mark.parametrize(
    ("model", "accelerator", "transformer_engine", "apex", "is_refused"),
    [
        (GPT2, GPU, None, None, True),
        (LLAMA, GPU, None, "0.1", True),
        (GPT2, GPU, None, "0.1", False),
        (LLAMA, GPU, "2.9.0", None, False),
        (LLAMA, "cpu", None, None, False),  # cpu_device stands in for the norm
    ],
)
def test_sequence_parallelism_needs_layers_whose_norm_supports_it(
    model, accelerator, transformer_engine, apex, is_refused
):
    installed = {**WELL, TRANSFORMER_ENGINE: transformer_engine, APEX: apex}
    layout = replace(MATH, tensor_parallel=2, sequence_parallel=True)
    found = [str(fault) for fault in package_faults(layout, model, accelerator, installed)]
    assert [("sequence_parallel is true" in fault, "'transformer-engine[" in fault) for fault in found] == (
        [(True, True)] if is_refused else []
    )
    assert list(package_faults(MATH, model, accelerator, installed)) == []


def test_what_is_installed_with_parlay_is_what_was_verified():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    extras = setup["options.extras_require"]
    packages = [package for engine in PACKAGED_ENGINES for package in packages_of(engine)]
    verified = {package: f"{package}{VERIFIED[package]}" for package in (*packages, PEFT, BITSANDBYTES)}
    assert extras["megatron"].split() == [verified[MEGATRON_CORE]]
    assert extras["torchtitan"].split() == [verified[TORCHTITAN]]
    of_accelerate = (ACCELERATE, BITSANDBYTES, PEFT, TRANSFORMERS)
    assert extras["accelerate"].split() == [verified[package] for package in of_accelerate]
    assert {line for line in extras["trainers"].split() if not line.startswith("trl")} == set(verified.values())
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = dict(line.split("==") for line in lines if not line.startswith("#"))
    assert all(pinned[package] in VERIFIED[package] for package in verified)


@pytest.mark.bad_input(54)
def test_a_rank_ends_with_what_it_lacks_before_it_imports_anything(tmp_path, monkeypatch):
    monkeypatch.setattr("trials.ranks.engine_packages.package_version", {**WELL, MEGATRON_CORE: "0.15.3"}.get)
    with pytest.raises(TrialFailure) as ended:
        require_runnable(make_spec(MATH), RankEnvironment(rank=0, world_size=1, local_rank=0))
    assert reason_of(ended.value, tmp_path) is FailureReason.SCRIPT_ERROR
    assert "megatron-core 0.15.3 is installed" in str(ended.value)
    assert "pip install 'megatron-core>=0.16.1,<0.17'" in str(ended.value)
    monkeypatch.setattr("trials.ranks.engine_packages.package_version", WELL.get)
    require_packages(replace(make_spec(FLASH), accelerator=GPU))


@pytest.mark.bad_input(54)
def test_a_transformer_engine_that_is_broken_ends_the_rank(tmp_path):
    for installed, is_imported in ((None, False), ("2.9.0", True)):
        require_imported(installed, is_imported)
    with pytest.raises(
        TrialFailure, match=r"transformer-engine 2.9.0 is installed, but megatron-core could not"
    ) as ended:
        require_imported("2.9.0", False)
    assert reason_of(ended.value, tmp_path) is FailureReason.SCRIPT_ERROR
