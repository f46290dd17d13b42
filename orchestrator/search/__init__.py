"""Search loop: proposes, submits, monitors and finalizes trials, event by event, under a lease."""
