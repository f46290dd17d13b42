"""Analysis of measured trials: ranking, Pareto set, early stopping, best layout, verdict."""
