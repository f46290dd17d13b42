"""launch.sbatch: equal to the trial's job, and a real run on a Slurm."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.common.code_snapshot import snapshot_code
from orchestrator.launchers.slurm.site import with_site
from orchestrator.recipe.build import RecipeSource
from orchestrator.recipe.launch_sbatch import slurm_options
from orchestrator.recipe.write import recipe_files, write_recipe
from orchestrator.schema.launcher import LauncherSection
from orchestrator.schema.slurm import SlurmSection
from search_spaces.hardware.links import LinkDomain, Links
from search_spaces.layouts.layout import Layout
from search_spaces.schema.validation import restore
from slurm.sandbox.sandbox import SlurmSandbox
from tests.kit import until
from tests.orchestrator.recipe.builders import LAYOUT, measured_trial, source_of
from tests.slurm.sandbox.test_sandbox import state_of
from trials.attempt_result import outcome_fault
from trials.files.folders import read_json
from trials.trial import Outcome, OutcomeStatus, TrialSpec

SITE = """\
title = "Ours"
sources = []
[slurm]
partition = "main"
threads_per_core = 1
modules = ["gcc/12", "cuda"]
[slurm.env]
NCCL_SOCKET_IFNAME = "lo"
[slurm.launch]
srun = ["--cpu-bind=cores"]
address = "{host}i"
[slurm.launch.node_folders]
TMPDIR = "/tmp"
"""


def source_with(layout: Layout = LAYOUT, **slurm: object) -> RecipeSource:
    section = LauncherSection(kind="slurm", slurm=with_site(restore(SlurmSection, slurm)))
    source = source_of(measured_trial("t0001", layout, 0.1))
    launcher = section.model_dump(mode="json", by_alias=True, exclude_none=True)
    return replace(source, search=replace(source.search, spec={"launcher": launcher}))


def files_of(source: RecipeSource, setup: str | None = None) -> dict[str, str]:
    return recipe_files(source, "2026-11-22T00:00:00Z", "sha256:0", setup)


def test_what_was_asked_and_how_the_ranks_were_started_is_kept(tmp_path):
    (tmp_path / "ours.toml").write_text(SITE)
    source = source_with(site=str(tmp_path / "ours.toml"), account="project1", setup_file="/home/ada/setup.sh")
    files = files_of(source, "export SOURCED=yes\n")
    script = files["launch.sbatch"]
    for line in (
        *("#SBATCH --account=project1", "#SBATCH --partition=main", "#SBATCH --threads-per-core=1"),
        *("module load gcc/12 || exit", ". ./setup.sh", "export NCCL_SOCKET_IFNAME=lo"),
        *("export PARLAY_ADDRESS='{host}i'", 'export PYTHONPATH="$here/code"'),
    ):
        assert line in script.splitlines()
    [ranks] = [line for line in script.splitlines() if line.startswith("exec srun")]
    assert " --ntasks=4 " in ranks
    assert " --cpu-bind=cores /bin/sh -c " in ranks
    assert ranks.endswith(' "$python" -m trials.train "$attempt/spec.json"')
    assert files["modules.txt"] == "gcc/12\ncuda\n"
    assert files["setup.sh"] == "export SOURCED=yes\n"
    assert "NCCL_SOCKET_IFNAME=lo\n" in files["env.txt"]
    assert " NCCL_SOCKET_IFNAME=lo " in files["launch.sh"]
    assert "`launch.sbatch`" in files["README.md"]
    assert source.search.spec["launcher"]["slurm"]["launch"]["srun"] == ["--cpu-bind=cores"]


def test_nodes_of_a_link_domain_stay_together_and_a_container_mounts_the_recipe():
    source = source_with()
    spec = replace(source.spec, gpus_per_node=2)
    links = Links((LinkDomain("node", 2, 90, 6), LinkDomain("rack", 8, 90, 25)))
    search = replace(source.search, spec={**source.search.spec, "cluster": {"links": links.to_json()}})
    assert slurm_options(search.spec, spec).segment == 4
    assert slurm_options(source.search.spec, spec).segment is None
    container = {"runtime": "apptainer", "image": "/images/torch.sif", "mounts": ["/data:/data:ro"]}
    script = files_of(source_with(container=container))["launch.sbatch"]
    assert 'apptainer exec --bind=/data:/data:ro "--bind=$here:$here" "--pwd=$attempt" /images/torch.sif' in script
    assert 'export APPTAINERENV_PYTHONPATH="$here/code"' in script
    assert not {"launch.sbatch", "modules.txt", "setup.sh"} & set(
        files_of(source_of(measured_trial("t0001", LAYOUT, 0.1)))
    )


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """A recipe moved to another folder, whose trial's job sourced a setup file."""
    (tmp_path / "ours.toml").write_text(SITE.replace('modules = ["gcc/12", "cuda"]\n', ""))
    snapshot_code(tmp_path / "code")
    attempt = tmp_path / "trials" / "t0001" / "a1"
    attempt.mkdir(parents=True)
    (attempt / "setup.sh").write_text("echo was sourced\n")
    two_ranks = Layout(data_parallel=2, micro_batch_size=2)
    source = source_with(two_ranks, site=str(tmp_path / "ours.toml"), setup_file="/gone/setup.sh")
    write_recipe(tmp_path / "recipe", source, tmp_path / "code")
    shutil.move(tmp_path / "recipe", tmp_path / "else where")
    return tmp_path / "else where"


@pytest.mark.processes
@pytest.mark.timeout(180)
def test_a_real_slurm_trains_with_the_recipe_wherever_it_lies(recipe, slurm_sandbox: SlurmSandbox):
    done = slurm_sandbox.ask("sbatch", "--parsable", f"--chdir={recipe}", str(recipe / "launch.sbatch"))
    assert done.returncode == 0, done.stderr
    job = done.stdout.strip()
    ends = ("COMPLETED", "FAILED", "TIMEOUT")
    until(lambda: state_of(slurm_sandbox, job), lambda state: state in ends, timeout_s=150.0)
    attempt = recipe / f"run-{job}" / "trials" / "t0001" / "a1"
    logs = [path.read_text() for path in (recipe / "job.log", *sorted(attempt.glob("rank-*.log"))) if path.exists()]
    outcome = Outcome.from_json(read_json(attempt / "outcome.r0.json") or {"logs": logs})
    assert outcome.status is OutcomeStatus.MEASURED, logs
    assert outcome_fault(TrialSpec.from_json(read_json(attempt / "spec.json")), outcome) is None
    assert "was sourced" in (recipe / "job.log").read_text()


def test_a_recipe_has_the_settings_of_its_trial():
    layout = replace(LAYOUT, settings="-env.NCCL_ALGO env.OMP_NUM_THREADS=2 launch.cpu_bind=cores")
    files = files_of(source_with(layout, env={"NCCL_ALGO": "Tree", "FI_PROVIDER": "cxi"}))
    assert "--cpu-bind=cores" in files["launch.sbatch"]
    assert "env -u NCCL_ALGO OMP_NUM_THREADS=2 " in files["launch.sbatch"]
    assert '--no-python env -u NCCL_ALGO OMP_NUM_THREADS=2 "$python" -m ' in files["launch.sh"]
    assert "NCCL_ALGO=" not in files["launch.sh"]
    assert "env -u NCCL_ALGO" in next(line for line in files["README.md"].splitlines() if "deepspeed --num" in line)
    assert files["env.txt"].splitlines()[-2:] == ["OMP_NUM_THREADS=2", "# NCCL_ALGO is not set"]
    assert TrialSpec.from_json(json.loads(files["spec.json"])).layout == layout
