"""Failure reason of an exception in a rank: out of memory, a dead GPU or peer, a hang, a broken script. Imports no
torch."""

from __future__ import annotations

import errno
import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

from search_spaces.errors import InputError
from trials.failure_policy import policy_of
from trials.files.tracebacks import PEER_TYPES, PEER_WORDS, is_device_failure
from trials.outcome_types import ThroughputBound
from trials.trial import FailureReason

EXCERPT_CHARACTERS = 4000

# Matched by name and text because the same fault has other types in other versions and backends of torch.
_TOLD_BY = (
    (
        FailureReason.GPU_OOM,
        ("OutOfMemoryError", "MemoryError"),
        (
            *("DefaultCPUAllocator", "can't allocate memory", "out of memory", "bad_alloc"),
            "Failed to CUDA calloc",  # NCCL, whose error would be a lost peer's
            "CUBLAS_STATUS_ALLOC_FAILED",
        ),
    ),
    (
        FailureReason.HANG,
        ("TimeoutError",),
        ("Timed out waiting", "timed out", "Watchdog caught collective operation timeout"),
    ),
    (FailureReason.NODE_FAILURE, PEER_TYPES, PEER_WORDS),
)
"""Reasons in the order of belief, with the types of exceptions and the words that tell of each."""
_OF_A_FILE_SYSTEM = (
    errno.EIO,
    errno.ESTALE,
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EROFS,
    errno.ESHUTDOWN,
    errno.ENOTCONN,
    errno.EREMOTEIO,
)
"""Errors of a file system that is full, temporarily gone, or has evicted its client, whatever the file."""
_OUR_CODE = ("trials", "search_spaces")


class TrialFailure(Exception):
    """Ends the trial with a reason that the program itself found; `bound` is that of its throughput, where known."""

    def __init__(self, reason: FailureReason, message: str, bound: ThroughputBound | None = None):
        super().__init__(message)
        self.reason = reason
        self.bound = bound


@contextmanager
def data_failures() -> Iterator[None]:
    """Within this block InputErrors about the data end the trial as script errors: they are the same for every
    layout."""
    try:
        yield
    except InputError as error:
        raise TrialFailure(FailureReason.SCRIPT_ERROR, str(error)) from error


def reason_of(error: BaseException, own: Path) -> FailureReason:
    """The reason behind an exception, searched along its whole chain of causes. `own` is the attempt's folder."""
    causes = list(_chain(error))
    for cause in causes:
        if isinstance(cause, TrialFailure):
            return cause.reason
        if isinstance(cause, InputError):
            return FailureReason.INVALID_LAYOUT
    if is_own_file_error(error, own):
        return FailureReason.LAUNCH_FAILURE
    if any(_is_device_error(cause) for cause in causes):
        return FailureReason.NODE_FAILURE
    found = (reason for reason, types, words in _TOLD_BY if any(_matches(cause, types, words) for cause in causes))
    return next(found, FailureReason.SCRIPT_ERROR)


def is_own_file_error(error: BaseException, own: Path) -> bool:
    """True if the attempt's folder `own` or our code could not be read or written, or a file system failed: that may
    pass."""
    return any(_is_own_file_cause(cause, own) for cause in _chain(error))


def reason_of_output(words: str) -> FailureReason:
    """The reason behind a process's last output: the line that names an exception, or its last lines."""
    if is_device_failure(words):
        return FailureReason.NODE_FAILURE
    found = (reason for reason, *names in _TOLD_BY if any(name in words for name in chain.from_iterable(names)))
    return next(found, FailureReason.SCRIPT_ERROR)


def is_peer_failure(error: BaseException, own: Path) -> bool:
    """True if the cause lies in another rank, which may still report it. A rank whose own GPU is dead is the cause."""
    is_own = any(is_device_failure(str(cause)) for cause in _chain(error))
    return policy_of(reason_of(error, own)).peers_report_it and not is_own


def excerpt_of(error: BaseException) -> str:
    """The message of a failure that the program found itself, else the end of the traceback."""
    if isinstance(error, (TrialFailure, InputError)):
        return str(error)
    return "".join(traceback.format_exception(error))[-EXCERPT_CHARACTERS:]


def bound_of(error: BaseException) -> ThroughputBound | None:
    """The bound of the throughput until this error ended the trial."""
    return error.bound if isinstance(error, TrialFailure) else None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _is_own_file_cause(error: BaseException, own: Path) -> bool:
    if isinstance(error, ModuleNotFoundError):
        return (error.name or "").partition(".")[0] in _OUR_CODE
    if not isinstance(error, OSError):
        return False
    named = [Path(os.fsdecode(name)) for name in (error.filename, error.filename2) if isinstance(name, (str, bytes))]
    return error.errno in _OF_A_FILE_SYSTEM or any(path.is_relative_to(own) for path in named)


def _is_device_error(error: BaseException) -> bool:
    return isinstance(error, RuntimeError) and is_device_failure(str(error))


def _matches(error: BaseException, types: tuple[str, ...], words: tuple[str, ...]) -> bool:
    names = {kind.__name__ for kind in type(error).__mro__}
    return not names.isdisjoint(types) or (isinstance(error, RuntimeError) and any(w in str(error) for w in words))
