"""Recipes: the folder that a search hands back, its launch scripts and exports (docs/recipe.md)."""
