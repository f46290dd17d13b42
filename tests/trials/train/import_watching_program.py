"""The trial program, which notes the modules it imports once all should be there: `python -m
tests.trials.train.import_watching_program SPEC_PATH` writes imports-RANK.json beside the spec."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import NoReturn

from trials.train import program

_LIBRARIES = ("torch", "deepspeed")


def watch(folder: Path) -> None:
    """Have the program write its late imports, and whether it has torch's compiler, when it exits."""
    leave, imported = program.exit_at_once, set[str]()

    def note_and_leave(code: int) -> NoReturn:
        late = sorted(name for name in set(sys.modules) - imported if name.partition(".")[0] in _LIBRARIES)
        found = {"late": late, "has_compiler": "torch._dynamo" in sys.modules}
        (folder / f"imports-{os.environ['RANK']}.json").write_text(json.dumps(found))
        leave(code)

    program.exit_at_once = note_and_leave  # type: ignore[assignment]
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # which the program itself sets, before it imports torch
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    from trials.train import trial_run

    import_training = trial_run.import_training

    def import_and_note(layout, on_cpu) -> None:
        import_training(layout, on_cpu)
        imported.update(sys.modules)

    trial_run.import_training = import_and_note


if __name__ == "__main__":
    watch(Path(sys.argv[1]).parent)
    program.main(sys.argv[1:])
