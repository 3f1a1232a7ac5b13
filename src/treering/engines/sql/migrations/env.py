"""What Alembic runs for every command; see `treering.engines.sql.migrations.upgrade`.

A program passes its connection. The command line (``alembic upgrade head`` in a checkout) takes the store
from ``-x url=...``, otherwise from ``TREERING_URL``, otherwise the folder ``.treering`` in the current
directory.
"""

import os
from contextlib import nullcontext
from logging.config import fileConfig

from alembic import context

from treering.engines.sql.migrations.upgrade import connect, locked, options
from treering.errors import Unsupported

if context.is_offline_mode():
    raise Unsupported(
        "--sql is not supported, because migrations read the store. The SQL of a new store is in engines/sql"
    )
if context.config.config_file_name is not None:
    fileConfig(context.config.config_file_name, disable_existing_loggers=False)

given = context.config.attributes.get("connection")
url = context.get_x_argument(as_dictionary=True).get("url") or os.environ.get("TREERING_URL") or ".treering"
with connect(url) if given is None else nullcontext(given) as connection, locked(connection):
    context.configure(connection=connection, **options(connection.dialect.name))
    context.run_migrations()
