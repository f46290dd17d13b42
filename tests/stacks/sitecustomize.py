"""Notes of where a process stands when it hands an object on; Python imports this by itself where it is on the path.

Lines of `STACKS_TO`/PID.jsonl: when, what happened, of what, and the functions of ours on the stack, innermost first. A
thread's stack goes on with that of whoever started it; processes started from here note theirs, too.
"""

import json
import os
import subprocess
import sys
import threading
import time
from functools import wraps

_TO, _PLACE, _ROOMS = (os.environ[name] for name in ("STACKS_TO", "STACKS_PLACE", "STACKS_ROOMS"))
_FOLDERS = tuple(_ROOMS.split(os.pathsep))
_HANDED_ON = ("SearchSpec", "TrialSpec")
_state = threading.local()


def _stack(frame):
    found = []
    while frame is not None:
        file = frame.f_code.co_filename
        room = next((folder for folder in _FOLDERS if f"/{folder}/" in file), None)
        if room is not None:
            found.append(f"{room}/{file.rpartition(f'/{room}/')[2]}::{frame.f_code.co_qualname}")
        frame = frame.f_back
    return found + getattr(threading.current_thread(), "_started_by", [])


def _note(what, of, frame):
    if getattr(_state, "is_noting", False):
        return
    _state.is_noting = True
    try:
        if stack := _stack(frame):
            with open(f"{_TO}/{os.getpid()}.jsonl", "a") as file:
                file.write(json.dumps([time.time(), what, of, stack]) + "\n")
    finally:
        _state.is_noting = False


def _audit(event, arguments):
    if event == "open" and isinstance(arguments[0], str | bytes | os.PathLike):
        path = os.path.abspath(os.fsdecode(arguments[0]))
        if path.startswith(_PLACE):
            is_written = bool((arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR))
            _note("write" if is_written else "read", path, sys._getframe(1))
    elif event == "subprocess.Popen":
        _note("start", " ".join(map(os.fsdecode, arguments[1])), sys._getframe(1))


def _profile(frame, event, argument):
    if event == "c_call" and argument.__name__ == "fsync":
        _note("sync", "", frame)
    elif event == "call" and frame.f_code.co_name == "__init__" and frame.f_code.co_filename == "<string>":
        made = type(frame.f_locals.get("self")).__name__
        if made in _HANDED_ON:
            _note("new", made, frame.f_back)


def _starting(start):
    @wraps(start)
    def started(thread):
        thread._started_by = _stack(sys._getframe(1))
        return start(thread)

    return started


def _told(init):
    @wraps(init)
    def told(popen, *arguments, **named):
        if named.get("env") is not None:
            told_of = {name: os.environ[name] for name in ("STACKS_TO", "STACKS_PLACE", "STACKS_ROOMS")}
            path = os.pathsep.join(filter(None, (os.path.dirname(__file__), named["env"].get("PYTHONPATH"))))
            named["env"] = {**named["env"], **told_of, "PYTHONPATH": path}
        return init(popen, *arguments, **named)

    return told


threading.Thread.start = _starting(threading.Thread.start)
subprocess.Popen.__init__ = _told(subprocess.Popen.__init__)
sys.addaudithook(_audit)
sys.setprofile(_profile)
threading.setprofile(_profile)
