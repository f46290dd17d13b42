from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from search_spaces.layouts.layout import Layout
from tests.trials.train.trial_processes import make_spec
from trials.ranks.environment import RankEnvironment, compiles, prepare_process, process_age_s

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}
SLURM = {"SLURM_PROCID": "5", "SLURM_NTASKS": "16", "SLURM_LOCALID": "2"}


def test_the_launchers_names_count_before_slurms():
    assert RankEnvironment.read(TORCHRUN | SLURM) == RankEnvironment(3, 8, 1)
    assert RankEnvironment.read(SLURM) == RankEnvironment(5, 16, 2)


def test_restart_and_parent_are_read_where_set():
    env = RankEnvironment.read(TORCHRUN | {"SLURM_RESTART_COUNT": "2", "PARLAY_PARENT_PID": "17"})
    assert (env.restart, env.parent_pid) == (2, 17)


@pytest.mark.parametrize("missing", TORCHRUN)
def test_without_a_launcher_the_missing_names_are_reported(missing):
    environ = {name: value for name, value in TORCHRUN.items() if name != missing}
    with pytest.raises(ValueError, match=f"neither {missing} nor SLURM_"):
        RankEnvironment.read(environ)


def test_slurms_rank_is_exported_under_the_usual_names():
    environ: dict[str, str] = {}
    RankEnvironment.read(SLURM).export(environ)
    assert environ == {"RANK": "5", "WORLD_SIZE": "16", "LOCAL_RANK": "2"}


def test_ranks_on_a_cpu_take_one_thread_unless_told_otherwise():
    spec = make_spec(Layout())
    environ: dict[str, str] = {}
    prepare_process(spec, environ)
    assert environ["OMP_NUM_THREADS"] == "1"
    environ = {"OMP_NUM_THREADS": "7"}
    prepare_process(spec, environ)
    assert environ["OMP_NUM_THREADS"] == "7"


def test_ranks_of_one_node_talk_over_loopback_only():
    one_node, two_nodes = make_spec(Layout(tensor_parallel=2)), make_spec(Layout(tensor_parallel=2), gpus_per_node=1)
    environ: dict[str, str] = {}
    prepare_process(two_nodes, environ)
    assert "GLOO_SOCKET_IFNAME" not in environ
    prepare_process(one_node, environ)
    assert environ["GLOO_SOCKET_IFNAME"] == "lo"


def test_settings_of_accelerate_launch_do_not_reach_its_engine():
    given = {"ACCELERATE_USE_FSDP": "true", "FSDP_OFFLOAD_PARAMS": "true", "PARALLELISM_CONFIG_TP_SIZE": "2"}
    environ = dict(given)
    prepare_process(make_spec(Layout()), environ)
    assert given.items() <= environ.items()
    prepare_process(make_spec(Layout(engine="accelerate")), environ)
    assert not given.keys() & environ.keys()


@pytest.mark.slow
def test_a_process_is_as_old_as_the_time_since_its_start():
    assert process_age_s() > 0
    program = "import time; from trials.ranks.environment import process_age_s as age; print(age(), time.monotonic())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=20)
    assert 0 < float(done.stdout.split()[0]) < 20


@pytest.mark.slow
def test_nothing_before_the_run_itself_imports_torch():
    program = "import sys, trials.train.program; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=20)


@pytest.mark.security("no_pickle")
@pytest.mark.parametrize("theirs", [None, "a link", "open to others"])
def test_torch_compile_reads_its_cache_from_a_folder_that_nobody_else_could_make_first(tmp_path, monkeypatch, theirs):
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    usual = tmp_path / f"parlay-torchinductor-{os.getuid()}"
    if theirs == "a link":
        usual.symlink_to(tmp_path)
    elif theirs is not None:
        usual.mkdir()
        usual.chmod(0o770)
    environ: dict[str, str] = {}
    prepare_process(make_spec(Layout(torch_compile=True)), environ)
    folder = Path(environ["TORCHINDUCTOR_CACHE_DIR"])
    assert (folder == usual) == (theirs is None)
    assert folder.stat().st_mode & 0o777 == 0o700
    prepare_process(make_spec(Layout()), plain := {})
    assert "TORCHINDUCTOR_CACHE_DIR" not in plain


@pytest.mark.parametrize(
    ("layout", "accelerator", "is_so"),
    [
        (Layout(torch_compile=True), "cpu", True),
        (Layout(engine="megatron-core"), "h100", True),
        (Layout(engine="megatron-core"), "cpu", False),
        (Layout(engine="torchtitan"), "h100", True),
        (Layout(engine="torchtitan"), "cpu", False),
        (Layout(), "h100", False),
    ],
)
def test_the_compiler_runs_where_it_is_asked_for_and_for_some_engines_on_a_gpu(layout, accelerator, is_so):
    spec = replace(make_spec(layout), accelerator=accelerator)
    assert compiles(spec) == is_so
    prepare_process(spec, environ := {})
    assert ("TORCHINDUCTOR_CACHE_DIR" in environ) == is_so
