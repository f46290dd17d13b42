"""docs/contract.md, generated from the types, and JSON answers checked against them."""
