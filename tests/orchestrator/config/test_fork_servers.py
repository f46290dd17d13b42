"""Engines with a fork server, and the memory that pilots ask for on their behalf."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.config.fork_servers import SERVER_MEMORY_MIB, forked_engines, launcher_with_servers
from orchestrator.config.loader import load_search_file
from orchestrator.config.spec import SearchSpec
from orchestrator.planning.candidates import candidates_of
from orchestrator.preflight.slurm_site import smallest_and_largest
from tests.kit import MINIMAL

BOTH_ENGINES = "space.engine=[torch, deepspeed]"
PILOT = "launcher.kind=slurm_pilot"
SHARED_JOBS = ["launcher.kind=slurm", "launcher.slurm.shared_jobs=true"]


def spec_with(folder: Path, *changes: str) -> SearchSpec:
    (folder / "search.yaml").write_text(MINIMAL)
    return load_search_file(folder / "search.yaml", changes)


@pytest.mark.parametrize(
    ("changes", "engines"),
    [
        ([], ("torch",)),
        ([BOTH_ENGINES], ("deepspeed", "torch")),
        ([BOTH_ENGINES, "launcher.kind=local", "measure.warm_start=true"], ("deepspeed", "torch")),
        (["measure.warm_start=false"], ()),
        (["launcher.kind=slurm"], ()),
        (SHARED_JOBS, ("torch",)),
        (["trainer.kind=megatron-lm", "trainer.script=pretrain_gpt.py"], ()),
    ],
)
def test_ranks_are_forked_where_the_launcher_the_trainer_and_the_user_allow_it(
    tmp_path: Path, changes: list[str], engines: tuple[str, ...]
) -> None:
    assert forked_engines(spec_with(tmp_path, *changes)) == engines


@pytest.mark.parametrize(
    ("changes", "mem"),
    [
        (["launcher.slurm.mem=4G"], f"{4096 + SERVER_MEMORY_MIB}M"),
        (["launcher.slurm.mem=4G", BOTH_ENGINES], f"{4096 + 2 * SERVER_MEMORY_MIB}M"),
        (["launcher.slurm.mem=4G", "measure.warm_start=false"], "4G"),
        (["launcher.slurm.mem='0'"], "0"),
        ([], None),
    ],
)
def test_a_pilot_asks_for_the_memory_of_its_servers_too(tmp_path: Path, changes: list[str], mem: str | None) -> None:
    spec = spec_with(tmp_path, PILOT, *changes)
    assert launcher_with_servers(spec).slurm.mem == mem
    assert {request.options.mem for request in smallest_and_largest(spec, candidates_of(spec))} == {mem}


def test_a_shared_job_asks_for_the_memory_of_its_servers_too(tmp_path: Path) -> None:
    spec = spec_with(tmp_path, *SHARED_JOBS, "launcher.slurm.mem=4G")
    mem = f"{4096 + SERVER_MEMORY_MIB}M"
    assert launcher_with_servers(spec).slurm.mem == mem
    assert {request.options.mem for request in smallest_and_largest(spec, candidates_of(spec))} == {mem}


def test_a_job_of_one_trial_asks_for_what_the_file_says(tmp_path: Path) -> None:
    spec = spec_with(tmp_path, "launcher.kind=slurm", "launcher.slurm.mem=4G")
    assert launcher_with_servers(spec) == spec.launcher
