"""Requests that our client would not send."""

from __future__ import annotations

import http.client
from contextlib import closing, contextmanager

from treering.engines.remote import protocol


@contextmanager
def sent(url, method, body, *, token=None, headers=None):
    made = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
    given = {protocol.HEADER: str(protocol.VERSION)} if headers is None else dict(headers)
    if token is not None:
        given["authorization"] = f"Bearer {token}"
    with closing(made):
        made.request("POST", f"/gateway/{method}", body, given)
        yield made.getresponse()


def post(url, method, body, *, token=None, headers=None):
    with sent(url, method, body, token=token, headers=headers) as response:
        return response.status, response.read()
