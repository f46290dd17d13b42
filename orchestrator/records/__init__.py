"""Recorded searches: lookup by name, integrity, summaries, observations, the ledger rebuilt from
folders."""
