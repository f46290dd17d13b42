"""JSON answers checked against their models."""
