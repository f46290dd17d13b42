"""Environment, address, cores and software of a rank."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from search_spaces.layouts.layout import Layout
from slurm import srun_command
from tests.trials.train.trial_processes import make_spec
from trials.ranks.cuda_connections import MANY, ONE, connections, refused_connections
from trials.ranks.environment import RankEnvironment, compiles, device_number, own_cpus, prepare_process
from trials.ranks.rendezvous import ADDRESS_VARIABLE, own_address
from trials.ranks.software import gpu_driver, speed_environment
from trials.ranks.startup import Startup, StartupPart
from trials.trainers.common.megatron_options import environment_of

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}
SLURM = {"SLURM_PROCID": "5", "SLURM_NTASKS": "16", "SLURM_LOCALID": "2"}


def test_the_launchers_names_count_before_slurms_and_slurms_rank_is_exported_under_the_usual_names():
    assert RankEnvironment.read(TORCHRUN | SLURM) == RankEnvironment(3, 8, 1)
    RankEnvironment.read(SLURM).export(environ := {})
    assert environ == {"RANK": "5", "WORLD_SIZE": "16", "LOCAL_RANK": "2"}
    env = RankEnvironment.read(TORCHRUN | {"SLURM_RESTART_COUNT": "2", "PARLAY_PARENT_PID": "17"})
    assert (env.restart, env.parent_pid) == (2, 17)
    for missing in TORCHRUN:
        environ = {name: value for name, value in TORCHRUN.items() if name != missing}
        with pytest.raises(ValueError, match=f"neither {missing} nor SLURM_"):
            RankEnvironment.read(environ)


SETTINGS = {"ACCELERATE_USE_FSDP": "true", "FSDP_OFFLOAD_PARAMS": "true", "PARALLELISM_CONFIG_TP_SIZE": "2"}
TWO = Layout(tensor_parallel=2)


@pytest.mark.parametrize(
    ("spec", "given", "found"),
    [
        (make_spec(Layout()), {}, {"OMP_NUM_THREADS": "1"}),
        (make_spec(Layout()), {"OMP_NUM_THREADS": "7"}, {"OMP_NUM_THREADS": "7"}),
        (make_spec(TWO), {}, {"GLOO_SOCKET_IFNAME": "lo"}),
        (make_spec(TWO, gpus_per_node=1), {}, {"GLOO_SOCKET_IFNAME": None}),
        (make_spec(Layout()), SETTINGS, SETTINGS),
        (make_spec(Layout(engine="accelerate")), SETTINGS, dict.fromkeys(SETTINGS)),
    ],
    ids=["one-thread", "threads", "one-node", "two-nodes", "settings", "accelerate"],
)
def test_a_rank_has_a_thread_loopback_on_one_node_and_no_settings_of_accelerate_launch(spec, given, found):
    prepare_process(spec, environ := dict(given))
    assert {name: environ.get(name) for name in found} == found


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
    prepare_process(make_spec(Layout(torch_compile=True)), environ := {})
    folder = Path(environ["TORCHINDUCTOR_CACHE_DIR"])
    assert (folder == usual) == (theirs is None)
    assert folder.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("layout", "accelerator", "is_so"),
    [
        (Layout(torch_compile=True), "cpu", True),
        (Layout(engine="megatron-core"), "h100", True),
        (Layout(engine="megatron-core"), "cpu", False),
        (Layout(engine="torchtitan"), "h100", True),
        (Layout(), "h100", False),
    ],
)
def test_the_compiler_runs_where_it_is_asked_for_and_for_some_engines_on_a_gpu(layout, accelerator, is_so):
    spec = replace(make_spec(layout), accelerator=accelerator)
    assert compiles(spec) == is_so
    prepare_process(spec, environ := {})
    assert ("TORCHINDUCTOR_CACHE_DIR" in environ) == is_so


@pytest.mark.parametrize(
    ("wanted", "found"),
    [("", "jwb0001.juwels.example"), ("{ip}", "10.1.2.3"), ("ib-{host}.fast", "ib-jwb0001.fast")],
)
def test_a_node_calls_itself_as_its_site_wants(monkeypatch, wanted, found):
    monkeypatch.setattr(socket, "gethostname", lambda: "jwb0001.juwels")
    monkeypatch.setattr(socket, "getfqdn", lambda: "jwb0001.juwels.example")
    monkeypatch.setattr(socket, "gethostbyname", {"jwb0001.juwels": "10.1.2.3"}.__getitem__)
    monkeypatch.setenv(ADDRESS_VARIABLE, wanted)
    assert own_address() == found
    assert ADDRESS_VARIABLE == srun_command.ADDRESS_VARIABLE


@pytest.mark.parametrize(
    ("environ", "numbers"),
    [
        ({"CUDA_VISIBLE_DEVICES": ""}, [0, 1, 2, 3]),
        ({"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, [0, 1, 2, 3]),
        ({"ROCR_VISIBLE_DEVICES": "2", "CUDA_VISIBLE_DEVICES": "0,1,2,3"}, [0, 0, 0, 0]),
        ({"HIP_VISIBLE_DEVICES": "GPU-5a,GPU-5b"}, [0, 1, 0, 1]),
    ],
)
def test_a_rank_that_is_shown_one_device_uses_that_one(environ, numbers):
    assert [device_number(rank, environ) for rank in range(4)] == numbers


TWO_PACKAGES = [(0, 0), (0, 1), (1, 0), (1, 1)] * 2
"""Of two cores, with two hardware threads each, numbered as Linux does."""
USABLE = sorted(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("cores", "usable", "ranks", "shares"),
    [
        (TWO_PACKAGES, range(8), 3, [[0, 4], [1, 5], [2, 6, 3, 7]]),
        (TWO_PACKAGES, range(8), 8, [[0, 4], [0, 4], [1, 5], [1, 5], [2, 6], [2, 6], [3, 7], [3, 7]]),
        ([(0, 0), (0, 1), (0, 2), (0, 3)], (1, 3), 2, [[1], [3]]),
        ([], USABLE, 1, [USABLE]),
    ],
    ids=["three", "eight", "usable", "no-topology"],
)
def test_ranks_have_whole_usable_cores_and_neighbours(tmp_path, cores, usable, ranks, shares):
    for cpu, (package, core) in enumerate(cores):
        of_cpu = tmp_path / f"cpu{cpu}" / "topology"
        of_cpu.mkdir(parents=True)
        (of_cpu / "physical_package_id").write_text(f"{package}\n")
        (of_cpu / "core_id").write_text(f"{core}\n")
    assert [own_cpus(set(usable), rank, ranks, tmp_path) for rank in range(ranks)] == shares


@pytest.mark.parametrize(
    ("fields", "hopper", "blackwell"),
    [
        ({}, ONE, {}),
        ({"tensor_parallel": 2}, ONE, MANY),
        ({"zero_stage": 2, "data_parallel": 2}, {}, {}),
        ({"expert_parallel": 2, "expert_dispatcher": "hybridep"}, MANY, MANY),
        ({"expert_parallel": 2, "expert_dispatcher": "hybridep", "tensor_parallel": 2}, ONE, MANY),
    ],
)
def test_connections_follow_from_layout_and_device_and_megatron_fsdp_refuses_one(fields, hopper, blackwell):
    layout = Layout(**fields, engine="megatron-lm")
    assert connections(layout, "h100-80gb") == environment_of(layout, "h100-80gb", 8) == hopper
    assert connections(layout, "gb200-186gb") == blackwell
    assert refused_connections(layout) == (ONE if layout.zero_stage == 2 else {})


TOLD = {"OMP_NUM_THREADS": "4", "NCCL_SOCKET_IFNAME": "hsn0", "LOADEDMODULES": "rocm/6.2:cray-mpich/8"}
SECRET = ("NCCL_AUTH_TOKEN", "MKL_LICENSE_KEY", "FI_CXI_SECRET", "KMP_INIT_AT_FORK")
ITS_OWN = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HOME", "RANK", "TORCHELASTIC_RUN_ID")


def test_variables_that_set_libraries_and_transports_are_told_in_order_but_for_a_ranks_own_and_secrets():
    found = speed_environment({**TOLD, **dict.fromkeys(SECRET + ITS_OWN, "hunter2")})
    assert list(found.items()) == sorted(TOLD.items())
    preload = b"/opt/\xe9t\xe9.so\t/opt/b.so".decode(errors="surrogateescape")
    assert speed_environment({"LD_PRELOAD": preload}) == {"LD_PRELOAD": "/opt/ t .so /opt/b.so"}
    assert len(speed_environment({"LOADEDMODULES": "x" * 5000})["LOADEDMODULES"]) == 1000


@pytest.mark.parametrize(
    ("line", "version"),
    [("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54  Release Build", "550.54"), (None, None)],
)
def test_the_drivers_version_is_read(tmp_path, line, version):
    if line is not None:
        (tmp_path / "version").write_text(line + "\nGCC version:  gcc version 12.2.0\n")
    assert gpu_driver(tmp_path / "version") == version


IMPORT, RENDEZVOUS, BUILD = StartupPart.IMPORT, StartupPart.RENDEZVOUS, StartupPart.BUILD
FIRST_STEP, WARMUP = StartupPart.FIRST_STEP, StartupPart.WARMUP


@pytest.mark.parametrize(
    ("ends", "parts"),
    [
        (
            [(IMPORT, 2.0, None), (RENDEZVOUS, 2.5, None), (IMPORT, 4.0, None), (RENDEZVOUS, 5.0, None)],
            {"import": 3.5, "rendezvous": 1.5},
        ),
        (
            [(BUILD, 1.0, None), (FIRST_STEP, 11.0, 8.0), (WARMUP, 14.0, 8.5)],
            {"build": 1.0, "compile": 8.5, "first_step": 2.0, "warmup": 2.5},
        ),
        # The counters add up graphs that may be compiled at the same time.
        ([(BUILD, 1.0, None), (FIRST_STEP, 3.0, 5.0)], {"build": 1.0, "compile": 2.0, "first_step": 0.0}),
        ([(FIRST_STEP, 1.0, None)], {"first_step": 1.0}),
    ],
    ids=["pieces", "compiled", "longer-than-its-steps", "unknown"],
)
def test_parts_add_up_and_compilation_is_taken_out_of_the_steps_it_was_in(ends, parts):
    startup = Startup()
    for part, at_s, compile_s in ends:
        startup.end_of(part, at_s, compile_s)
    found = startup.fields()
    assert found == {"startup_s": ends[-1][1], "startup_parts_s": parts}
    assert list(found["startup_parts_s"]) == list(parts)


LARGE_AND_HOLES = """
from pathlib import Path
from search_spaces.layouts.layout import Layout
from tests.trials.train.trial_processes import make_spec
from trials.ranks.allocator import LARGE_BUFFER_BYTES, trim_heap
from trials.ranks.environment import prepare_process

def resident_mib():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20

prepare_process(make_spec(Layout()), {})
bytearray(16 * LARGE_BUFFER_BYTES)  # once freed, glibc would keep whatever is smaller in its heap
large = bytearray(8 * LARGE_BUFFER_BYTES)
before = resident_mib()
del large
print(before - resident_mib())
buffers = [bytearray(LARGE_BUFFER_BYTES // 4) for _ in range(400)]  # 100 MiB in the heap
kept = buffers[1::2]
del buffers  # every other one is a hole
before = resident_mib()
trim_heap()
print(before - resident_mib())
"""


@pytest.mark.slow
def test_on_a_cpu_a_large_buffer_and_holes_between_small_ones_go_back_to_the_kernel():
    """In a new process, since settings of an allocator are final."""
    done = subprocess.run(
        [sys.executable, "-c", LARGE_AND_HOLES], capture_output=True, text=True, check=True, timeout=20
    )
    of_large, of_holes = map(float, done.stdout.split())
    assert of_large >= 7, "of 8 MiB"
    assert of_holes >= 40, "of 50 MiB"
