"""Supervisor of a third-party trainer on each rank; writes the same outcome as our own (docs/trainers.md)."""
