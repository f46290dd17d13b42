"""Another process with the ledger: `write` holds its write lock, `read` one state of it, until a line comes in."""

from __future__ import annotations

import sqlite3
import sys

if __name__ == "__main__":
    connection = sqlite3.connect(sys.argv[1], isolation_level=None)
    connection.execute("BEGIN IMMEDIATE" if sys.argv[2] == "write" else "BEGIN")
    connection.execute("SELECT count(*) FROM search").fetchone()
    print("held", flush=True)
    sys.stdin.readline()
    connection.execute("ROLLBACK")
