"""Findings on the packages of engine megatron-core, here and on the nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.config.loader import load_search_file
from orchestrator.config.spec import SearchSpec
from orchestrator.diagnostics.doctor.engine_packages import node_package_findings, package_findings
from orchestrator.diagnostics.doctor.finding import Level
from tests.orchestrator.cli.parlay import TINY_SEARCH, write_search
from tests.orchestrator.diagnostics.doctor.test_node_findings import one_changed, probe

CORE, ENGINE = "megatron_core", "transformer_engine"
WELL = {"megatron-core": "0.16.1", "transformer-engine": "2.9.0", "flash-attn": None, "apex": None}
GPU, FLASH = (
    "cluster.accelerator=a100-80gb",
    "space={attention_kernel: [math, flash], engine: megatron-core, precision: bf16}",
)


def spec_of(folder: Path, *changes: str, engine: str = "megatron-core") -> SearchSpec:
    return load_search_file(write_search(folder, TINY_SEARCH), [f"space.engine={engine}", "baseline={}", *changes])


@pytest.mark.bad_input(54)
@pytest.mark.parametrize(
    ("core", "engine", "changes", "expected"),
    [
        ("0.16.1", None, (), [(CORE, Level.OK)]),
        ("0.16.1", "1.0", (), [(CORE, Level.OK)]),  # a CPU takes none of its layers
        (None, None, (), [(CORE, Level.ERROR)]),
        ("0.15.3", None, (), [(CORE, Level.ERROR)]),
        ("0.17.0", "2.10.0", (GPU,), [(CORE, Level.ERROR), (ENGINE, Level.OK)]),
        ("0.16.1", "2.10.0", (GPU,), [(CORE, Level.OK), (ENGINE, Level.OK)]),
        ("0.16.1", "2.12.0", (GPU,), [(CORE, Level.OK), (ENGINE, Level.WARNING)]),
        ("0.16.1", None, (GPU,), [(CORE, Level.OK), (ENGINE, Level.NOTE)]),
        ("0.16.1", None, (GPU, FLASH), [(ENGINE, Level.ERROR), (CORE, Level.OK)]),
        ("0.16.1", "2.10.0", (GPU, FLASH), [("flash_attn", Level.ERROR), (CORE, Level.OK), (ENGINE, Level.OK)]),
        ("0.16.1", None, (FLASH,), [(CORE, Level.OK)]),  # the rules reject flash attention on a CPU
    ],
)
def test_what_is_installed_is_compared_with_what_was_verified(tmp_path, core, engine, changes, expected):
    installed = {**WELL, "megatron-core": core, "transformer-engine": engine}
    found = list(package_findings(installed, "/opt/python", spec_of(tmp_path, *changes)))
    assert [(finding.name, finding.level) for finding in found] == expected
    assert all("megatron-core" in finding.message for finding in found)


@pytest.mark.parametrize(("version", "level"), [("1.15.0", Level.OK), ("1.16.0", Level.ERROR), (None, Level.ERROR)])
def test_the_trainer_accelerate_has_a_finding_on_its_package(tmp_path, version, level):
    arguments = "['{micro_batch_size}', '{grad_accum_steps}']"
    patterns = "{step_time_s: 'took (.*) s'}"
    trainer = f"trainer={{kind: accelerate, script: train.py, patterns: {patterns}, arguments: {arguments}}}"
    changes = (trainer, "space.engine=accelerate-launch", "baseline={}")
    spec = load_search_file(write_search(tmp_path, TINY_SEARCH), changes)
    [found] = package_findings({"accelerate": version, "transformers": None}, "/opt/python", spec)
    assert (found.name, found.level) == ("accelerate", level)


def test_a_search_without_the_engine_has_no_finding(tmp_path):
    installed = dict.fromkeys(WELL)
    assert list(package_findings(installed, "/opt/python", spec_of(tmp_path, engine="torch"))) == []
    assert list(node_package_findings(probe().ranks, spec_of(tmp_path, engine="torch"))) == []


@pytest.mark.bad_input(54)
def test_the_packages_of_the_nodes_are_compared_too(tmp_path):
    spec, well = spec_of(tmp_path, GPU), probe(packages=WELL)
    assert [finding.level for finding in node_package_findings(well.ranks, spec)] == [Level.OK, Level.OK]
    [old, _] = node_package_findings(probe(packages={**WELL, "megatron-core": "0.15.3"}).ranks, spec)
    assert (old.level, "0.15.3 is installed, but engine megatron-core was verified with" in old.message) == (
        Level.ERROR,
        True,
    )
    [differs] = node_package_findings(one_changed(well, 5, packages={**WELL, "megatron-core": "0.16.2"}).ranks, spec)
    assert (differs.name, differs.level) == (CORE, Level.ERROR)
    assert "n1 has megatron-core 0.16.1" in differs.message
    assert "n2 has megatron-core 0.16.2" in differs.message
    [lacks] = node_package_findings(one_changed(well, 5, packages=dict.fromkeys(WELL)).ranks, spec)
    assert lacks.message.endswith("n2 has none of them")
