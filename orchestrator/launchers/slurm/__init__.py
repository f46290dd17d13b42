"""Slurm launcher: a job an attempt, submitted exactly once."""
