"""Measured tables: format, reader and writer, and the benchmark problem of each row."""
