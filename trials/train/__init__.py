"""GPT trainer (docs/trainer.md). The only package that imports torch and deepspeed. program.py is a rank's process,
trial_run.py its trial."""
