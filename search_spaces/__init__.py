"""Search spaces: models, machines, layouts, rules, memory and time models. Pure: the standard library and numpy,
pydantic and yaml at its edge. No torch, no processes, no network."""
