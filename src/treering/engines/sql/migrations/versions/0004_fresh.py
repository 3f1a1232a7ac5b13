"""A table for commits that have not settled, on SQLite.

Revision 0004.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    if op.get_context().dialect.name == "sqlite":
        op.create_table(
            "fresh",
            sa.Column("slot", sa.Integer(), autoincrement=False, nullable=False),
            sa.Column("no", sa.Integer(), nullable=False),
            sa.Column("space", sa.Integer(), nullable=False),
            sa.Column("rows", sa.LargeBinary(), nullable=False),
            sa.PrimaryKeyConstraint("slot"),
        )


def downgrade() -> None:
    raise NotImplementedError("a store only goes forward; to go back, restore a backup")
