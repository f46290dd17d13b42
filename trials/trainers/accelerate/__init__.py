"""A user's own script, started as `accelerate launch` starts it with a configuration of the layout."""
