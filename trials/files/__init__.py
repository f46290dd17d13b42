"""Files of a trial: folder paths, log text, tracebacks, rendezvous ports, owners of paths, SQLite."""
