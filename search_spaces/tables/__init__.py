"""Measured tables: their format, reader and writer, and what problem a table belongs to."""
