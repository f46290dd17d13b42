"""Exit codes of the command line; see docs/files.md."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    SUCCESS = 0
    """Done; a submission was accepted; a replay was reproduced."""
    INTERNAL_ERROR = 1
    """A bug of Parlay."""
    BAD_INPUT = 2
    """Bad input or usage; nothing was launched."""
    NO_MEASUREMENT = 3
    """Ended without a valid measurement; a selftest's case failed; calibrate's job failed."""
    UNKNOWN_ID = 4
    """No such search, or an ambiguous id."""
    HELD_BY_ANOTHER = 5
    """Another driver holds the search."""
    REFUSED = 6
    """Slurm, Ray or a database refused or is unreachable."""
    CANCEL_INCOMPLETE = 7
    """Some jobs could not be cancelled; their ids are listed."""
    DOCTOR_FOUND_ERROR = 8
    """The doctor found an error."""
    REPLAY_SLOWER = 10
    """The replay was slower; the speed that `parlay expect` was given is slow."""
    REPLAY_FASTER = 11
    """The replay was faster."""
    REPLAY_IMPOSSIBLE = 12
    """The recipe cannot be replayed here."""
    REPLAY_INCONCLUSIVE = 13
    """The replay is inconclusive; too little is known for `parlay expect`."""
    STOPPED_EARLY = 75
    """Stopped before the end; `parlay resume` continues."""
    INTERRUPTED = 130
    """Ctrl-C; `parlay resume` continues."""
