from __future__ import annotations

import errno
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from search_spaces.errors import InputError
from trials.ranks.failures import TrialFailure, excerpt_of, is_peer_failure, reason_of, reason_of_output
from trials.trial import FailureReason


def wrapped(cause: BaseException) -> BaseException:
    """An error raised from the real one, as pipelining does."""
    try:
        try:
            raise cause
        except BaseException as error:
            raise RuntimeError("stage 1 failed to run forward") from error
    except RuntimeError as error:
        return error


CPU_ALLOCATOR = (
    "[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: you tried to allocate 4"
)
NCCL_OOM = (
    "NCCL error in: ProcessGroupNCCL.cpp:3699, unhandled cuda error\nncclUnhandledCudaError: Call to CUDA function "
    "failed.\nLast error:\nFailed to CUDA calloc async 608 bytes"
)
GLOO_RESET = "[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:4242"
ECC = "CUDA error: uncorrectable ECC error encountered\nCUDA kernel errors might be asynchronously reported"
NCCL_ECC = (
    "NCCL error in: ProcessGroupNCCL.cpp:3699, unhandled cuda error\nncclUnhandledCudaError: Call to CUDA function "
    "failed.\nLast error:\nCuda failure 'uncorrectable ECC error encountered'"
)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), FailureReason.GPU_OOM),
        (RuntimeError(CPU_ALLOCATOR), FailureReason.GPU_OOM),
        (MemoryError(), FailureReason.GPU_OOM),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublas`"), FailureReason.GPU_OOM),
        (dist.DistBackendError(NCCL_OOM), FailureReason.GPU_OOM),
        (RuntimeError(ECC), FailureReason.NODE_FAILURE),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), FailureReason.SCRIPT_ERROR),
        (RuntimeError(GLOO_RESET), FailureReason.NODE_FAILURE),
        (dist.DistStoreError("wait timeout after 60000ms"), FailureReason.NODE_FAILURE),
        (RuntimeError("[gloo/tcp/unbound_buffer.cc:78] Timed out waiting 6000ms for recv"), FailureReason.HANG),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), FailureReason.SCRIPT_ERROR),
        (KeyError("Broken pipe"), FailureReason.SCRIPT_ERROR),
        (TrialFailure(FailureReason.RESULT_INVALID, "loss nan"), FailureReason.RESULT_INVALID),
        (InputError.of("torch.layers", "4 pipeline stages for 2 layers"), FailureReason.INVALID_LAYOUT),
    ],
)
def test_an_exception_has_its_reason_also_when_wrapped(error, reason):
    assert reason_of(error, FOLDER) is reason
    assert reason_of(wrapped(error), FOLDER) is reason


FOLDER = Path("/shared/runs/gpt-1a2b3c/trials/t0001/a1")


def os_error(code: int, path: str | None = None) -> OSError:
    return OSError(code, "words of the system", path)


OF_THE_MACHINE, OF_THE_SCRIPT = FailureReason.LAUNCH_FAILURE, FailureReason.SCRIPT_ERROR


@pytest.mark.fault(47)
@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (os_error(errno.ENOENT, f"{FOLDER}/.outcome.r0.json.1f.part"), OF_THE_MACHINE),
        (os_error(errno.ENOENT, str(FOLDER)), OF_THE_MACHINE),
        *((os_error(code), OF_THE_MACHINE) for code in (errno.ESTALE, errno.ENOSPC)),
        (ModuleNotFoundError("absent", name="trials.train.measurement.loop"), OF_THE_MACHINE),
        (ModuleNotFoundError("absent", name="flash_attn"), OF_THE_SCRIPT),
        (os_error(errno.ENOENT, "g++"), OF_THE_SCRIPT),
        (os_error(errno.ENOENT, "/shared/runs/gpt-1a2b3c/trials/t0001/a10/x"), OF_THE_SCRIPT),
        (OSError("libcudart.so.12: cannot open shared object file"), OF_THE_SCRIPT),
        (os_error(errno.ECONNRESET), OF_THE_SCRIPT),
    ],
)
def test_what_a_rank_cannot_read_or_write_of_its_own_files_is_the_machines(error, reason):
    assert reason_of(error, FOLDER) is reason
    assert reason_of(wrapped(error), FOLDER) is reason


@pytest.mark.fault(47)
def test_what_is_wrong_with_the_data_stays_what_it_is():
    error = TrialFailure(FailureReason.SCRIPT_ERROR, "tokens.bin cannot be read")
    error.__cause__ = os_error(errno.EIO)
    assert reason_of(error, FOLDER) is FailureReason.SCRIPT_ERROR


def test_only_a_lost_or_silent_peer_is_about_another_rank():
    about_peers = {reason for reason in FailureReason if is_peer_failure(TrialFailure(reason, "told"), FOLDER)}
    assert about_peers == {FailureReason.NODE_FAILURE, FailureReason.HANG}


@pytest.mark.parametrize("error", [RuntimeError(ECC), dist.DistBackendError(NCCL_ECC)])
def test_a_rank_whose_own_gpu_is_dead_waits_for_nobody_elses_words(error):
    assert reason_of(wrapped(error), FOLDER) is FailureReason.NODE_FAILURE
    assert not is_peer_failure(wrapped(error), FOLDER)
    assert reason_of_output(f"torch.AcceleratorError: {ECC}") is FailureReason.NODE_FAILURE


def test_the_excerpt_is_the_end_of_the_traceback_or_the_message_of_what_the_program_found_itself():
    excerpt = excerpt_of(wrapped(ValueError("x" * 10_000)))
    assert len(excerpt) <= 4000
    assert excerpt.endswith("RuntimeError: stage 1 failed to run forward\n")
    assert excerpt_of(TrialFailure(FailureReason.TIME_LIMIT, "3 measured steps")) == "3 measured steps"
