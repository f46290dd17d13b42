"""Environment variables that may differ between a fork server and its ranks."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from orchestrator.launchers.local.rank_groups import program_environment
from search_spaces.engines import ACCELERATE, MEGATRON_CORE, TORCHTITAN
from tests.sources import ROOT
from tests.trials.train.parity import needs_accelerate, needs_megatron, needs_torchtitan
from trials.fork_server.equality import is_safe
from trials.trainers.base import PRELOADS

RECORDER = """
import json, os, sys
names = set()

class Recorder(type(os.environ)):
    def __getitem__(self, name):
        names.add(name)
        return super().__getitem__(name)
    def __contains__(self, name):
        names.add(name)
        return super().__contains__(name)

of = os.environ
os.environ = Recorder(of._data, of.encodekey, of.decodekey, of.encodevalue, of.decodevalue)
from trials.fork_server.preload import import_all
import_all(sys.argv[1])
print(json.dumps(sorted(names)))
"""


def test_only_a_ranks_place_is_safe() -> None:
    assert all(map(is_safe, ("RANK", "SLURM_PROCID")))
    others = ("OMP_NUM_THREADS", "RANKS", "NCCL_DEBUG", "PATH", "LD_PRELOAD", "TORCH_LOGS", "TMPDIR")
    assert not any(map(is_safe, others))


NEEDS = {ACCELERATE: [needs_accelerate], MEGATRON_CORE: [needs_megatron], TORCHTITAN: [needs_torchtitan]}
ON_CPU = [name for name in PRELOADS if name.endswith("/cpu")]


def marks_of(preload: str) -> list[pytest.MarkDecorator]:
    """Marks of an engine's case: torch's is in each run of the tests."""
    engine = preload.partition("/")[0]
    return [] if engine == "torch" else [*NEEDS.get(engine, []), pytest.mark.walks]


@pytest.mark.processes
@pytest.mark.timeout(300)
@pytest.mark.parametrize("preload", [pytest.param(name, marks=marks_of(name)) for name in ON_CPU])
def test_no_module_of_a_rank_reads_a_safe_variable_while_it_is_imported(preload: str) -> None:
    environment = {"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1", **program_environment(str(ROOT))}
    argv = [sys.executable, "-c", RECORDER, preload]
    done = subprocess.run(argv, env=environment, cwd="/", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    names = json.loads(done.stdout.splitlines()[-1])
    assert "OMP_NUM_THREADS" in names
    assert [name for name in names if is_safe(name)] == []
