"""JSON answers of the commands (`--json`) as types; docs/contract.md is generated from them."""
