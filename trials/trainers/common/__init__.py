"""Parts that several trainers share: options, scripts, log lines, DeepSpeed's configuration, imported files."""
