"""Samplers: choose the next layout. guided is the default; deephyper is imported in one file."""
