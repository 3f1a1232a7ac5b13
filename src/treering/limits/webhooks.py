"""Webhooks: alerts sent to a URL, signed, at least once.

Alerts are in the journal, and each webhook has a position in it that moves only after the receiver has
answered with success. So an alert that could not be sent is sent later, by whichever process holds the
webhook's lease then; one that was sent while the process died is sent again, under the same ``webhook-id``.
The request follows Standard Webhooks: ``webhook-signature`` is ``v1,`` and the base64 HMAC-SHA-256 of
``<id>.<timestamp>.<body>``. **Invariant:** no secret is stored; a webhook names the environment variable
that holds it, and without that variable nothing is sent.
"""

from __future__ import annotations

import base64
import hmac
import os
import re
import urllib.error
import urllib.request
from hashlib import sha256
from http.client import HTTPException
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import msgspec

from treering.core.batch import Draft
from treering.core.clock import DAY_US, SECOND_US
from treering.core.encoding import decode_json, encode_json
from treering.core.ids import Scope, new_id
from treering.errors import Corrupt, InvalidInput
from treering.limits.alert import alert_at, listed_after, log

if TYPE_CHECKING:
    from threading import Event

    from treering.core.clock import Clock
    from treering.core.engine import Engine
    from treering.core.records import Ref
    from treering.limits.alert import Alert

WEBHOOKS: Final = "alerts/webhook/"
SENT: Final = "alerts/sent/"
SCOPE: Final = str(Scope("", "ledger", "alerting"))
TIMEOUT_SECONDS: Final = 10.0
LEASE_SECONDS: Final = 60.0
GIVE_UP_US: Final = 3 * DAY_US
"""An alert that nobody took for so long is left out, and the log says so."""

_AT_ONCE: Final = 50
_UNSENDABLE: Final = re.compile(r"[\s\x00-\x1f\x7f]")
_SUCCESS: Final = range(200, 300)


class Webhook(msgspec.Struct, frozen=True, kw_only=True):
    """Where alerts are sent."""

    name: str
    url: str
    secret_env: str | None = None
    """The environment variable that holds the key of the signature; ``None``: not signed."""


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """What one attempt at a webhook came to. ``error`` says why it ended early; it goes on from there."""

    webhook: str
    sent: int = 0
    error: str | None = None
    is_busy: bool = False
    """Another process is sending just now."""


def check_webhook(webhook: Webhook) -> Webhook:
    """A webhook that can be stored."""
    problem = InvalidInput(f"{webhook.url!r} is no URL to send alerts to; use https://host/path")
    try:
        parts = urlsplit(webhook.url)
        is_whole = bool(parts.hostname) and parts.port != 0
    except ValueError:  # an address or a port that is none
        raise problem from None
    if not is_whole or parts.scheme not in ("http", "https") or _UNSENDABLE.search(webhook.url):
        raise problem
    if parts.username or parts.password:
        raise InvalidInput("a webhook's URL holds a password; leave it out, requests are signed instead")
    return webhook


def webhook_of(ref: Ref) -> Webhook:
    """A webhook out of its ref."""
    try:
        return msgspec.convert(decode_json(ref.value), Webhook)
    except (msgspec.ValidationError, ValueError) as error:
        raise Corrupt(f"webhook {ref.name!r} cannot be read ({error}); set it again") from None


def signature(secret: str, id: str, timestamp: int, body: bytes) -> str:
    """The header ``webhook-signature`` for a request."""
    signed = f"{id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(secret.encode(), signed, sha256).digest()).decode()


def deliver(
    engine: Engine, space: str, webhook: Webhook, *, clock: Clock, stop: Event | None = None
) -> Delivery:
    """Send what was not sent yet, in order, until all is sent, something goes wrong, or ``stop`` is set."""
    lease = engine.claim(space, WEBHOOKS + webhook.name, holder=new_id(), seconds=LEASE_SECONDS)
    if lease is None:
        return Delivery(webhook=webhook.name, is_busy=True)
    sent = 0
    try:
        while True:
            seq = _position(engine, space, webhook)
            lines = listed_after(engine, space, seq, limit=_AT_ONCE)
            if not lines:
                return Delivery(webhook=webhook.name, sent=sent)
            for line in lines:
                if stop is not None and stop.is_set():
                    return Delivery(webhook=webhook.name, sent=sent)
                renewed = engine.heartbeat(lease, seconds=LEASE_SECONDS)
                if renewed is None:
                    return Delivery(webhook=webhook.name, sent=sent, is_busy=True)
                lease = renewed
                alert = alert_at(engine, space, line)
                error = None if alert is None else _send(webhook, alert, clock)
                if error is not None and alert is not None:
                    if clock.now_us() - alert.ts_us < GIVE_UP_US:
                        return Delivery(webhook=webhook.name, sent=sent, error=error)
                    log.error(
                        "alert %s was not taken by webhook %r for days: %s", alert.id, webhook.name, error
                    )
                elif alert is not None:
                    sent += 1
                _move(engine, space, webhook, line.seq)
    finally:
        engine.release(lease)


def begin_at(draft: Draft, webhook: Webhook, seq: int) -> None:
    """A new webhook gets what comes from now on."""
    draft.set_ref(SENT + webhook.name, encode_json({"seq": seq}), scope=SCOPE)


def _send(webhook: Webhook, alert: Alert, clock: Clock) -> str | None:
    """Why it was not taken; ``None`` when it was."""
    body = encode_json({**msgspec.structs.asdict(alert), "ts": alert.ts, "type": "alert"})
    timestamp = clock.now_us() // SECOND_US
    headers = {
        "content-type": "application/json",
        "user-agent": "treering",
        "webhook-id": alert.id,
        "webhook-timestamp": str(timestamp),
    }
    if webhook.secret_env is not None:
        secret = os.environ.get(webhook.secret_env)
        if not secret:
            return f"the environment has no {webhook.secret_env}, so the alert cannot be signed"
        headers["webhook-signature"] = signature(secret, alert.id, timestamp, body)
    request = urllib.request.Request(webhook.url, data=body, headers=headers, method="POST")  # noqa: S310 - checked
    try:
        with _opener.open(request, timeout=TIMEOUT_SECONDS) as answer:
            status: int = answer.status
    except urllib.error.HTTPError as error:
        status = error.code
        error.close()
    except (OSError, ValueError, HTTPException) as error:  # away, or no HTTP
        return f"{type(error).__name__}: {error}"
    return None if status in _SUCCESS else f"the receiver answered {status}"


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A signed request goes where it was addressed to, and nowhere else."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Follow nothing."""


_opener: Final = urllib.request.build_opener(_NoRedirects)


def _position(engine: Engine, space: str, webhook: Webhook) -> int:
    found = engine.refs(space, [SENT + webhook.name]).get(SENT + webhook.name)
    return 0 if found is None else int(decode_json(found.value)["seq"])


def _move(engine: Engine, space: str, webhook: Webhook, seq: int) -> None:
    draft = Draft(space)
    begin_at(draft, webhook, seq)
    engine.commit(draft.batch())
