"""The command `parlay` whose new searches take their step times from a table; run it with `COMMAND`.

Everything but the trial program is the real thing. A search records the code it was given, so it is resumed, cancelled
and looked at by the real command as well. PARLAY_TEST_TABLE is the path of a JSON object of rows by layout key, such as
{"step_time_s": 0.2, "takes_s": 0.1, "reason": "gpu_oom"}; each field may be absent, and so may a layout: one second.
A row's "waits_for" is the path of a file before which its trial does not end, however long a test takes meanwhile.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from orchestrator.cli.main import main
from orchestrator.lifecycle import create
from orchestrator.search import code_snapshot
from tests.trials.fork_server.servers import IMPORT_NOTHING

COMMAND = (sys.executable, "-P", "-m", "tests.orchestrator.tabled_parlay")


def snapshot_tabled_code(destination: Path) -> str:
    """Take a code snapshot, with the tabled trial in place of the one that trains."""
    code_snapshot.snapshot_code(destination)
    train = destination / "trials" / "train"
    shutil.copyfile(Path(__file__).with_name("tabled_trial.py"), train / "__main__.py")
    (train / "preload.py").write_text(IMPORT_NOTHING)
    shutil.copyfile(os.environ["PARLAY_TEST_TABLE"], train / "table.json")
    return code_snapshot.code_hash(destination)


if __name__ == "__main__":
    create.snapshot_code = snapshot_tabled_code
    sys.exit(main())
