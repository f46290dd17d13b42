"""launch.sh: its content, and a real run by bash and torchrun on two ranks."""

from __future__ import annotations

import importlib.util
import os
import py_compile
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.common.code_snapshot import snapshot_code
from orchestrator.recipe.render import launch_sh
from orchestrator.recipe.write import write_recipe
from search_spaces.layouts.layout import Layout
from tests.orchestrator.recipe.builders import measured_trial, source_of, spec_of
from trials.attempt_result import outcome_fault
from trials.files.folders import read_json
from trials.trial import Outcome, OutcomeStatus, TrialSpec


def launch(folder, *arguments: str, cwd) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", str(folder / "launch.sh"), *arguments], cwd=cwd, capture_output=True, text=True, check=False
    )


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
    shown = tmp_path / "trials"
    shown.mkdir()
    (shown / "__init__.py").touch()
    names = "('UID', 'attempt', 'here', 'python', 'run', 'OMP_NUM_THREADS')"
    (shown / "train.py").write_text(f"import os\nprint([os.environ.get(name) for name in {names}], flush=True)")
    folder = tmp_path / "recipe"
    (folder / "code").mkdir(parents=True)
    shown.rename(folder / "code" / "trials")
    (folder / "launch.sh").write_text(text)
    (folder / "spec.json").write_text("{}")
    done = launch(folder, "made", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("['7', '1', '/nonexistent', 'none', 'x y', None]") == 2


@pytest.mark.processes
@pytest.mark.timeout(180)
@pytest.mark.bad_input(42)
def test_launch_sh_runs_no_compiled_file_of_the_recipe_and_leaves_none(tmp_path, monkeypatch):
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    package, stray = tmp_path / "recipe" / "code" / "trials", tmp_path / "stray"
    for folder, words in ((package, "the recipe's"), (stray, "a stranger's")):
        folder.mkdir(parents=True)
        (folder / "__init__.py").touch()
        (folder / "train.py").write_text(f"print({words!r:16}, flush=True)")
        os.utime(folder / "train.py", (0, 0))
    recipe = package.parents[1]
    (recipe / "launch.sh").write_text(launch_sh(spec_of(Layout(data_parallel=2)), {}, sys.executable))
    (recipe / "spec.json").write_text("{}")
    assert launch(recipe, "made", cwd=tmp_path).stdout.count("the recipe's") == 2
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
