"""YAML files: positions, sections, validation and ready-made presets."""
