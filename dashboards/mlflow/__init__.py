"""MLflow: what a search sends, its synchronisation, and MLflow's own server. One file imports mlflow."""
