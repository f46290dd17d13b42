"""Dry run: the files of the first layouts' jobs, and those of the gallery's searches as a real Slurm takes them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.cli.slurm_sandbox import cloud_like, cloud_of
from orchestrator.config.loader import load_search_file
from orchestrator.config.spec import SearchSpec
from orchestrator.lifecycle.dry_run import DryRunScript, first_layouts, write_first_jobs
from orchestrator.planning.candidates import candidates_of
from orchestrator.planning.plan import plan_of
from search_spaces.errors import InputError
from slurm.sandbox.config_files import Shape
from slurm.sandbox.sandbox import SlurmSandbox
from tests.kit import loaded
from tests.orchestrator.config.test_loader import PUBLISHED, TODAY
from tests.slurm.sandboxes import require_slurm, short_folder
from trials.trial import TrialSpec

SEARCH = {
    "model": "gpt2-1.3b",
    "cluster": {"accelerator": "a100-40gb", "gpus_per_node": 8, "num_nodes": 2},
    "global_batch_size": 64,
    "baseline": {"tensor_parallel": 8, "pipeline_parallel": 2},
    "space": {"tensor_parallel": [1, 2, 4, 8], "precision": "bf16"},
    "measure": {"time_limit": "9m"},
    "launcher": {"kind": "slurm", "slurm": {"partition": "big", "setup_file": "setup.sh"}},
}


@pytest.fixture
def spec(tmp_path: Path) -> SearchSpec:
    (tmp_path / "setup.sh").write_text("module purge\n")
    return loaded(tmp_path, **SEARCH)


def test_the_baselines_job_and_the_first_choices_lie_as_a_search_would_submit_them(tmp_path, spec):
    space = candidates_of(spec)
    jobs = write_first_jobs(spec, space, tmp_path / "out")
    assert [job.what for job in jobs] == ["baseline", "first"]
    assert [job.layout_key for job in jobs] == [spec.baseline.key, plan_of(spec, space).layouts[0].key]
    for number, job in enumerate(jobs, start=1):
        script = Path(job.script)
        assert script == tmp_path / f"out/small-dry-run/trials/t{number:04d}/a1/job.sh"
        assert sorted(path.name for path in script.parent.iterdir()) == ["job.sh", "setup.sh", "spec.json"]
        written = TrialSpec.from_json(json.loads((script.parent / "spec.json").read_text()))
        assert (written.layout.key, written.num_gpus) == (job.layout_key, 16)
        text = script.read_text()
        assert f"#SBATCH --job-name={written.attempt_key}\n" in text
        assert "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=8\n#SBATCH --time=00:10:00\n" in text
        assert "#SBATCH --partition=big\n#SBATCH --gpus-per-node=8\n" in text
        assert text.rstrip().endswith(str(script.parent / "spec.json"))
    assert list(first_layouts(spec, replace(space, baseline=None))) == ["first"]


def test_what_is_there_stays_as_it_is(tmp_path, spec):
    write_first_jobs(spec, candidates_of(spec), tmp_path)
    with pytest.raises(InputError, match="small-dry-run: File exists") as caught:
        write_first_jobs(spec, candidates_of(spec), tmp_path)
    assert caught.value.problems[0].key == "--scripts"


@pytest.fixture(scope="module")
def big_slurm() -> Iterator[SlurmSandbox]:
    """One Slurm with a partition for the nodes of each system."""
    require_slurm(accounting=False)
    with short_folder() as folder:
        made = SlurmSandbox(folder, Shape(nodes=1, cloud=cloud_like([Path(name) for name in (*PUBLISHED, *TODAY)])))
        made.start()
        try:
            yield made
        finally:
            made.stop()


def on_its_nodes(name: str) -> SearchSpec:
    partition = cloud_of(load_search_file(Path(name))).partition
    # Debian's Slurm is older than --segment.
    settings = ("launcher.kind=slurm", f"launcher.slurm.partition={partition}", "launcher.slurm.segment=0")
    return load_search_file(Path(name), settings)


def refusal(slurm: SlurmSandbox, job: DryRunScript, *more: str) -> str | None:
    """Slurm's message against this script with further options; None if it would run it."""
    asked = slurm.ask("sbatch", "--test-only", *more, job.script)
    return asked.stderr if asked.returncode else None


@pytest.mark.processes
@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", [*PUBLISHED, *TODAY])
def test_slurm_would_run_the_published_recipe_and_parlays_own_choice(tmp_path: Path, big_slurm, name: str):
    spec = on_its_nodes(name)
    jobs = write_first_jobs(spec, candidates_of(spec), tmp_path)
    assert jobs[0].layout_key == spec.baseline.key
    nodes, gpus = spec.cluster.num_nodes, spec.cluster.gpus_per_node
    for job in jobs:
        assert refusal(big_slurm, job) is None
        assert "not available" in (refusal(big_slurm, job, f"--nodes={nodes + 1}") or "")
        assert "not available" in (refusal(big_slurm, job, f"--gpus-per-node={gpus + 1}") or "")
