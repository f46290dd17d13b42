"""torchtitan: a layout as a function of its configuration registry."""
