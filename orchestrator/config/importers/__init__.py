"""Importers: launch scripts and configurations of trainers, read for `parlay init --from`; nothing is executed."""
