"""Observer of a third-party trainer's second step: the sitecustomize of its ranks (docs/trainers.md)."""
