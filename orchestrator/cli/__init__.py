"""Command line: verbs.py lists the verbs, each with its module; options.py, output.py and endings.py are what they
share."""
