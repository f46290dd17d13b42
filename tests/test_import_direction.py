"""Imports point one way, heavy packages have one door each, and the compute side is light."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

from orchestrator.search.code_snapshot import compute_side_files
from search_spaces.engines import TRAINER_ENGINES
from tests.sources import ROOT, calls, imported, modules, parsed

MAY_IMPORT = {
    "search_spaces": set(),
    "slurm": set(),
    "trials": {"search_spaces"},
    "dashboards": {"trials", "search_spaces"},
    "orchestrator": {"dashboards", "trials", "slurm", "search_spaces"},
}
ONE_DOOR = {
    "ray": {"orchestrator/launchers/ray/runtime.py"},
    "deephyper": {"orchestrator/search/samplers/deephyper.py"},
    "mlflow": {"dashboards/mlflow/sync.py"},
    "sqlite3": {
        "trials/files/sqlite_file.py",
        "trials/ledger/database.py",
    },  # the latter for the names of its errors alone
    "pandas": {
        "orchestrator/api/dataframes.py",
        "orchestrator/api/functions.py",
        "orchestrator/api/search.py",
    },  # the last two for the names of types alone
    "fastapi": {"orchestrator/service/api.py"},
    "uvicorn": {"orchestrator/service/server.py", "dashboards/access/http_protocol.py"},
    "pyarrow": {"orchestrator/records/formats/trial_table.py"},
    "tree_sitter": {"orchestrator/config/importers/bash/syntax.py"},
    "tree_sitter_bash": {"orchestrator/config/importers/bash/syntax.py"},
    "optuna": {"orchestrator/records/formats/optuna_study.py"},
    "megatron": {
        "trials/train/engines/megatron_core_engine.py",
        "trials/train/engines/megatron_core_config.py",
        "trials/train/cpu_device/megatron_core.py",
    },
    "torchtitan": {
        "trials/train/engines/torchtitan_engine.py",
        "trials/train/engines/torchtitan_parts.py",
        "trials/train/cpu_device/torchtitan.py",
    },
    "accelerate": {
        "trials/train/engines/accelerate_engine.py",
        "trials/train/cpu_device/accelerate.py",
        "trials/trainers/accelerate/launch.py",
    },
    "transformers": {"trials/train/engines/transformers_model.py"},
}
ORCHESTRATOR = (
    ("config",),
    ("launchers",),
    ("search",),
    ("records",),
    ("planning", "recipe"),
    ("diagnostics",),
    ("lifecycle",),
    ("replay", "service"),
    ("api",),
    ("cli",),
)
"""Lowest first; a package imports those below its level. A package stands for all that is in it."""

TRAINER_ONLY = {"torch", "deepspeed", "megatron", "torchtitan", "accelerate", "transformers", "peft", "bitsandbytes"}
LIGHT = tuple(
    str(path.relative_to(ROOT)) for path in compute_side_files(ROOT) if "trials/train/" not in path.as_posix()
)
PRELOAD = "trials/fork_server/preload.py"
LAUNCHER = "trials/trainers/accelerate/launch.py"
WRITER = "trials.ledger.writer"


def wrong(broken: Callable[[str], Iterable[str]], among: Iterable[str]) -> dict[str, list[str]]:
    """Modules that break a rule, each with the offending names."""
    return {module: names for module in among if (names := sorted(broken(module)))}


def test_a_module_imports_only_rooms_below_it():
    def from_elsewhere(module):
        room = module.split("/")[0]
        ours = {name.split(".")[0] for name in imported(module)} & set(MAY_IMPORT)
        return ours - {room} - MAY_IMPORT[room]

    assert wrong(from_elsewhere, modules()) == {}


def test_heavy_packages_have_one_door_each():
    def behind_their_doors(module):
        packages = {name.split(".")[0] for name in imported(module)}
        doors = {package for package, modules in ONE_DOOR.items() if module in modules}
        trainers = TRAINER_ONLY if module.startswith("trials/train/") else set()
        return packages & (set(ONE_DOOR) | TRAINER_ONLY) - doors - trainers

    assert wrong(behind_their_doors, modules()) == {}


def test_only_the_orchestrator_writes_the_ledger():
    others = [module for module in modules() if not module.startswith(("orchestrator/", "trials/ledger/"))]
    assert wrong(lambda module: imported(module) & {WRITER}, others) == {}


def test_the_light_compute_side_imports_the_standard_library_and_itself():
    assert wrong(lambda module: outside(module, dotted(LIGHT)), LIGHT) == {
        PRELOAD: ["trials.train.preload", "trials.train.preload.import_engine"],
        LAUNCHER: ["accelerate"],
    }


def test_nothing_imports_the_launcher_and_a_fork_server_imports_the_trainer_in_its_preload_only():
    name = dotted([LAUNCHER]).pop()
    assert wrong(lambda module: {one for one in imported(module) if is_in(one, name)}, modules()) == {}
    at_the_top = {
        alias for node in parsed(PRELOAD)[0].body if isinstance(node, ast.ImportFrom) for alias in [node.module]
    }
    assert not [name for name in at_the_top if str(name).startswith("trials.train.")]


def test_what_runs_beside_the_ranks_imports_no_driver_code():
    trainers = {f"trials/trainers/{name.replace('-', '_')}/trainer.py" for name in TRAINER_ENGINES}
    assert {"trials/external/__main__.py", "trials/trainers/registry.py", *trainers} <= set(LIGHT)


def test_the_trainer_imports_torch_its_engines_and_the_light_compute_side_only():
    trainer = [module for module in modules() if module.startswith("trials/train/")]
    assert wrong(lambda module: outside(module, {*dotted(LIGHT), "trials.train"}) - TRAINER_ONLY, trainer) == {}


def outside(module: str, allowed: set[str]) -> set[str]:
    """Imports outside the standard library and these; other packages by their first name."""
    others = {name for name in imported(module) if not any(is_in(name, ours) for ours in allowed)}
    return {first if (first := name.split(".")[0]) in TRAINER_ONLY else name for name in others} - {
        name for name in others if name.split(".")[0] in sys.stdlib_module_names
    }


def dotted(files: Iterable[str]) -> set[str]:
    return {file.removesuffix(".py").replace("/", ".") for file in files}


def test_inside_the_orchestrator_imports_point_one_way():
    def from_above(module):
        mine, package = level_of(module.removesuffix(".py").replace("/", ".")), module.split("/")[1]
        others = {name for name in imported(module) if name.startswith("orchestrator.")}
        return {name for name in others if name.split(".")[1] != package and level_of(name) >= mine}

    inside = [m for m in modules() if m.startswith("orchestrator/") and not m.endswith("__init__.py")]
    assert wrong(from_above, inside) == {}


@cache
def level_of(name: str) -> int:
    (level,) = (level for level, packages in enumerate(ORCHESTRATOR) if name.split(".")[1] in packages)
    return level


def is_in(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def test_the_levels_name_every_module_and_package_once_and_nothing_else():
    there = {Path(m).with_suffix("").parts[1] for m in modules() if m.startswith("orchestrator/")}
    assert sorted(name for level in ORCHESTRATOR for name in level) == sorted(there - {"__init__"})


def test_nothing_is_imported_behind_this_tests_back():
    def hidden(module):
        return {name.rpartition(".")[2] for name, _ in calls(module)} & {"__import__", "import_module"}

    assert wrong(hidden, modules()) == {
        "orchestrator/cli/verbs.py": ["import_module"],  # the verbs' modules, beside it
        "trials/train/engines/factory.py": ["import_module"],  # modules of torch and deepspeed
        "trials/trainers/registry.py": ["import_module"],  # the trainers' packages
    }
