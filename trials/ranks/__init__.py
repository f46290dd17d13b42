"""Parts of every rank's program: environment, report, watchdog, failure reasons, node sampler."""
