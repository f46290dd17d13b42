"""CPU time of one driver on a real Slurm, where each trial does nothing, in this process:

    python -m benchmarks.driver_on_slurm parlay|submitit|ray_tune FOLDER TRIALS

prints `{what, trials, cpu_s, commands_cpu_s, started_cpu_s}`: CPU seconds of this process with its commands, and of the
commands alone, from the end of the imports until all trials have ended; and those before that. SLURM_CONF names the
cluster, but Ray Tune's trials are processes of their own Ray, whose servers are not counted. IN_FLIGHT trials run at
once.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

IN_FLIGHT = 16
LOOK_S = 1.0

SEARCH = """\
schema: parlay.search/1
name: noop
model: {num_layers: 8, hidden_size: 64, num_attention_heads: 8, vocab_size: 256, seq_length: 64}
cluster: {accelerator: cpu, gpus_per_node: 2, num_nodes: 1}
global_batch_size: 256
space:
  tensor_parallel: [1, 2]
  pipeline_parallel: [1, 2]
  micro_batch_size: [1, 2, 4, 8, 16, 32, 64, 128]
  zero_stage: [0, 1, 2, 3]
  activation_checkpointing: [none, selective, full]
  attention_kernel: [math, flash]
  precision: [fp32, bf16]
search: {sampler: random, finalists: 0, warm_start: none}
tracking: {enabled: false}
launcher: {kind: slurm, slurm: {poll_interval: 1s}}
"""


def measured(what: str, trials: int, environment: Mapping[str, str]) -> dict[str, Any]:
    """Line of one driver, run in a separate process."""
    with tempfile.TemporaryDirectory(prefix="parlay-driver-") as folder:
        own = {"PARLAY_HOME": str(Path(folder) / "home"), "PYTHONPATH": os.getcwd(), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "benchmarks.driver_on_slurm", what, folder, str(trials)]
        done = subprocess.run(command, env={**os.environ, **environment, **own}, stdout=subprocess.PIPE, check=True)
        return json.loads(done.stdout.splitlines()[-1])


def run(what: str, folder: Path, trials: int) -> dict[str, Any]:
    """Run the trials and print the CPU time of this process."""
    steps = PROGRAMS[what](folder, trials)
    next(steps)  # everything is imported and ready
    own, commands = _cpu_s(resource.RUSAGE_SELF), _cpu_s(resource.RUSAGE_CHILDREN)
    next(steps)  # all trials have ended; Ray's servers, whose CPU time would be ours once they have, still live
    own_s, commands_s = _cpu_s(resource.RUSAGE_SELF) - own, _cpu_s(resource.RUSAGE_CHILDREN) - commands
    for _ in steps:
        pass
    spent = {"cpu_s": own_s + commands_s, "commands_cpu_s": commands_s, "started_cpu_s": own + commands}
    return {"what": what, "trials": trials, **spent}


def parlay(folder: Path, trials: int) -> Iterator[None]:
    """Search whose trials write a table's results at once."""
    from orchestrator.config.loader import load_search_file
    from orchestrator.lifecycle import create, drive
    from orchestrator.planning.candidates import candidates_of
    from tests.orchestrator.tabled_parlay import snapshot_tabled_code
    from trials.ledger.location import ledger_url

    path, table = folder / "search.yaml", folder / "table.json"
    path.write_text(SEARCH)
    table.write_text("{}")
    os.environ["PARLAY_TEST_TABLE"] = str(table)
    create.snapshot_code = snapshot_tabled_code
    settings = [f"search.max_trials={trials}", f"search.parallel_trials={IN_FLIGHT}", f"work_dir={folder / 'runs'}"]
    spec = load_search_file(path, settings)
    candidates, url = candidates_of(spec).layouts, ledger_url()
    yield
    search = drive.drive(create.create_search(spec, url), spec, candidates, None, url, drive.SearchCallbacks())
    if len(search.trials) != trials or search.best_trial is None:
        raise RuntimeError(f"{len(search.trials)} of {trials} trials, best {search.best_trial}")
    yield


def submitit(folder: Path, trials: int) -> Iterator[None]:
    """Submit jobs one by one, as a search does, and poll each until it has ended."""
    import submitit as library

    executor = library.AutoExecutor(folder=folder, cluster="slurm")
    executor.update_parameters(timeout_min=5, cpus_per_task=1, slurm_job_name="noop")
    yield
    left, running = trials, []
    while left or running:
        while left and len(running) < IN_FLIGHT:
            running.append(executor.submit(nothing))
            left -= 1
        time.sleep(LOOK_S)
        ended = [job for job in running if job.done()]
        running = [job for job in running if job not in ended]
        for job in ended:
            job.result()
    yield


def ray_tune(folder: Path, trials: int) -> Iterator[None]:
    """Random search over one number."""
    import ray
    from ray import tune

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(address="local", num_cpus=IN_FLIGHT, include_dashboard=False, log_to_driver=False)
    config = tune.TuneConfig(metric="speed", mode="max", num_samples=trials, max_concurrent_trials=IN_FLIGHT)
    kept = tune.RunConfig(storage_path=str(folder), verbose=0)
    tuner = tune.Tuner(_reported, param_space={"x": tune.uniform(0, 1)}, tune_config=config, run_config=kept)
    yield
    results = tuner.fit()
    if len(results) != trials:
        raise RuntimeError(f"{len(results)} of {trials} trials")
    yield
    ray.shutdown()


def nothing() -> float:
    """Trial that does nothing."""
    return 1.0


def _reported(config: Mapping[str, float]) -> dict[str, float]:
    return {"speed": config["x"]}


PROGRAMS: dict[str, Callable[[Path, int], Iterator[None]]] = {
    "parlay": parlay,
    "submitit": submitit,
    "ray_tune": ray_tune,
}


def _cpu_s(who: int) -> float:
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))))
