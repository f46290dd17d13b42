"""accelerate with FSDP on a CPU, and a script of a user."""
