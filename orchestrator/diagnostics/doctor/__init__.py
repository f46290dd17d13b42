"""Doctor: findings on what would keep a search from running or from being fast (docs/doctor.md)."""
