"""Reader of torchtitan's configurations: commands, saved ones, and Python modules, which are not run."""
