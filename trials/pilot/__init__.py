"""Agent of a Slurm allocation: starts the steps that the driver asks for and reports how they ended."""
