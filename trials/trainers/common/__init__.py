"""Parts that several trainers share: options, log lines, DeepSpeed's configuration."""
