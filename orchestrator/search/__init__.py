"""Search loop: proposes, launches, monitors and settles trials, event by event, under a lease."""
