"""The end of texts and logs, escape sequences, and the root cause of a failure."""

from __future__ import annotations

from pathlib import Path

import pytest

from trials.files.text import last_line, tail, without_escapes
from trials.files.tracebacks import TRACEBACK, first_cause, is_device_failure, names_lost_connection


def test_a_tail_is_the_last_lines_of_a_file_of_which_no_more_is_read(tmp_path: Path):
    assert [last_line(text) for text in ("File x\nValueError: no\n\n", " \n\n", "")] == ["ValueError: no", "", ""]
    log = tmp_path / "log"
    with pytest.raises(FileNotFoundError):
        tail(log, 3)
    log.write_bytes(b"one\ntwo\nthr\xffee\n")
    assert tail(log, 2) == "two\nthr\N{REPLACEMENT CHARACTER}ee"
    assert tail(log, 9).startswith("one\n")
    log.write_bytes(b"x" * 2**20 + b"\nthe end\n")
    assert tail(log, 1) == "the end"
    assert len(tail(log, 2)) == 2**16 - 1


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("\x1b[1;31mred\x1b[0m and \x1b[Kplain", "red and plain"),
        ("\x1b]0;a title\x07words \x1b]8;;http://x\x1b\\a link", "words a link"),
        ("[Rank 3] 50 % | µ", "[Rank 3] 50 % | µ"),
        ("cut \x1b[38;5", "cut \x1b[38;5"),
    ],
)
def test_what_steers_a_terminal_is_taken_out_of_a_text(text: str, plain: str):
    assert without_escapes(text) == plain


PEER = f"""\
{TRACEBACK}
  File "/code/trials/train/measurement/loop.py", line 40, in run
    dist.all_reduce(loss)
torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2000, remote process exited"""
GLOO = f"""\
{TRACEBACK}
  File "/code/trials/train/measurement/loop.py", line 40, in run
    dist.all_reduce(loss)
RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:525] Connection closed by peer [127.0.0.1]:4242"""
CAUSE = f"""\
{TRACEBACK}
  File "/code/trials/train/measurement/loop.py", line 31, in run
    raise ValueError("rank 2 is broken")
ValueError: rank 2 is broken"""
CHAINED = f"""\
{TRACEBACK}
  File "/code/a.py", line 1, in load
    open("data")
FileNotFoundError: [Errno 2] No such file or directory: 'data'

During handling of the above exception, another exception occurred:

{TRACEBACK}
  File "/code/a.py", line 3, in main
    raise RuntimeError("cannot load") from None
RuntimeError: cannot load"""


FIRST, SECOND = CHAINED.split("\n\nDuring handling of the above exception, another exception occurred:\n\n")
CUT = CAUSE[: CAUSE.index("ValueError: rank")].rstrip("\n")
ABORT = (
    "terminate called after throwing an instance of 'c10::DistBackendError'\n"
    "  what():  [PG ID 0 PG GUID 0 Rank 3] Process group watchdog thread terminated with exception: CUDA error: "
    "uncorrectable ECC error encountered\nAborted (core dumped)"
)
TOLD = CAUSE.replace("rank 2 is broken", "uncorrectable ECC error encountered")


@pytest.mark.parametrize(
    ("logs", "cause"),
    [
        (["step 1\n", PEER, GLOO + "\nbye\n", f"starting\n{CAUSE}\nleaving\n", CAUSE.replace("2", "3")], CAUSE),
        ([GLOO, PEER], GLOO),
        ([], None),
        (["step 1\nstep 2\n", "Killed\n"], None),
        ([CHAINED], FIRST),
        ([CHAINED.replace(FIRST, CAUSE).replace(SECOND, PEER)], CAUSE),
        ([CUT, PEER], CUT),
        ([CAUSE.split("\n", 1)[1]], None),  # its beginning was cut off
        ([PEER, CAUSE, f"step 3\n{ABORT}\n"], ABORT.splitlines()[1]),
        ([PEER, CAUSE, f"step 3\n{ABORT}\n", TOLD], TOLD),
    ],
)
def test_the_cause_is_the_first_traceback_that_is_no_echo_or_a_dead_device(logs, cause):
    assert first_cause(logs) == cause


@pytest.mark.parametrize(
    ("line", "is_peer"),
    [
        ("torch.distributed.DistStoreError: wait timeout after 300000ms", True),
        ("BrokenPipeError: [Errno 32] Broken pipe", True),
        ("AssertionError: heads 3 x tensor 2", False),
    ],
)
def test_only_the_exceptions_own_line_tells_whether_it_is_about_a_peer(line, is_peer):
    body = f"{TRACEBACK}\n  File 'x', line 1, in y\n    # Broken pipe\n"
    assert names_lost_connection(body + line) is is_peer
    assert not names_lost_connection("")


@pytest.mark.parametrize(
    ("words", "is_dead"),
    [
        (ABORT, True),
        ("RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution", True),
        ("NVRM: Xid (PCI:0000:65:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.", True),
        ("kernel: NVRM: Xid (PCI:0000:65:00): 64, pid='N/A', Row Remapper: Failed to remap row", True),
        ("NVRM: Xid (PCI:0000:65:00): 31, pid=1234, Ch 00000008, MMU Fault", False),  # an illegal address of ours
        ("NVRM: Xid (PCI:0000:65:00): 480", False),
        ("CUDA error: unspecified launch failure", False),
        ("xid 64", True),
        ("maxid 64", False),
    ],
)
def test_a_dead_device_is_known_by_its_words(words, is_dead):
    assert is_device_failure(words) is is_dead
