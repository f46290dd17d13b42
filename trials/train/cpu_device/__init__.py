"""Patches that let trainers written for GPUs train on a CPU. One module a library; never used where a GPU is."""
