"""Two searches of one machine at the same time, whose environments differ: each has fork servers of its own."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from orchestrator.common.code_snapshot import snapshot_code
from orchestrator.launchers.base import LaunchRequest
from orchestrator.launchers.local.launcher import LocalLauncher
from tests.orchestrator.launchers.attempts import attempt_request, wait_until_ended, with_spec
from trials.files.folders import SearchFolder

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

THREADS = ("1", "2")
"""Numbers of threads of the two; torch starts no more than there are cores."""

MEET = """
import json, os, sys, time
from pathlib import Path
import torch

told = {
    "variable": os.environ.get("OMP_NUM_THREADS"),
    "threads": torch.get_num_threads(),
    "is_warm": "PARLAY_WARM" in os.environ,
    "parent": os.environ["PARLAY_PARENT_PID"],
}
Path(f"part-{os.environ['RANK']}").write_text(json.dumps(told))
os.rename(f"part-{os.environ['RANK']}", f"told-{os.environ['RANK']}")
places = json.loads(Path(sys.argv[1]).read_text())["trainer"]["places"]
while not all(Path(place, f"told-{rank}").exists() for place in places for rank in range(2)):
    time.sleep(0.01)
"""
"""A rank that tells its threads and ends once all ranks of both searches have."""


@dataclass(frozen=True)
class OneOfTwo:
    """A search's launcher, made in an environment with this OMP_NUM_THREADS, and an attempt of it."""

    launcher: LocalLauncher
    request: LaunchRequest
    threads: str

    def told(self) -> list[dict[str, object]]:
        return [json.loads((self.request.folder.path / f"told-{rank}").read_text()) for rank in range(2)]


@contextmanager
def launched(request: LaunchRequest, threads: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[OneOfTwo]:
    monkeypatch.setenv("OMP_NUM_THREADS", threads)
    with closing(LocalLauncher([["0"]])) as launcher:
        launcher.launch(request)
        yield OneOfTwo(launcher, request, threads)


def meeting(root: Path, places: list[Path]) -> LaunchRequest:
    """An attempt for an accelerator, so that nothing sets the number of threads but the environment."""
    snapshot_code(root / "code")
    request = attempt_request(root, places=[str(place) for place in places])
    (root / "code" / "trials" / "train" / "__main__.py").write_text(MEET)
    return with_spec(request, accelerator="h100-80gb")


def test_ranks_have_the_number_of_threads_of_their_own_search(tmp_path, monkeypatch):
    roots = [tmp_path / name for name in ("one", "two")]
    places = [SearchFolder(root / "searches" / "demo-abc234").attempt("t0001", "a1").path for root in roots]
    requests = [meeting(root, places) for root in roots]
    with (
        launched(requests[0], THREADS[0], monkeypatch) as one,
        launched(requests[1], THREADS[1], monkeypatch) as two,
    ):
        for search in (one, two):
            status = wait_until_ended(search.launcher, search.request)
            assert not status.failed, status.detail
        told = [*one.told(), *two.told()]
    started = [min(int(threads), len(os.sched_getaffinity(0))) for threads in THREADS]
    wanted = [pair for pair in zip(THREADS, started, strict=True) for _ in range(2)]
    assert [(rank["variable"], rank["threads"]) for rank in told] == wanted
    assert all(rank["is_warm"] for rank in told)
    parents = [rank["parent"] for rank in told]
    assert parents[0] == parents[1] != parents[2] == parents[3]
