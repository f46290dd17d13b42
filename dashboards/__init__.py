"""Views of a search: MLflow, HTML report, terminal. Reads the ledger's records, never writes them."""
