"""Ledger: events, the journal in a search's folder, and the database that people query."""
