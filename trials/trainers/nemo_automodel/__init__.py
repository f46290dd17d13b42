"""NeMo Automodel: layout and adapters as keys of its recipes. It runs no trials."""
