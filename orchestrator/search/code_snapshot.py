"""The compute-side source, copied into a search's folder so that all its trials run the same code."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

import trials

COMPUTE_SIDE = (
    "search_spaces/adapters.py",
    "search_spaces/__init__.py",
    "search_spaces/declared.py",
    "search_spaces/decoding.py",
    "search_spaces/engines.py",
    "search_spaces/errors.py",
    "search_spaces/model_shape.py",
    "search_spaces/plain_file.py",
    "search_spaces/routing.py",
    "search_spaces/hardware/*.py",
    "search_spaces/layouts/__init__.py",
    "search_spaces/layouts/axis.py",
    "search_spaces/layouts/groups.py",
    "search_spaces/layouts/layout.py",
    "search_spaces/layouts/matmul_recipes.py",
    "search_spaces/layouts/mesh.py",
    "search_spaces/layouts/pipeline_split.py",
    "search_spaces/layouts/settings.py",
    "search_spaces/rules/__init__.py",
    "search_spaces/rules/check.py",
    "search_spaces/rules/engine_rules.py",
    "search_spaces/rules/rule.py",
    "search_spaces/rules/trainer_rules.py",
    "search_spaces/schema/__init__.py",
    "search_spaces/schema/unsafe_text.py",
    "trials/__init__.py",
    "trials/attempt_result.py",
    "trials/failure_policy.py",
    "trials/observed_step.py",
    "trials/measure_rules.py",
    "trials/outcome_types.py",
    "trials/trial.py",
    "trials/analysis/__init__.py",
    "trials/analysis/early_stopping.py",
    "trials/analysis/ranked_layout.py",
    "trials/analysis/ranking.py",
    "trials/data/__init__.py",
    "trials/data/indexed_dataset.py",
    "trials/diagnostics/__init__.py",
    "trials/diagnostics/calibration.py",
    "trials/diagnostics/fabric.py",
    "trials/diagnostics/node_probe.py",
    "trials/diagnostics/selftest.py",
    "trials/files/__init__.py",
    "trials/files/folders.py",
    "trials/files/git_checkout.py",
    "trials/files/text.py",
    "trials/files/tracebacks.py",
    "trials/measurement/*.py",
    "trials/external/*.py",
    "trials/external/observer/*.py",
    "trials/fork_server/*.py",
    "trials/pilot/*.py",
    "trials/ranks/*.py",
    "trials/train/**/*.py",
    "trials/trainers/**/*.py",
)
"""Files that run on compute nodes. They need the standard library only; trials/train also torch and its engine."""

_SOURCE_ROOT = Path(trials.__file__).parents[1]
_CACHE = "__pycache__"


def snapshot_code(destination: Path) -> str:
    """Copy the compute-side source to `destination` in one rename, and return its hash.

    An existing snapshot is kept: a search goes on with the code it was created with.
    """
    if not destination.exists():
        part = destination.with_name(f".{destination.name}.{secrets.token_hex(4)}.part")
        try:
            _copy_sources(part)
            os.replace(part, destination)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return code_hash(destination)


def compute_side_files(root: Path = _SOURCE_ROOT) -> list[Path]:
    """Compute-side files below `root`, the parent of the packages; sorted."""
    return sorted(path for pattern in COMPUTE_SIDE for path in root.glob(pattern))


def code_hash(root: Path) -> str:
    """SHA-256 over the names and contents of all files below `root`, in hex, without `__pycache__`.

    It covers the files on disk and not today's COMPUTE_SIDE, so that another version of Parlay computes the same hash
    and an added file changes it. A symlink or special file counts by its name; links are not followed.
    """
    digest = hashlib.sha256()
    for path in sorted(_walk(root)):
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else None
        size = "no file" if content is None else str(len(content))
        digest.update(os.fsencode(f"{path.relative_to(root).as_posix()}\0{size}\0"))
        digest.update(content or b"")
    return digest.hexdigest()


def remove_caches(root: Path) -> None:
    """Remove `__pycache__` folders below `root` where possible: Python would import them, and they are not hashed."""
    for cache in list(root.rglob(_CACHE)):
        shutil.rmtree(cache, ignore_errors=True)


def _walk(path: Path) -> Iterator[Path]:
    if path.is_symlink() or not path.is_dir():
        yield path
    elif path.name != _CACHE:
        for entry in path.iterdir():
            yield from _walk(entry)


def _copy_sources(destination: Path) -> None:
    for path in compute_side_files():
        target = destination / path.relative_to(_SOURCE_ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
