"""Where a store is: what its URL says, in a form to connect by and in forms that may be shown."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from treering.errors import InvalidInput

_DEFAULTS: Final = {
    "application_name": "treering",
    "connect_timeout": "10",
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
}
"""Connection parameters that the URL may set otherwise. A server that went silent is noticed in a minute."""


class Place:
    """A database by its URL."""

    def __init__(self, url: str) -> None:
        try:
            parts: dict[str, Any] = conninfo_to_dict(url)
        except ProgrammingError as error:
            raise InvalidInput(
                f"the URL of the PostgreSQL store cannot be read ({' '.join(str(error).split())}); "
                "write postgresql://user:password@host:port/database, special characters as %XX"
            ) from None
        host = str(parts.get("host") or parts.get("hostaddr") or "localhost")
        port = str(parts.get("port") or 5432)
        name = str(parts.get("dbname") or parts.get("user") or "")
        user = f"{quote(str(parts['user']))}@" if parts.get("user") else ""
        self.conninfo = make_conninfo("", **{**_DEFAULTS, **parts})
        self.url = f"postgresql://{user}{quote(host, safe=',:')}:{port}/{quote(name)}"
        self.words = f"PostgreSQL at {host}:{port}, database {name!r}"
