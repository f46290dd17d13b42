"""Results of other programs in, a search in their formats out (docs/exchange.md)."""
