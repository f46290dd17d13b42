"""GPT-NeoX: a layout as its configuration."""
