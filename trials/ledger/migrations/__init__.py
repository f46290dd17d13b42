"""Migrations of the ledger's database, by alembic."""
