"""A store behind a treering server, reached over HTTP by ``https://host``."""
