"""Slurm pilot launcher: attempts are steps of allocations that the search holds."""
