"""Software of a rank, without imports."""

from __future__ import annotations

import pytest

from trials.ranks.software import gpu_driver, speed_environment


def test_variables_that_set_libraries_and_transports_are_reported():
    told = {"OMP_NUM_THREADS": "4", "NCCL_SOCKET_IFNAME": "hsn0", "LOADEDMODULES": "rocm/6.2:cray-mpich/8"}
    assert speed_environment({**told, "HOME": "/home/ada", "RANK": "3", "TORCHELASTIC_RUN_ID": "17"}) == told
    assert list(speed_environment(told)) == ["LOADEDMODULES", "NCCL_SOCKET_IFNAME", "OMP_NUM_THREADS"]


@pytest.mark.parametrize(
    "name",
    [
        "CUDA_VISIBLE_DEVICES",
        "ROCR_VISIBLE_DEVICES",
        "NCCL_AUTH_TOKEN",
        "MKL_LICENSE_KEY",
        "FI_CXI_SECRET",
        "KMP_INIT_AT_FORK",
    ],
)
def test_what_is_one_ranks_own_or_may_be_a_secret_is_not(name):
    assert speed_environment({name: "hunter2"}) == {}


def test_a_long_value_is_cut():
    assert len(speed_environment({"LOADEDMODULES": "x" * 5000})["LOADEDMODULES"]) == 1000


def test_what_is_no_text_is_reported_as_text_that_stays_itself_wherever_it_is_written():
    preload = b"/opt/\xe9t\xe9.so\t/opt/b.so".decode(errors="surrogateescape")
    assert speed_environment({"LD_PRELOAD": preload}) == {"LD_PRELOAD": "/opt/ t .so /opt/b.so"}


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023", "535.104.05"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54  Release Build", "550.54"),
        ("something else", None),
    ],
)
def test_the_drivers_version_is_read(tmp_path, line, version):
    (tmp_path / "version").write_text(line + "\nGCC version:  gcc version 12.2.0\n")
    assert gpu_driver(tmp_path / "version") == version


def test_no_driver_has_no_version(tmp_path):
    assert gpu_driver(tmp_path / "version") is None
