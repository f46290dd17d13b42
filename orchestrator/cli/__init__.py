"""Command line: a file a verb; main.py, and what several verbs share in options.py and output.py."""
