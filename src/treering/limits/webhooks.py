"""Webhooks: send alerts to a URL, signed, at least once.

Each webhook has a position in the journal that moves only after the receiver has answered with success. An
alert that could not be sent is sent later, by whichever process holds the webhook's lease; one that was sent
while the process died is sent again with the same ``webhook-id``. Requests follow Standard Webhooks:
``webhook-signature`` is ``v1,`` and the base64 HMAC-SHA-256 of ``<id>.<timestamp>.<body>``. **Invariant:** no
secret is stored. A webhook names the environment variable that holds the key, and without it nothing is sent.
"""

from __future__ import annotations

import base64
import hmac
import logging
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

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from threading import Event

    from treering.core.clock import Clock
    from treering.core.engine import Engine
    from treering.core.records import Ref
    from treering.limits.alerts import Alert

WEBHOOKS: Final = "alerts/webhook/"
SENT: Final = "alerts/sent/"
SCOPE: Final = str(Scope("", "ledger", "alerting"))
TIMEOUT_SECONDS: Final = 10.0
LEASE_SECONDS: Final = 60.0
GIVE_UP_US: Final = 3 * DAY_US
"""An alert that was not accepted for so long is skipped, with an entry in the log."""

_UNSENDABLE: Final = re.compile(r"[\s\x00-\x1f\x7f]")
_SUCCESS: Final = range(200, 300)

log: Final = logging.getLogger("treering.alerts")


class Webhook(msgspec.Struct, frozen=True, kw_only=True):
    """A URL that alerts are sent to."""

    name: str
    url: str
    secret_env: str | None = None
    """The environment variable that holds the signing key; ``None`` for unsigned requests."""


class WebhookDelivery(msgspec.Struct, frozen=True, kw_only=True):
    """The result of sending to a webhook. ``error`` says why it stopped early; the next call continues."""

    webhook: str
    sent: int = 0
    error: str | None = None
    is_busy: bool = False
    """Whether another process is sending."""


def validate_webhook(webhook: Webhook) -> Webhook:
    """Return the webhook; raise `InvalidInput` for a URL that cannot be used."""
    problem = InvalidInput(f"{webhook.url!r} is not a valid webhook URL; use https://host/path")
    try:
        parts = urlsplit(webhook.url)
        is_whole = bool(parts.hostname) and parts.port != 0
    except ValueError:  # a bad address or port
        raise problem from None
    if not is_whole or parts.scheme not in ("http", "https") or _UNSENDABLE.search(webhook.url):
        raise problem
    if parts.username or parts.password:
        raise InvalidInput("a webhook URL must not contain a password; requests are signed instead")
    return webhook


def webhook_from_ref(ref: Ref) -> Webhook:
    """Return the webhook that a ref holds."""
    try:
        return msgspec.convert(decode_json(ref.value), Webhook)
    except (msgspec.ValidationError, ValueError) as error:
        raise Corrupt(f"webhook {ref.name!r} is corrupt ({error}); set it again") from None


def signature(secret: str, id: str, timestamp: int, body: bytes) -> str:
    """Return the ``webhook-signature`` header of a request."""
    signed = f"{id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(secret.encode(), signed, sha256).digest()).decode()


def deliver(
    engine: Engine,
    space: str,
    webhook: Webhook,
    *,
    alerts_after: Callable[[int], Iterator[tuple[int, Alert | None]]],
    clock: Clock,
    stop: Event | None = None,
) -> WebhookDelivery:
    """Send new alerts in order, until all are sent, one fails, or ``stop`` is set.

    ``alerts_after`` reads the next alerts after a sequence number, each with its own.
    """
    lease = engine.claim(space, WEBHOOKS + webhook.name, holder=new_id(), seconds=LEASE_SECONDS)
    if lease is None:
        return WebhookDelivery(webhook=webhook.name, is_busy=True)
    sent = 0
    try:
        while True:
            is_empty = True
            for seq, alert in alerts_after(_position(engine, space, webhook)):
                is_empty = False
                if stop is not None and stop.is_set():
                    return WebhookDelivery(webhook=webhook.name, sent=sent)
                renewed = engine.heartbeat(lease, seconds=LEASE_SECONDS)
                if renewed is None:
                    return WebhookDelivery(webhook=webhook.name, sent=sent, is_busy=True)
                lease = renewed
                error = None if alert is None else _send(webhook, alert, clock)
                if error is not None and alert is not None:
                    if clock.now_us() - alert.ts_us < GIVE_UP_US:
                        return WebhookDelivery(webhook=webhook.name, sent=sent, error=error)
                    log.error(
                        "webhook %r did not accept alert %s for days: %s", webhook.name, alert.id, error
                    )
                elif alert is not None:
                    sent += 1
                _move(engine, space, webhook, seq)
            if is_empty:
                return WebhookDelivery(webhook=webhook.name, sent=sent)
    finally:
        engine.release(lease)


def set_position(draft: Draft, webhook: Webhook, seq: int) -> None:
    """Set the sequence number after which a webhook receives alerts."""
    draft.set_ref(SENT + webhook.name, encode_json({"seq": seq}), scope=SCOPE)


def _send(webhook: Webhook, alert: Alert, clock: Clock) -> str | None:
    """Send one alert; return why it was not accepted, or ``None``."""
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
            return f"the environment variable {webhook.secret_env} is not set, so the alert cannot be signed"
        headers["webhook-signature"] = signature(secret, alert.id, timestamp, body)
    request = urllib.request.Request(webhook.url, data=body, headers=headers, method="POST")  # noqa: S310 - checked
    try:
        with _opener.open(request, timeout=TIMEOUT_SECONDS) as response:
            status: int = response.status
    except urllib.error.HTTPError as error:
        status = error.code
        error.close()
    except (OSError, ValueError, HTTPException) as error:  # unreachable, or not HTTP
        return f"{type(error).__name__}: {error}"
    return None if status in _SUCCESS else f"the receiver answered {status}"


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses redirects, so that a signed request goes nowhere but to its URL."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Do not redirect."""


_opener: Final = urllib.request.build_opener(_NoRedirects)


def _position(engine: Engine, space: str, webhook: Webhook) -> int:
    ref = engine.refs(space, [SENT + webhook.name]).get(SENT + webhook.name)
    return 0 if ref is None else int(decode_json(ref.value)["seq"])


def _move(engine: Engine, space: str, webhook: Webhook, seq: int) -> None:
    draft = Draft(space)
    set_position(draft, webhook, seq)
    engine.commit(draft.batch())
