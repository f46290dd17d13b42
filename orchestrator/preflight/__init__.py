"""Checks before a search starts: work directory, Slurm site, trainer, integrity of what goes on."""
