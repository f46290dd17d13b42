"""The compute-side source, copied into a search's folder so that all its trials run the same code."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
from pathlib import Path

import trials

COMPUTE_SIDE = (
    "search_spaces/__init__.py",
    "search_spaces/cluster.py",
    "search_spaces/engine_rules.py",
    "search_spaces/engines.py",
    "search_spaces/errors.py",
    "search_spaces/layout.py",
    "search_spaces/links.py",
    "search_spaces/memory_floor.py",
    "search_spaces/model_shape.py",
    "search_spaces/stages.py",
    "search_spaces/trainer_rules.py",
    "search_spaces/usual_links.py",
    "trials/__init__.py",
    "trials/calibrate.py",
    "trials/classify.py",
    "trials/doctor.py",
    "trials/epochs.py",
    "trials/folder.py",
    "trials/measure.py",
    "trials/metrics.py",
    "trials/node_samples.py",
    "trials/ports.py",
    "trials/ranking.py",
    "trials/rival.py",
    "trials/selftest.py",
    "trials/spread.py",
    "trials/text.py",
    "trials/tokens.py",
    "trials/tracebacks.py",
    "trials/trend.py",
    "trials/trial.py",
    "trials/external/*.py",
    "trials/pilot/*.py",
    "trials/ranks/*.py",
    "trials/train/*.py",
    "trials/train/calibrate/*.py",
    "trials/train/doctor/*.py",
    "trials/train/selftest/*.py",
    "trials/trainers/*.py",
)
"""What runs on compute nodes: the standard library is all it needs, and torch (DeepSpeed for its engine) in train."""

_SOURCE_ROOT = Path(trials.__file__).parents[1]


def snapshot_code(destination: Path) -> str:
    """Copy the compute side to `destination`, swapped in whole, and return its hash.

    A snapshot that is already there stays as it is: a search goes on with the code it began with.
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
    """The compute side's files under `root`, which holds the packages; sorted."""
    return sorted(path for pattern in COMPUTE_SIDE for path in root.glob(pattern))


def code_hash(root: Path) -> str:
    """SHA-256 over the names and contents of the compute side under `root`, in hex."""
    digest = hashlib.sha256()
    for path in compute_side_files(root):
        digest.update(f"{path.relative_to(root).as_posix()}\0{path.stat().st_size}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _copy_sources(destination: Path) -> None:
    for path in compute_side_files():
        target = destination / path.relative_to(_SOURCE_ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
