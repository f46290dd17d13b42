"""Benchmark of the commands that people wait for: a JSON line for each, and a table on stderr.

    python -m benchmarks.driver_speed [--repeats 5] [--launchers local simulated]

A small search of the default sampler, with MLflow on. Each command runs once before the timed runs, so that compiled
modules, the ledger and MLflow's database exist. `cpu_s` is user and system time of the command and of the children it
has waited for, and medians count. `run` is read at its first launch, then ended. `driver_cpu_s` is what the driver that
`submit` leaves has taken when `submit` returns.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

LAUNCHERS = ("local", "simulated")
START_LIMIT_S = 120.0
LOOK_S = 0.002

COMMAND = (sys.executable, "-P", "-m", "orchestrator.cli.main")

SEARCH = """\
name: speed
model: {num_layers: 16, hidden_size: 2048, num_attention_heads: 32, ffn_hidden_size: 8192, gated_mlp: true,
        vocab_size: 131072, seq_length: 4096}
cluster: dgx-h100
global_batch_size: 256
space: {candidates: table.csv}
search: {max_trials: 3, finalists: 0}
launcher: {kind: simulated, table: table.csv}
"""

TABLE = """\
problem,source,model_name,num_layers,hidden_size,num_attention_heads,ffn_hidden_size,gated_mlp,vocab_size,\
tied_embeddings,seq_length,accelerator,num_gpus,gpus_per_node,global_batch_size,tensor_parallel,pipeline_parallel,\
data_parallel,micro_batch_size,grad_accum_steps,zero_stage,sequence_parallel,activation_checkpointing,\
attention_kernel,outcome,step_time_s,peak_memory_gib
p,ultrascale-playbook,1B,16,2048,32,8192,1,131072,1,4096,h100-80gb,8,8,256,2,1,4,1,64,1,1,none,flash,ok,3.5,50.2
p,ultrascale-playbook,1B,16,2048,32,8192,1,131072,1,4096,h100-80gb,8,8,256,4,1,2,1,128,1,1,none,flash,ok,3.9,40.2
p,ultrascale-playbook,1B,16,2048,32,8192,1,131072,1,4096,h100-80gb,8,8,256,8,1,1,1,256,1,1,none,flash,ok,4.5,30.2
"""

ON_THIS_MACHINE = """\
name: speed
model: {num_layers: 2, hidden_size: 32, num_attention_heads: 2, vocab_size: 64, seq_length: 16}
cluster: {accelerator: cpu, gpus_per_node: 2, num_nodes: 1}
global_batch_size: 8
baseline: {tensor_parallel: 2, micro_batch_size: 1}
space: {tensor_parallel: [1, 2], pipeline_parallel: [1, 2], micro_batch_size: [1, 2, 4]}
search: {max_trials: 3, finalists: 0}
measure: {min_steps: 5, max_steps: 6, max_warmup_steps: 3, ci_relative_width: 1.0}
"""


@dataclass(frozen=True)
class Usage:
    """CPU and wall seconds of one command; `driver_cpu_s` of the driver that it has left."""

    cpu_s: float
    wall_s: float
    driver_cpu_s: float | None = None


def main() -> None:
    arguments = _arguments()
    for launcher in arguments.launchers:
        with tempfile.TemporaryDirectory() as folder:
            for line in lines(Path(folder), launcher, arguments.repeats):
                print(json.dumps(line), flush=True)
                driver = "" if line["driver_cpu_s"] is None else f" and {line['driver_cpu_s']:5.2f} s of its driver"
                print(
                    f"{line['what']:7} {launcher:10} {line['cpu_s']:5.2f} CPU s{driver}, {line['wall_s']:5.2f} s",
                    file=sys.stderr,
                )


def lines(folder: Path, launcher: str, repeats: int) -> Iterator[dict[str, Any]]:
    """Medians of each command under one launcher. `folder` is empty."""
    (folder / "table.csv").write_text(TABLE)
    (folder / "search.yaml").write_text(SEARCH if launcher == "simulated" else ON_THIS_MACHINE)
    words = ["search.yaml", "--launcher", launcher]
    own = {"PARLAY_HOME": str(folder / "home"), "PYTHONPATH": os.getcwd()}
    env = {name: text for name, text in os.environ.items() if name != "MLFLOW_TRACKING_URI"} | own
    measures = {
        "submit": lambda: _submit(folder, words, env),
        "status": lambda: _to_its_end(["status", "--json"], folder, env)[0],
        "run": lambda: _to_first_launch(folder, words, env),
    }
    for what, measure in measures.items():
        measure()
        used = [measure() for _ in range(repeats)]
        drivers = [usage.driver_cpu_s for usage in used if usage.driver_cpu_s is not None]
        yield {
            "what": what,
            "launcher": launcher,
            "cpu_s": round(statistics.median(usage.cpu_s for usage in used), 2),
            "wall_s": round(statistics.median(usage.wall_s for usage in used), 2),
            "driver_cpu_s": round(statistics.median(drivers), 2) if drivers else None,
        }


def _submit(folder: Path, words: Sequence[str], env: Mapping[str, str]) -> Usage:
    """`submit` until it returns. Its driver is ended: nothing else shall run beside what is measured next."""
    usage, answer = _to_its_end(["submit", *words, "--no-service", "--json"], folder, env)
    try:
        driver = psutil.Process(answer["pid"])
        driver_cpu_s = _cpu_s(driver)
        driver.terminate()
        driver.wait(START_LIMIT_S)
    except psutil.NoSuchProcess:  # a simulated search may have ended
        driver_cpu_s = None
    _cancel(answer["folder"], folder, env)
    return Usage(usage.cpu_s, usage.wall_s, driver_cpu_s)


def _to_its_end(words: Sequence[str], folder: Path, env: Mapping[str, str]) -> tuple[Usage, dict[str, Any]]:
    """Usage of a command until it ends, and its object."""
    began = time.monotonic()
    command = subprocess.Popen(
        [*COMMAND, *words], cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert command.stdout is not None
    printed = command.stdout.read()
    _, status, usage = os.wait4(command.pid, 0)
    wall_s = time.monotonic() - began
    command.returncode = os.waitstatus_to_exitcode(status)
    if command.returncode != 0:
        raise RuntimeError(f"parlay {' '.join(words)} left with {command.returncode}")
    return Usage(usage.ru_utime + usage.ru_stime, wall_s), json.loads(printed)


def _to_first_launch(folder: Path, words: Sequence[str], env: Mapping[str, str]) -> Usage:
    """`run` until its journal has a launch."""
    known = set(folder.glob("runs/*"))
    began = time.monotonic()
    driver = psutil.Popen(
        [*COMMAND, "run", *words], cwd=folder, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    with driver:
        while not (found := _launched(set(folder.glob("runs/*")) - known)):
            if driver.poll() is not None or time.monotonic() > began + START_LIMIT_S:
                raise RuntimeError("the search launched nothing")
            time.sleep(LOOK_S)
        usage = Usage(_cpu_s(driver), time.monotonic() - began)
        with suppress(psutil.NoSuchProcess):
            driver.send_signal(signal.SIGTERM)
        driver.wait(START_LIMIT_S)
    _cancel(str(found), folder, env)
    return usage


def _launched(searches: set[Path]) -> Path | None:
    """The search whose journal has a launch."""
    for search in searches:
        with suppress(OSError):
            if '"attempt_launched"' in (search / "journal.jsonl").read_text():
                return search
    return None


def _cancel(search: str, folder: Path, env: Mapping[str, str]) -> None:
    command = [*COMMAND, "cancel", search]
    subprocess.run(command, cwd=folder, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _cpu_s(process: psutil.Process) -> float:
    used = process.cpu_times()
    return float(used.user + used.system + used.children_user + used.children_system)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5, help="timed runs of each command")
    parser.add_argument("--launchers", nargs="+", default=LAUNCHERS, choices=(*LAUNCHERS, "ray"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
