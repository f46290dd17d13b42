"""Imports point one way, heavy packages have one door each, and the compute side is light."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.code_snapshot import compute_side_files

ROOT = Path(__file__).resolve().parents[1]
MAY_IMPORT = {
    "search_spaces": set(),
    "slurm": set(),
    "trials": {"search_spaces"},
    "dashboards": {"trials", "search_spaces"},
    "orchestrator": {"dashboards", "trials", "slurm", "search_spaces"},
}
ONE_DOOR = {
    "ray": {"orchestrator/ray_runtime.py"},
    "deephyper": {"orchestrator/samplers/deephyper.py"},
    "mlflow": {"dashboards/mlflow_sync.py"},
    "sqlite3": {"trials/sqlite_file.py", "trials/ledger/database.py"},  # the latter for the names of its errors alone
    "tokenizers": {"trials/tokenizing.py"},
    "pandas": {"orchestrator/frames.py", "orchestrator/api.py"},  # the latter for the names of types alone
    "fastapi": {"orchestrator/service/api.py"},
    "uvicorn": {"orchestrator/service/server.py", "dashboards/http_protocol.py"},
    "pyarrow": {"orchestrator/exchange/trials_table.py"},
    "optuna": {"orchestrator/exchange/optuna_study.py"},
}
ORCHESTRATOR = (
    ("orchestrator.in_time", "orchestrator.machine_turn", "orchestrator.machine_load"),
    (
        "orchestrator.launchers",
        "orchestrator.samplers",
        "orchestrator.ray_runtime",
        "orchestrator.ray_jobs",
        "orchestrator.code_snapshot",
    ),
    (
        "orchestrator.search",
        "orchestrator.search_file",
        "orchestrator.search_schema",
        "orchestrator.search_contradictions",
        "orchestrator.search_spec",
        "orchestrator.search_notify",
    ),
    ("orchestrator.recipe",),
    (
        "orchestrator.observations",
        "orchestrator.earlier",
        "orchestrator.planning",
        "orchestrator.explaining",
        "orchestrator.dry_jobs",
        "orchestrator.scaled_belief",
        "orchestrator.forecasting",
        "orchestrator.forecast_trials",
        "orchestrator.session",
        "orchestrator.last_words",
        "orchestrator.holding",
        "orchestrator.status",
        "orchestrator.find",
        "orchestrator.frames",
        "orchestrator.comparing",
        "orchestrator.exchange",
        "orchestrator.notifying",
        "orchestrator.driver_job",
        "orchestrator.driver_queue",
        "orchestrator.site_check",
        "orchestrator.trainer_check",
        "orchestrator.work_dir",
        "orchestrator.pilots_left",
        "orchestrator.own_files",
        "orchestrator.replay",
        "orchestrator.replay_runs",
        "orchestrator.replay_trainer",
        "orchestrator.replaying",
        "orchestrator.one_job",
        "orchestrator.selftest",
        "orchestrator.calibrating",
        "orchestrator.calibrating_file",
        "orchestrator.doctor",
        "orchestrator.starting",
        "orchestrator.starting_points",
        "orchestrator.starting_grids",
        "orchestrator.search_draft",
        "orchestrator.search_given",
        "orchestrator.search_reference",
        "orchestrator.cancelling",
        "orchestrator.signals",
        "orchestrator.file_mask",
        "orchestrator.ledger_rebuild",
        "orchestrator.late_sync",
    ),
    ("orchestrator.cli", "orchestrator.service", "orchestrator.api"),
)
"""Lowest first; a module imports its own level and those below. A package stands for all that is in it."""

TRAINER_ONLY = {"torch", "deepspeed"}
LIGHT = tuple(
    str(path.relative_to(ROOT)) for path in compute_side_files(ROOT) if "trials/train/" not in path.as_posix()
)
WRITER = "trials.ledger.writer"


def modules() -> list[str]:
    return [str(path.relative_to(ROOT)) for package in MAY_IMPORT for path in sorted((ROOT / package).rglob("*.py"))]


def imported(module: str) -> Iterator[str]:
    """Dotted names of everything a module imports, wherever in the file."""
    for node in ast.walk(ast.parse((ROOT / module).read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} imports relatively"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("module", modules())
def test_a_module_imports_only_rooms_below_it(module):
    room = module.split("/")[0]
    ours = {name.split(".")[0] for name in imported(module)} & set(MAY_IMPORT)
    assert ours - {room} <= MAY_IMPORT[room]


@pytest.mark.parametrize("module", modules())
def test_heavy_packages_have_one_door_each(module):
    packages = {name.split(".")[0] for name in imported(module)}
    for package, doors in ONE_DOOR.items():
        assert package not in packages or module in doors
    assert not packages & TRAINER_ONLY or module.startswith("trials/train/")


@pytest.mark.parametrize("module", modules())
def test_only_the_orchestrator_writes_the_ledger(module):
    if not module.startswith(("orchestrator/", "trials/ledger/")):
        assert WRITER not in set(imported(module))


@pytest.mark.parametrize("module", LIGHT)
def test_the_light_compute_side_imports_the_standard_library_and_itself(module):
    light = {path.removesuffix(".py").replace("/", ".") for path in LIGHT}
    for name in imported(module):
        top = name.split(".")[0]
        assert top in sys.stdlib_module_names or any(is_in(name, m) for m in light), name


@pytest.mark.parametrize(
    "module", [m for m in modules() if m.startswith("orchestrator/") and not m.endswith("__init__.py")]
)
def test_inside_the_orchestrator_imports_point_one_way(module):
    mine = level_of(module.removesuffix(".py").replace("/", "."))
    for name in imported(module):
        if name.startswith("orchestrator."):
            assert level_of(name) <= mine, f"{name} lies above {module}"


def level_of(name: str) -> int:
    (level,) = (level for level, rooms in enumerate(ORCHESTRATOR) if any(is_in(name, room) for room in rooms))
    return level


def is_in(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def test_the_levels_name_every_module_and_package_once_and_nothing_else():
    there = {".".join(Path(m).with_suffix("").parts[:2]) for m in modules() if m.startswith("orchestrator/")}
    assert sorted(name for level in ORCHESTRATOR for name in level) == sorted(there - {"orchestrator.__init__"})


@pytest.mark.parametrize("module", [m for m in modules() if m.startswith("trials/train/")])
def test_the_trainer_imports_torch_deepspeed_and_the_light_compute_side_only(module):
    light = {path.removesuffix(".py").replace("/", ".") for path in LIGHT} | {"trials.train"}
    for name in imported(module):
        top = name.split(".")[0]
        ours = any(is_in(name, m) for m in light)
        assert ours or top in sys.stdlib_module_names or top in TRAINER_ONLY, name


@pytest.mark.parametrize("module", modules())
def test_nothing_is_imported_behind_this_tests_back(module):
    called = {node.func for node in ast.walk(ast.parse((ROOT / module).read_text())) if isinstance(node, ast.Call)}
    names = {getattr(f, "id", getattr(f, "attr", None)) for f in called}
    assert not names & {"__import__", "import_module"}


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_package_inits_are_empty(package):
    assert all(path.read_text() == "" for path in (ROOT / package).rglob("__init__.py"))


def test_tests_are_not_installed():
    assert "tests" not in (ROOT / "setup.cfg").read_text().split("[options.packages.find]")[1]
