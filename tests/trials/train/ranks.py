"""Warm ranks for tests, forked from one process that has torch and DeepSpeed imported: a second instead of ten per
case.

The warm process reads one request per line and answers with one line. It is separate from pytest, whose other tests may
leave threads behind that a fork would not survive. Ranks run a function of the tests, or a program; Python's start-up
and shutdown are not part of such a rank.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import runpy
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from search_spaces.engines import ACCELERATE, MEGATRON_CORE, TORCHTITAN
from trials.ranks.environment import PARENT_VARIABLE

IMPORTED_ONCE = (
    "torch.distributed.pipelining",
    "torch.distributed.fsdp",
    "torch.utils.checkpoint",
    "torch._inductor.compile_fx",
    "torch._inductor.codegen.cpp",
    "trials.train.engines.torch_engine",
    "trials.train.engines.flat_buffers",
    "trials.train.engines.fsdp",
    "trials.train.engines.torch_pipeline",
    "trials.train.engines.deepspeed_engine",
    "trials.train.selftest.training",
)
"""Modules that some case may need."""
OF_ENGINE = {
    ACCELERATE: ("trials.train.engines.accelerate_engine", "trials.train.selftest.training"),
    MEGATRON_CORE: ("trials.train.engines.megatron_core_engine", "trials.train.selftest.training"),
    TORCHTITAN: ("trials.train.selftest.training",),
}
"""Those of cases by one engine."""
PEFT = "peft"
OF_ENGINE[PEFT] = (*OF_ENGINE[ACCELERATE], "tests.trials.train.peft_programs")
NO_ENGINE = "none"
OF_ENGINE[NO_ENGINE] = ("torch._inductor.compile_fx", "trials.train.selftest.training")
"""Those of cases that import an engine in their own way."""
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "PARLAY_PARENT_PID": "",
    "TORCHINDUCTOR_COMPILE_THREADS": "1",  # else every rank that compiles starts processes which import torch anew
}


class RanksFailed(Exception):
    """A rank raised, died or exceeded the limit; the message has every rank's output."""


class WarmRanks:
    """Runs `module:function` of the tests on forked ranks. `function(arguments, folder)` returns JSON."""

    def __init__(self, engine: str = "") -> None:
        """Ranks of torch and DeepSpeed, or of one engine of `OF_ENGINE`."""
        on_cpu = {"TORCHDYNAMO_DISABLE": "1"} if engine in (MEGATRON_CORE, TORCHTITAN) else {}
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.trials.train.ranks", engine],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | ENVIRONMENT | on_cpu,
        )
        self._requests: Any = self._server.stdin
        self._answers: Any = self._server.stdout

    def run(self, function: str, world_size: int, arguments: Mapping[str, Any], limit_s: float = 240.0) -> list[Any]:
        """Each rank's answer, in rank order; RanksFailed when one is missing."""
        answer = self._ask(function=function, world_size=world_size, arguments=arguments, limit_s=limit_s)
        if answer["errors"]:
            raise RanksFailed("\n".join(answer["errors"]))
        return answer["results"]

    def start(self, module: str, arguments: Sequence[str], environment: Mapping[str, str], log: Path) -> WarmProcess:
        """Start `python -m module arguments`, with output to `log`; its parent is the warm process."""
        environment = {**environment, PARENT_VARIABLE: str(self._server.pid)}
        wanted = {"module": module, "arguments": list(arguments), "environment": environment, "log": str(log)}
        return WarmProcess(self, self._ask(**wanted))

    def _ask(self, **request: Any) -> Any:
        self._requests.write(json.dumps(request) + "\n")
        self._requests.flush()
        return json.loads(self._answers.readline())

    def close(self) -> None:
        self._requests.close()
        self._server.wait(timeout=60)


class WarmProcess:
    """Popen-like handle of a process started by `WarmRanks.start`."""

    def __init__(self, ranks: WarmRanks, pid: int):
        self._ranks = ranks
        self._code: int | None = None
        self.pid = pid

    def poll(self) -> int | None:
        if self._code is None:
            self._code = self._ranks._ask(reap=self.pid)
        return self._code

    def wait(self, timeout: float = math.inf) -> int:
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("a warm process", timeout)
            time.sleep(0.01)
        return code

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def serve() -> None:
    """The warm process: import once, then fork for each request until stdin ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints must not end up among the answers
    os.environ["DS_ACCELERATOR"] = "cpu"
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    sys.modules["mlflow"] = None  # type: ignore[assignment]
    engine = sys.argv[1]
    if engine == TORCHTITAN:
        importlib.import_module("trials.train.engines.factory").engine_builder(engine, on_cpu=True)
    for module in OF_ENGINE.get(engine, IMPORTED_ONCE):
        importlib.import_module(module)
    # megatron-core gathers its parameter groups as pickles, and stages of torchtitan send their shapes so.
    if engine not in (MEGATRON_CORE, TORCHTITAN):
        _refuse_pickles()
    if shutil.which("g++") is not None:  # torch starts a process for each kind of vector instructions: once for all
        importlib.import_module("torch._inductor.cpu_vec_isa").pick_vec_isa()
    for line in sys.stdin:
        answers.write(json.dumps(_answer(json.loads(line))) + "\n")
        answers.flush()


def _answer(request: Mapping[str, Any]) -> Any:
    if "module" in request:
        return os.fork() or _become(request)
    return _reap(request["reap"]) if "reap" in request else _run(request)


def _become(request: Mapping[str, Any]) -> NoReturn:
    """Turn this process into `python -m module arguments`."""
    code = 1
    try:
        os.environ.clear()
        os.environ.update(request["environment"])
        for number, file in enumerate((os.open(os.devnull, os.O_RDONLY), *[os.open(request["log"], os.O_WRONLY)] * 2)):
            os.dup2(file, number)
        os.closerange(3, 2**16)  # nor the answers
        sys.argv[1:] = request["arguments"]
        runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def _reap(pid: int) -> int | None:
    """Exit code of a started process; None while it runs."""
    ended, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


def _refuse_pickles() -> None:
    """Fail on any unpickling of another rank's data, by us or by a library."""
    from torch.distributed import distributed_c10d

    def refuse(*_: Any) -> None:
        raise AssertionError("a rank was about to unpickle what another sent")

    assert hasattr(distributed_c10d, "_tensor_to_object")
    distributed_c10d._tensor_to_object = refuse  # type: ignore[assignment]


def _run(request: Mapping[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="parlay-ranks-") as folder:
        children = {_fork(rank, request, Path(folder)): rank for rank in range(request["world_size"])}
        late = _wait(children, time.monotonic() + request["limit_s"])
        return _collect(request["world_size"], Path(folder), late)


def _fork(rank: int, request: Mapping[str, Any], folder: Path) -> int:
    child = os.fork()
    if child:
        return child
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(request["world_size"]), LOCAL_RANK=str(rank))
    try:
        module, _, name = request["function"].partition(":")
        result = getattr(importlib.import_module(module), name)(request["arguments"], folder)
        (folder / f"result-{rank}").write_text(json.dumps(result))
    except BaseException:
        (folder / f"error-{rank}").write_text(traceback.format_exc())
    os._exit(0)


def _wait(children: dict[int, int], deadline: float) -> set[int]:
    """Reap all children; kill those that are left at the deadline, and return their ranks."""
    living, late = dict(children), set()
    while living:
        for pid in list(living):
            if os.waitpid(pid, os.WNOHANG)[0]:
                del living[pid]
        if living and time.monotonic() > deadline:
            late = set(living.values())
            for pid in living:
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)
    return late


def _collect(world_size: int, folder: Path, late: set[int]) -> dict[str, Any]:
    errors, results = [], []
    for rank in range(world_size):
        if (error := folder / f"error-{rank}").exists():
            errors.append(f"rank {rank}: {error.read_text()}")
        elif (result := folder / f"result-{rank}").exists():
            results.append(json.loads(result.read_text()))
        else:
            errors.append(f"rank {rank}: {'not done in time' if rank in late else 'died'}")
    return {"results": results, "errors": errors}


if __name__ == "__main__":
    serve()
