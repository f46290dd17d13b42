"""Revisions of the ledger's tables."""
