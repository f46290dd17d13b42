"""Set-up that runs the pretrain_gpt.py of a checkout on a CPU: an interpreter whose site applies patches first."""
