"""A trial: its spec and outcome, the programs that run on compute nodes, and the ledger. Imports search_spaces only."""
