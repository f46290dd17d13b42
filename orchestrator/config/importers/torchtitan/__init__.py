"""Reader of torchtitan's commands, saved configurations and modules, which it does not run."""
