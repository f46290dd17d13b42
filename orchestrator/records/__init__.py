"""Recorded searches: lookup by name, summaries, observations, the ledger rebuilt from folders."""
