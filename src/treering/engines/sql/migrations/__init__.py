"""Alembic's environment: how a store of an older version comes to this one."""
