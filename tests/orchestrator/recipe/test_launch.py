"""launch.sh and launch.sbatch: their content, and real runs by bash and torchrun on two ranks, and by a Slurm."""

from __future__ import annotations

import importlib.util
import json
import os
import py_compile
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.config.schema.launcher import LauncherSection
from orchestrator.config.schema.slurm import SlurmSection
from orchestrator.config.site import with_site
from orchestrator.recipe.build import RecipeSource
from orchestrator.recipe.launch_sbatch import slurm_options
from orchestrator.recipe.render import launch_sh
from orchestrator.recipe.write import recipe_files, write_recipe
from orchestrator.search.code_snapshot import snapshot_code
from search_spaces.hardware.links import LinkDomain, Links
from search_spaces.layouts.layout import Layout
from search_spaces.schema.validation import restore
from slurm.sandbox.sandbox import SlurmSandbox
from tests.kit import until
from tests.orchestrator.recipe.builders import LAYOUT, measured_trial, source_of, spec_of
from tests.slurm.sandbox.test_sandbox import state_of
from trials.attempt_result import outcome_fault
from trials.files.folders import read_json
from trials.trial import Outcome, OutcomeStatus, TrialSpec


def launch(folder, *arguments: str, cwd) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", str(folder / "launch.sh"), *arguments], cwd=cwd, capture_output=True, text=True, check=False
    )


def write_program(recipe: Path, program: str) -> Path:
    """The package of a recipe whose ranks run this."""
    package = recipe / "code" / "trials"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "train.py").write_text(program)
    (recipe / "spec.json").write_text("{}")
    return package


@pytest.mark.parametrize(
    ("num_nodes", "gpus_per_node", "started"),
    [(1, 4, "--nnodes 1 --nproc-per-node 4 "), (1, 8, "--nnodes 1 --nproc-per-node 4 "), (2, 2, "--nproc-per-node 2 ")],
)
def test_launch_sh_starts_as_many_ranks_a_node_as_the_layout_has_there(num_nodes, gpus_per_node, started):
    spec = spec_of(Layout(num_nodes=num_nodes, data_parallel=4), gpus_per_node=gpus_per_node)
    assert started in launch_sh(spec, {}, "python3")


@pytest.mark.processes
@pytest.mark.timeout(180)
def test_launch_sh_gives_variables_of_any_name_to_the_ranks_alone(tmp_path):
    words = ["env.UID=7", "env.attempt=1", "env.here=/nonexistent", "env.python=none", "env.run=x y"]
    layout = Layout(data_parallel=2, settings=shlex.join(["-env.OMP_NUM_THREADS", *words]))
    text = launch_sh(spec_of(layout), {"OMP_NUM_THREADS": "1", "here": "/nonexistent"}, shlex.quote(sys.executable))
    names = "('UID', 'attempt', 'here', 'python', 'run', 'OMP_NUM_THREADS')"
    write_program(tmp_path / "recipe", f"import os\nprint([os.environ.get(name) for name in {names}], flush=True)")
    (tmp_path / "recipe" / "launch.sh").write_text(text)
    done = launch(tmp_path / "recipe", "made", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("['7', '1', '/nonexistent', 'none', 'x y', None]") == 2


@pytest.mark.processes
@pytest.mark.timeout(180)
@pytest.mark.bad_input(42)
def test_launch_sh_runs_no_compiled_file_of_the_recipe_and_leaves_none(tmp_path, monkeypatch):
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    recipe = tmp_path / "recipe"
    package = write_program(recipe, "print('ours', flush=True)")
    stray = write_program(tmp_path / "stray", "print('evil', flush=True)")  # of the same size and time
    for folder in (package, stray):
        os.utime(folder / "train.py", (0, 0))
    (recipe / "launch.sh").write_text(launch_sh(spec_of(Layout(data_parallel=2)), {}, sys.executable))
    assert launch(recipe, "made", cwd=tmp_path).stdout.count("ours") == 2
    assert not list(package.rglob("__pycache__"))
    planted = Path(importlib.util.cache_from_source(str(package / "train.py")))
    planted.parent.mkdir()
    py_compile.compile(str(stray / "train.py"), str(planted))
    ran = launch(recipe, "again", cwd=tmp_path)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert f"remove every __pycache__ in {recipe}/code" in ran.stderr


@pytest.mark.processes
@pytest.mark.timeout(180)
def test_launch_sh_trains_with_the_layout_and_the_recipes_own_code(tmp_path):
    layout, folder = Layout(tensor_parallel=2, micro_batch_size=2, grad_accum_steps=4), tmp_path / "recipe"
    snapshot_code(tmp_path / "code")
    write_recipe(folder, source_of(measured_trial("t0001", layout, 0.1)), tmp_path / "code")
    elsewhere = tmp_path / "else where"
    (elsewhere / "trials").mkdir(parents=True)  # a stray package of the same name must not hide the recipe's
    (elsewhere / "trials" / "__init__.py").write_text("raise SystemExit('the wrong trials')")

    ran = launch(folder, "new run", cwd=elsewhere)

    assert ran.returncode == 0, ran.stdout + ran.stderr
    attempt = elsewhere / "new run" / "trials" / "t0001" / "a1"
    outcome = Outcome.from_json(read_json(attempt / "outcome.r0.json"))
    assert outcome.status is OutcomeStatus.MEASURED
    assert outcome_fault(TrialSpec.from_json(read_json(attempt / "spec.json")), outcome) is None
    assert "quickstart-abc234 t0001 wrote" in ran.stdout
    again = launch(folder, "new run", cwd=elsewhere)
    assert (again.returncode, "exists; name a new folder" in again.stderr) == (2, True)


@pytest.mark.processes
def test_on_several_nodes_launch_sh_asks_for_the_folder_the_node_and_the_address(tmp_path):
    (tmp_path / "code").mkdir()
    source = source_of(measured_trial("t0001", Layout(num_nodes=2, data_parallel=4), 0.1))
    write_recipe(tmp_path / "recipe", source, tmp_path / "code")
    ran = launch(tmp_path / "recipe", cwd=tmp_path)
    assert ran.returncode != 0
    assert "name a new folder that all nodes share" in ran.stderr
    ran = launch(tmp_path / "recipe", "run", cwd=tmp_path)
    assert "the number of this node" in ran.stderr
    assert not (tmp_path / "run").exists()


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
