"""Slurm: requests, scripts, commands and their output, a fake cluster and a sandbox. Standard library only; knows
nothing of layouts or trials."""
