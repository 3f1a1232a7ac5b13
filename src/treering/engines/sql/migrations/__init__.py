"""Alembic's environment: upgrades of stores of older versions."""
