"""Sections of the search file about measuring, data, the trainer and the ledger."""
