"""Failure reason of a third-party trainer, from its exit code and the end of its output. Pure; standard library
only."""

from __future__ import annotations

import signal

from trials.files.text import last_line
from trials.ranks.failures import EXCERPT_CHARACTERS, TrialFailure, reason_of_output
from trials.trainers.common.trainer_log import OutputTail
from trials.trial import FailureReason

_TAIL_LINES = 20


def failure_of(exit_code: int, words: OutputTail, num_steps: int, oom_kills: int) -> TrialFailure:
    """The failure behind a bad exit code. `num_steps` were seen in the log; `oom_kills` is how often the kernel killed
    for memory meanwhile."""
    how = f"the trainer {_describe_exit(exit_code)}"
    cause = words.cause()
    output = (cause or words.tail(_TAIL_LINES))[-EXCERPT_CHARACTERS:]
    # The log does not show a signal; it goes last, where tables look for the cause.
    excerpt = f"{output}\n{how}" if exit_code < 0 and cause is None else f"{how}\n{output}"
    return TrialFailure(_reason(exit_code, words, cause, num_steps, oom_kills), excerpt)


def _reason(exit_code: int, words: OutputTail, cause: str | None, num_steps: int, oom_kills: int) -> FailureReason:
    if words.ran_out_of_memory:
        return FailureReason.GPU_OOM
    if exit_code == -signal.SIGKILL:
        return FailureReason.HOST_OOM if oom_kills > 0 else FailureReason.NODE_FAILURE
    if words.port_was_taken and num_steps == 0:
        return FailureReason.LAUNCH_FAILURE
    return reason_of_output(last_line(cause) if cause else words.tail(_TAIL_LINES))


def _describe_exit(exit_code: int) -> str:
    return f"was killed by signal {-exit_code}" if exit_code < 0 else f"exited with code {exit_code}"
