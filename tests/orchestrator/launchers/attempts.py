"""Attempts to launch in tests: a small spec, its folder, and a code folder with the stand-in trial program."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

from orchestrator.launchers.base import Launcher, LaunchRequest
from search_spaces.layouts.layout import Layout
from tests import kit
from tests.trials.train.trial_processes import MODEL
from trials.attempt_result import AttemptResult, LaunchStatus, Liveness, classify
from trials.files.folders import AttemptFolder, SearchFolder, read_json, write_json
from trials.fork_server import stub
from trials.measure_rules import MeasureRules
from trials.trial import Outcome

LAYOUT = Layout(data_parallel=2, micro_batch_size=2, grad_accum_steps=2)
STAND_IN = Path(__file__).with_name("stand_in_trial.py")


def stand_in_code(folder: Path) -> str:
    """Return a folder for PYTHONPATH whose `trials.train` is the stand-in."""
    package = folder / "trials" / "train"
    package.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(STAND_IN, package / "__main__.py")
    stub_of_ranks = folder / "trials" / "fork_server" / "stub.py"
    stub_of_ranks.parent.mkdir(exist_ok=True)
    shutil.copyfile(stub.__file__, stub_of_ranks)
    return str(folder)


def attempt_request(
    root: Path,
    behaviour: str = "measure",
    *,
    trial: str = "t0001",
    search_id: str = "demo-abc234",
    time_limit_s: float = 7200.0,
    **trainer: object,
) -> LaunchRequest:
    """Return a request for two ranks of one node, with spec.json in the attempt's folder."""
    section = {"kind": "parlay", "behaviour": behaviour, "parameters": MODEL.parameters, **trainer}
    ids = {"search_id": search_id, "trial": trial, "nonce": "0" * 32}
    spec = kit.trial_of(LAYOUT, model=MODEL, measure=MeasureRules(), trainer=section, **ids)
    folder = SearchFolder(root / "searches" / spec.search_id).attempt(spec.trial, spec.attempt)
    return written(LaunchRequest(spec, folder, sys.executable, stand_in_code(root / "code"), time_limit_s))


def written(request: LaunchRequest) -> LaunchRequest:
    """Return the request after its spec.json was (re)written."""
    request.folder.path.mkdir(parents=True, exist_ok=True)
    write_json(request.folder.spec, request.spec.to_json())
    return request


def with_spec(request: LaunchRequest, **changes: object) -> LaunchRequest:
    return written(replace(request, spec=replace(request.spec, **changes)))


def poll_one(launcher: Launcher, request: LaunchRequest) -> LaunchStatus:
    return launcher.poll([request.spec.attempt_key])[request.spec.attempt_key]


def wait_until_started(launcher: Launcher, request: LaunchRequest) -> LaunchStatus:
    while not (status := poll_one(launcher, request)).started:
        launcher.wait(30)
    return status


def wait_until_ended(launcher: Launcher, request: LaunchRequest) -> LaunchStatus:
    while (status := poll_one(launcher, request)).liveness is not Liveness.ENDED:
        launcher.wait(30)
    return status


def serve(launcher: Launcher, root: Path, first: int = 9000, **details: object) -> None:
    """Have the launcher's fork servers serve, by attempts from this number on that start plain until they do."""
    for number in range(first, first + 100):
        request = attempt_request(root, "tell_environment", trial=f"t{number}", **details)
        launcher.launch(request)
        wait_until_ended(launcher, request)
        if "PARLAY_WARM" in json.loads((request.folder.path / "environment-0.json").read_text()):
            return
    raise AssertionError("no attempt was forked")


def result_of(request: LaunchRequest, status: LaunchStatus) -> AttemptResult:
    data = read_json(request.folder.outcome())
    return classify(request.spec, None if data is None else Outcome.from_json(data), status)


def rank_pids(folder: AttemptFolder) -> list[int]:
    return [rank["pid"] for rank in json.loads(folder.ranks.read_text())["ranks"]]


def is_running(pid: int) -> bool:
    """Return True if the process exists and is not a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"
