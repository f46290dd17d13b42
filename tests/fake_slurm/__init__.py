"""Fake Slurm: the client's interface over a simulated cluster that fails on request."""
