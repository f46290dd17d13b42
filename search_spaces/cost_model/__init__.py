"""Predicted memory and step time of a layout, and how measured trials correct them (docs/cost_model.md)."""
