"""Files of a trial: folder paths, log text, tracebacks, owners of paths, SQLite."""
