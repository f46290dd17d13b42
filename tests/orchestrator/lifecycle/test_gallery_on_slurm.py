"""The gallery's searches checked by a real Slurm with as many nodes of their shape, all of them down."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.cli.slurm_sandbox import cloud_like, cloud_of
from orchestrator.config.spec import SearchSpec
from orchestrator.lifecycle.dry_run import DryJob, write_first_jobs
from orchestrator.planning.candidates import candidates_of
from slurm.sandbox.sandbox import SlurmSandbox
from tests.orchestrator.config.test_ready_made_searches import PUBLISHED, TODAY, path_of, ready_made
from tests.slurm.sandboxes import require_slurm, short_folder

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def big_slurm() -> Iterator[SlurmSandbox]:
    """One Slurm with a partition for the nodes of each system."""
    require_slurm(accounting=False)
    with short_folder() as folder:
        made = SlurmSandbox(folder, nodes=1, cloud=cloud_like([path_of(name) for name in (*PUBLISHED, *TODAY)]))
        made.start()
        try:
            yield made
        finally:
            made.stop()


def on_its_nodes(name: str) -> SearchSpec:
    partition = cloud_of(ready_made(name)).partition
    # Debian's Slurm is older than --segment.
    settings = ("launcher.kind=slurm", f"launcher.slurm.partition={partition}", "launcher.slurm.segment=0")
    return ready_made(name, *settings)


def refusal(slurm: SlurmSandbox, job: DryJob, *more: str) -> str | None:
    """Slurm's message against this script with further options; None if it would run it."""
    asked = slurm.ask("sbatch", "--test-only", *more, str(job.script))
    return asked.stderr if asked.returncode else None


@pytest.mark.parametrize("name", [*PUBLISHED, *TODAY])
def test_slurm_would_run_the_published_recipe_and_parlays_own_choice(tmp_path: Path, big_slurm, name: str):
    spec = on_its_nodes(name)
    jobs = write_first_jobs(spec, candidates_of(spec), tmp_path)
    assert jobs[0].layout == spec.baseline
    nodes, gpus = spec.cluster.num_nodes, spec.cluster.gpus_per_node
    for job in jobs:
        assert refusal(big_slurm, job) is None
        assert "not available" in (refusal(big_slurm, job, f"--nodes={nodes + 1}") or "")
        assert "not available" in (refusal(big_slurm, job, f"--gpus-per-node={gpus + 1}") or "")
