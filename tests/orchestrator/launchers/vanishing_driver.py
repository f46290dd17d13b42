"""Driver to be killed: launches the attempt at this root with this kind of launcher, then waits for its end."""

from __future__ import annotations

import sys
from pathlib import Path

from orchestrator.config.schema.launcher import LauncherSection
from orchestrator.launchers.factory import make_launcher
from search_spaces.hardware.cluster import ACCELERATORS, Cluster
from tests.orchestrator.launchers.attempts import attempt_request, wait_until_ended, wait_until_started


def main(kind: str, root: str) -> None:
    launcher, note = make_launcher(
        LauncherSection.model_validate({"kind": kind}), parallel_trials=1, cluster=Cluster(ACCELERATORS["cpu"], 2, 1)
    )
    if launcher.name != kind:
        raise SystemExit(note)
    request = attempt_request(Path(root), "hang")
    launcher.launch(request)
    wait_until_started(launcher, request)
    print("started", flush=True)
    wait_until_ended(launcher, request)


if __name__ == "__main__":
    main(*sys.argv[1:])
