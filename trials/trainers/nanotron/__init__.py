"""nanotron: a layout as its configuration."""
