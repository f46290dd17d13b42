import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.diagnostics.doctor.ranks import MIN_PYTHON
from orchestrator.search import code_snapshot
from orchestrator.search.code_snapshot import code_hash, compute_side_files, snapshot_code

OURS = ("search_spaces", "trials", "slurm", "dashboards", "orchestrator")


def imported_modules(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text(), feature_version=(3, 10))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def run_from(snapshot: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(snapshot), "PYTHONSAFEPATH": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, *arguments], env=environment, cwd=snapshot, capture_output=True, text=True, timeout=60
    )


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    snapshot_code(tmp_path / "code")
    return tmp_path / "code"


def module_names(snapshot: Path) -> list[str]:
    parts = [path.relative_to(snapshot).with_suffix("").parts for path in compute_side_files(snapshot)]
    return [".".join(p for p in part if p != "__init__") for part in parts if part[-1] != "__main__"]


@pytest.mark.slow
def test_everything_the_snapshot_imports_of_ours_is_in_the_snapshot(snapshot: Path) -> None:
    present = set(module_names(snapshot))
    for path in compute_side_files(snapshot):
        ours = {name for name in imported_modules(path) if name.split(".")[0] in OURS}
        modules = {name if name in present else name.rpartition(".")[0] for name in ours}
        assert modules <= present, f"{path.name} imports {modules - present}"


@pytest.mark.processes
def test_all_but_the_trainer_runs_with_the_standard_library_alone(snapshot: Path) -> None:
    light = [name for name in module_names(snapshot) if not name.startswith("trials.train.")]
    done = run_from(snapshot, "-S", "-c", "".join(f"import {name}\n" for name in light) + "print(trials.__file__)")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(snapshot))


@pytest.mark.processes
@pytest.mark.timeout(180)
def test_nothing_in_it_needs_a_newer_python_than_ranks_may_have(snapshot: Path, tmp_path: Path) -> None:
    files = [str(path.relative_to(snapshot)) for path in compute_side_files(snapshot)]
    options = ["--explicit-package-bases", "--ignore-missing-imports", "--no-site-packages"]
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--python-version", MIN_PYTHON, "--config-file=", *options, *files],
        env={**os.environ, "MYPY_CACHE_DIR": str(tmp_path / "types")},
        cwd=snapshot,
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert checked.stdout.startswith("Success"), checked.stdout + checked.stderr


def test_a_second_snapshot_changes_nothing_and_has_the_same_hash(snapshot: Path) -> None:
    first = {path: path.stat().st_mtime_ns for path in snapshot.rglob("*")}
    assert snapshot_code(snapshot) == code_hash(snapshot)
    assert {path: path.stat().st_mtime_ns for path in snapshot.rglob("*")} == first


def test_a_search_keeps_the_code_it_began_with(snapshot: Path) -> None:
    (snapshot / "trials" / "trial.py").write_text("changed = True\n")
    assert snapshot_code(snapshot) == code_hash(snapshot)
    assert (snapshot / "trials" / "trial.py").read_text() == "changed = True\n"


def test_the_hash_follows_content_and_names_but_not_compiled_files(snapshot: Path) -> None:
    before = code_hash(snapshot)
    (snapshot / "trials" / "__pycache__").mkdir()
    (snapshot / "trials" / "__pycache__" / "trial.cpython-311.pyc").write_bytes(b"compiled")
    assert code_hash(snapshot) == before
    (snapshot / "trials" / "trial.py").write_text("changed = True\n")
    assert code_hash(snapshot) != before


def test_code_of_an_older_parlay_keeps_its_hash_when_a_newer_one_has_moved_a_file(
    snapshot: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = code_hash(snapshot)
    newer = tuple(name for name in code_snapshot.COMPUTE_SIDE if name != "trials/measurement/trend.py")
    monkeypatch.setattr(code_snapshot, "COMPUTE_SIDE", newer)
    assert code_hash(snapshot) == before


@pytest.mark.parametrize("name", ["json.py", "trials/trial.so", "torch/__init__.py", "trials/metrics.pyc"])
def test_the_hash_follows_whatever_could_be_imported_besides(snapshot: Path, name: str) -> None:
    before = code_hash(snapshot)
    (snapshot / name).parent.mkdir(exist_ok=True)
    (snapshot / name).write_bytes(b"")
    assert code_hash(snapshot) != before


@pytest.mark.parametrize("name", ["trials/trial.py", "trials/ranks", "trials/__pycache__", "torch", "."])
def test_a_link_is_not_what_it_leads_to(snapshot: Path, tmp_path: Path, name: str) -> None:
    before = code_hash(snapshot)
    place = snapshot / name
    place.rename(tmp_path / "moved") if place.exists() else (tmp_path / "moved").mkdir()
    place.symlink_to(tmp_path / "moved")
    assert code_hash(snapshot) != before


def test_nothing_half_copied_is_left_when_copying_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(source: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("orchestrator.search.code_snapshot.shutil.copyfile", full_disk)
    with pytest.raises(OSError, match="No space left"):
        snapshot_code(tmp_path / "code")
    assert list(tmp_path.iterdir()) == []
