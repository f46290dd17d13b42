"""GPT trainer (docs/trainer.md). The only package that imports torch, deepspeed, megatron and torchtitan.
program.py is a rank's process, trial_run.py its trial."""
