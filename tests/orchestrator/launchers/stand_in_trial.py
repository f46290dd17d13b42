"""Trial program without torch, run in place of trials.train: it behaves as `trainer.behaviour` in its spec says."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

RANK = int(os.environ.get("RANK") or os.environ["SLURM_PROCID"])
WORLD_SIZE = int(os.environ.get("WORLD_SIZE") or os.environ["SLURM_NTASKS"])


def main(spec_path: str) -> None:
    spec = json.loads(Path(spec_path).read_text())
    trainer = spec["trainer"]
    behaviour = trainer["behaviour"] if trainer.get("rank", RANK) == RANK else trainer["others"]
    globals()[behaviour](spec)


def measure(spec: dict) -> None:
    if RANK != 0:
        return
    layout, rates = spec["layout"], ("tokens_per_sec", "tokens_per_sec_per_gpu", "samples_per_sec", "step_time_s")
    proof = {name: layout[name] for name in ("tensor_parallel", "pipeline_parallel", "data_parallel")}
    parameters = spec["trainer"]["parameters"]
    samples_per_step = layout["micro_batch_size"] * layout["grad_accum_steps"]
    outcome = {
        "schema": "parlay.outcome/1",
        **{name: spec[name] for name in ("search_id", "trial", "attempt", "nonce")},
        "status": "measured",
        "measured": {"measured_steps": spec["measure"]["min_steps"], **dict.fromkeys(rates, 1.0)},
        "proof": {
            **proof,
            "world_size": WORLD_SIZE,
            "parameters": parameters,
            "local_parameters_sum": parameters,
            "optimizer_parameters_sum": parameters,
            "micro_batches_per_step": layout["grad_accum_steps"],
            "samples_per_data_rank": [samples_per_step] * layout["data_parallel"],
        },
    }
    Path("outcome.part").write_text(json.dumps(outcome))
    os.replace("outcome.part", "outcome.r0.json")


def hang(spec: dict) -> None:
    Path(f"hanging-{RANK}").touch()
    time.sleep(600)


def wait_to_measure(spec: dict) -> None:
    """Measure once the file `go` is in the attempt's folder."""
    Path(f"waiting-{RANK}").touch()
    while not Path("go").exists():
        time.sleep(0.02)
    measure(spec)


def ignore_sigterm(spec: dict) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    hang(spec)


def fail(spec: dict) -> None:
    raise RuntimeError(f"rank {RANK} is broken")


def fill_memory(spec: dict) -> None:
    full = [bytearray(b"x" * 2**20) for _ in range(1024)]
    hang({"full": full})


def tell_environment(spec: dict) -> None:
    Path(f"environment-{RANK}.json").write_text(json.dumps(dict(os.environ) | {"cwd": os.getcwd()}))


if __name__ == "__main__":
    main(sys.argv[1])
