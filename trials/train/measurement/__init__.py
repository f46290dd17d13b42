"""Training loop of a trial: timed steps, the profile after them, and the breakdown of a step."""
