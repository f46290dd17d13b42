"""Dry run: the files of the first layouts' jobs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.config.loader import load_search_file
from orchestrator.config.spec import SearchSpec
from orchestrator.lifecycle.dry_run import first_layouts, write_first_jobs
from orchestrator.planning.candidates import candidates_of
from orchestrator.planning.plan import plan_of
from search_spaces.errors import InputError
from tests.orchestrator.cli.parlay import write_search
from trials.trial import TrialSpec

SEARCH = """\
name: dry
model: gpt2-1.3b
cluster: {accelerator: a100-40gb, gpus_per_node: 8, num_nodes: 2}
global_batch_size: 64
baseline: {tensor_parallel: 8, pipeline_parallel: 2}
space:
  tensor_parallel: [1, 2, 4, 8]
  precision: bf16
measure: {time_limit: 9m}
launcher:
  kind: slurm
  slurm: {partition: big, setup_file: setup.sh}
"""


@pytest.fixture
def spec(tmp_path: Path) -> SearchSpec:
    (tmp_path / "setup.sh").write_text("module purge\n")
    return load_search_file(write_search(tmp_path, SEARCH))


def test_the_baselines_job_and_the_first_choices_lie_as_a_search_would_submit_them(tmp_path, spec):
    space = candidates_of(spec)
    jobs = write_first_jobs(spec, space, tmp_path / "out")
    assert [job.what for job in jobs] == ["baseline", "first"]
    assert [job.layout for job in jobs] == [spec.baseline, plan_of(spec, space).layouts[0]]
    for number, job in enumerate(jobs, start=1):
        assert job.script == tmp_path / f"out/dry-dry-run/trials/t{number:04d}/a1/job.sh"
        assert sorted(path.name for path in job.script.parent.iterdir()) == ["job.sh", "setup.sh", "spec.json"]
        written = TrialSpec.from_json(json.loads((job.script.parent / "spec.json").read_text()))
        assert (written.layout, written.num_gpus) == (job.layout, 16)
        script = job.script.read_text()
        assert f"#SBATCH --job-name={written.attempt_key}\n" in script
        assert "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=8\n#SBATCH --time=00:10:00\n" in script
        assert "#SBATCH --partition=big\n#SBATCH --gpus-per-node=8\n" in script
        assert script.rstrip().endswith(str(job.script.parent / "spec.json"))
    assert list(first_layouts(spec, replace(space, baseline=None))) == ["first"]


def test_what_is_there_stays_as_it_is(tmp_path, spec):
    write_first_jobs(spec, candidates_of(spec), tmp_path)
    with pytest.raises(InputError, match="dry-dry-run: File exists") as caught:
        write_first_jobs(spec, candidates_of(spec), tmp_path)
    assert caught.value.problems[0].key == "--scripts"
