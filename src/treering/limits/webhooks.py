"""Webhooks: send alerts to a URL, signed, at least once.

Each webhook has a position in the journal that moves only after the receiver has answered with success. An
alert that could not be sent is sent later, by whichever process holds the webhook's lease; one that was sent
while the process died is sent again with the same ``webhook-id``. Requests follow Standard Webhooks:
``webhook-signature`` is ``v1,`` and the base64 HMAC-SHA-256 of ``<id>.<timestamp>.<body>``. **Invariant:** no
secret is stored. A webhook names the environment variable that holds the key, and without it nothing is sent.

Whoever may set a webhook must not make this machine talk to its own network. So the name of the host is
resolved here, every address must be public (or one that the operator allows in `ALLOW_VARIABLE`), the request
goes to one of these addresses and nowhere else, and neither redirects nor proxies are followed. A webhook
cannot name any environment variable either, only one that was made for it (`KEY_VARIABLES`): the signature
would confirm guesses of its value.
"""

from __future__ import annotations

import base64
import hmac
import ipaddress
import logging
import os
import re
import socket
import ssl
import threading
from hashlib import sha256
from http.client import HTTPConnection, HTTPException
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import msgspec

from treering.core.batch import Draft
from treering.core.clock import DAY_US, SECOND_US, to_iso
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

ALERT_REFS: Final = "alerts/"
WEBHOOKS: Final = f"{ALERT_REFS}webhook/"
SENT: Final = f"{ALERT_REFS}sent/"
SCOPE: Final = str(Scope("", "ledger", "alerting"))
KEY_VARIABLES: Final = "TREERING_WEBHOOK_SECRET"
"""The names of environment variables that may hold a signing key begin with this."""
ALLOW_VARIABLE: Final = "TREERING_WEBHOOK_ALLOW"
"""Networks that webhooks may be in although they are not public: ``10.1.0.0/16 127.0.0.1``."""
TIMEOUT_SECONDS: Final = 10.0
TOTAL_SECONDS: Final = 30.0
"""How long one request may take in all, however slowly the receiver answers."""
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
    """The environment variable that holds the signing key (``TREERING_WEBHOOK_SECRET...``); ``None`` for
    unsigned requests.
    """


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
    if webhook.secret_env is not None and not webhook.secret_env.startswith(KEY_VARIABLES):
        raise InvalidInput(
            f"webhook {webhook.name!r} cannot be signed with {webhook.secret_env[:80]!r}; put the key into a "
            f"variable of its own whose name begins with {KEY_VARIABLES}, such as {KEY_VARIABLES}_OPS"
        )
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
    body = encode_json({**msgspec.structs.asdict(alert), "ts": to_iso(alert.ts_us), "type": "alert"})
    timestamp = clock.now_us() // SECOND_US
    headers = {
        "content-type": "application/json",
        "user-agent": "treering",
        "webhook-id": alert.id,
        "webhook-timestamp": str(timestamp),
    }
    try:
        validate_webhook(webhook)  # it may have been stored by another version
    except InvalidInput as error:
        return str(error)
    if webhook.secret_env is not None:
        secret = os.environ.get(webhook.secret_env)
        if not secret:
            return f"the environment variable {webhook.secret_env} is not set, so the alert cannot be signed"
        headers["webhook-signature"] = signature(secret, alert.id, timestamp, body)
    try:
        status = _post(webhook.url, body, headers)
    except (OSError, ValueError, HTTPException) as error:  # unreachable, not allowed, or not HTTP
        return f"{type(error).__name__}: {error}"
    return None if status in _SUCCESS else f"the receiver answered {status}"


def _post(url: str, body: bytes, headers: dict[str, str]) -> int:
    """Send a request to an allowed address and return the status of the response."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    is_tls = parts.scheme == "https"
    port = parts.port or (443 if is_tls else 80)
    connected = _connect(host, port)
    timer = threading.Timer(TOTAL_SECONDS, lambda: _hang_up(connected))
    timer.daemon = True
    timer.start()
    try:
        if is_tls:
            connected = ssl.create_default_context().wrap_socket(connected, server_hostname=host)
        connection = HTTPConnection(host, port)
        connection.sock = connected
        path = parts.path or "/"
        target = f"{path}?{parts.query}" if parts.query else path
        connection.request("POST", target, body, {**headers, "host": parts.netloc, "connection": "close"})
        return connection.getresponse().status
    finally:
        timer.cancel()
        connected.close()


def _hang_up(connected: socket.socket) -> None:
    try:
        connected.shutdown(socket.SHUT_RDWR)
    except OSError:  # it has ended
        return


def _connect(host: str, port: int) -> socket.socket:
    """Connect to the first address of a host that answers. All of them must be allowed."""
    # Resolved once: a name that means something else a moment later changes nothing.
    addresses = list(
        dict.fromkeys(str(found[4][0]) for found in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    )
    allowed = _allowed_networks()
    for address in addresses:
        if not _is_allowed(address, allowed):
            raise PermissionError(
                f"{host} is {address}, which is not a public address; if webhooks may be sent there, set "
                f"{ALLOW_VARIABLE}={address.partition('%')[0]} where they are sent from"
            )
    failure: OSError | None = None
    for address in addresses:
        try:
            return socket.create_connection((address, port), timeout=TIMEOUT_SECONDS)
        except OSError as error:
            failure = error
    raise failure or OSError(f"{host} has no address")


_Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_Ip = ipaddress.IPv4Address | ipaddress.IPv6Address


def _allowed_networks() -> list[_Network]:
    text = os.environ.get(ALLOW_VARIABLE, "")
    try:
        return [ipaddress.ip_network(each, strict=False) for each in text.replace(",", " ").split()]
    except ValueError as error:
        raise ValueError(f"{ALLOW_VARIABLE} is invalid: {error}; use networks such as 10.1.0.0/16") from None


def _is_allowed(address: str, allowed: list[_Network]) -> bool:
    """Whether a request may go to an address: it is public, or the operator allows it."""
    whole = ipaddress.ip_address(address)
    mapped = None if isinstance(whole, ipaddress.IPv4Address) else whole.ipv4_mapped
    every = [mapped] if mapped is not None else [whole, *_embedded(whole)]
    return all(any(each in network for network in allowed) or _is_public(each) for each in every)


def _is_public(address: _Ip) -> bool:
    if isinstance(address, ipaddress.IPv6Address) and address.is_site_local:
        return False
    is_usual = address.is_global and not address.is_multicast and not address.is_reserved
    return is_usual and str(address) != _AZURE


_AZURE: Final = "168.63.129.16"
"""Looks public; on a machine of Azure it is the platform itself, which hands out its configuration."""
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")


def _embedded(address: _Ip) -> list[_Ip]:
    """Return the IPv4 addresses that an IPv6 address stands for: packets to it may be sent on to them."""
    if isinstance(address, ipaddress.IPv4Address):
        return []
    found: list[_Ip | None] = [address.sixtofour, *(address.teredo or ())]
    if address in _NAT64:
        found.append(ipaddress.IPv4Address(address.packed[-4:]))
    return [each for each in found if each is not None]


def _position(engine: Engine, space: str, webhook: Webhook) -> int:
    ref = engine.refs(space, [SENT + webhook.name]).get(SENT + webhook.name)
    return 0 if ref is None else int(decode_json(ref.value)["seq"])


def _move(engine: Engine, space: str, webhook: Webhook, seq: int) -> None:
    draft = Draft(space)
    set_position(draft, webhook, seq)
    engine.commit(draft.batch())
