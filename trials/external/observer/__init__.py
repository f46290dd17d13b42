"""Observer of a third-party trainer's first step: the sitecustomize of its ranks (docs/trainers.md)."""
