"""Checks before a search starts: work directory, Slurm site, trainer."""
