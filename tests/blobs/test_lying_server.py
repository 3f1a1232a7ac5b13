"""A bucket whose server lies: what is read is right or an error, and nothing is deleted or loops for ever."""

from __future__ import annotations

import re
from contextlib import suppress
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import urlsplit

import pytest

import treering
from treering.blobs.location import open_blobs
from treering.core import storage
from treering.core.content import Content
from treering.errors import TreeringError
from treering.testing import batches

LARGE = [batches.noise(700_000, seed) for seed in range(4)]


class Proxy(ThreadingHTTPServer):
    """Passes requests on to a real server, and changes what it answers: see `Handler.answer`."""

    daemon_threads = True
    to = ""
    lie: str | None = None
    kept = b""
    pages = 0


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        onward = HTTPConnection(urlsplit(self.server.to).netloc, timeout=30)
        onward.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            onward.putheader(name, value)
        onward.endheaders(body)
        reply = onward.getresponse()
        data = reply.read()
        onward.close()
        if self.command == "GET" and reply.status < 300:
            data = self.listed(data) if "list-type" in self.path else self.changed(data)
        self.send_response(reply.status)
        for name, value in reply.getheaders():
            if name.lower() not in {"content-length", "transfer-encoding", "connection", "date", "server"}:
                self.send_header(name, value)
        length = reply.getheader("Content-Length", "0") if self.command == "HEAD" else str(len(data))
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def changed(self, data):
        match self.server.lie:
            case "truncated":
                return data[: len(data) // 2]
            case "nothing":
                return b""
            case "swapped":  # with what was asked for before
                self.server.kept, data = data, self.server.kept or data[::-1]
            case "flipped":
                return data[:-9] + bytes([data[-9] ^ 1]) + data[-8:] if len(data) > 9 else b"!" * len(data)
        return data

    def listed(self, data):
        """Say that there is more: the same page again, or names that nobody has written."""
        if self.server.lie not in {"repeated", "endless"}:
            return data
        self.server.pages += 1
        more = b"<IsTruncated>true</IsTruncated><NextContinuationToken>again</NextContinuationToken>"
        text = re.sub(
            rb"<IsTruncated>.*?</IsTruncated>|<NextContinuationToken>.*?</NextContinuationToken>", b"", data
        )
        if self.server.lie == "repeated":
            text = re.sub(rb"(<Contents>.*</Contents>)", lambda found: found[1] * 500, text, flags=re.DOTALL)
        else:
            (prefix,) = re.findall(rb"<Prefix>(.*?)</Prefix>", text)[:1] or [b""]
            new = b"".join(
                b"<Contents><Key>%b%09d%03d.pack</Key><LastModified>2020-01-01T00:00:00.000Z</LastModified>"
                b"<ETag>&quot;x&quot;</ETag><Size>9</Size></Contents>" % (prefix, self.server.pages, number)
                for number in range(500)
            )
            more += new
        return text.replace(b"</ListBucketResult>", more + b"</ListBucketResult>")

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = answer  # noqa: N815 - the names that the library calls

    def log_message(self, *_args):
        pass


@pytest.fixture
def proxy(s3):
    with Proxy(("127.0.0.1", 0), Handler) as server:
        server.to = s3.endpoint
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def store(s3, proxy, tmp_path):
    blobs = open_blobs(
        f"http://127.0.0.1:{proxy.server_port}/{s3.bucket}",
        access_key_id=s3.access_key,
        secret_access_key=s3.secret_key,
        deadline_seconds=3,
    )
    with treering.open(tmp_path / "store", blobs=blobs) as opened:
        yield opened


def stored(store) -> list[str]:
    names = store.engine.stage(store.space, LARGE)
    draft = store.draft()
    draft.require(*names)
    draft.set_ref("large", b"", scope="s", links=tuple(f"o:{name}" for name in names))
    store.commit(draft)
    return names


def read(store, names) -> list[Content | None]:
    """What each read returns; nothing for one that fails with an error."""
    found: list[Content | None] = []
    for name in names:
        try:
            found += store.engine.get(store.space, [f"o:{name}"])
        except TreeringError:
            found.append(None)
    return found


@pytest.mark.parametrize("lie", ["truncated", "nothing", "swapped", "flipped"])
def test_what_a_lying_server_sends_is_right_or_an_error(store, proxy, lie):
    names = stored(store)
    proxy.lie = lie
    found = read(store, names)
    assert None in found
    assert all(each is None or each == right for each, right in zip(found, LARGE, strict=True))
    with suppress(TreeringError):
        assert not store.verify().ok
    proxy.lie = None
    assert read(store, names) == LARGE
    assert store.verify().ok


@pytest.mark.parametrize("lie", ["repeated", "endless"])
def test_a_listing_without_end_ends_and_costs_no_content(store, proxy, lie, monkeypatch):
    monkeypatch.setattr(storage, "MAX_LISTED", 5000)
    names = stored(store)
    proxy.lie = lie
    with pytest.raises(TreeringError, match="lists"):
        store.gc()
    assert proxy.pages < 100
    proxy.lie = None
    assert read(store, names) == LARGE
    assert store.verify().ok
