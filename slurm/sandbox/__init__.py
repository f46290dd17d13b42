"""Sandbox: a real Slurm on this machine, for trying and for tests."""
