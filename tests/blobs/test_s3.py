"""How errors of an S3 server are translated, with the real client and a server that always fails."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from treering.blobs.location import open_blobs
from treering.errors import InvalidInput, ReadOnly, StoreFull, Unreachable, Unsupported


class FailingServer(ThreadingHTTPServer):
    """Responds to every request with the same error, or only to the first `failures` ones."""

    daemon_threads = True
    status, code, failures = 500, "InternalError", None
    requests = 0


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.requests += 1
        is_failing = self.server.failures is None or self.server.requests <= self.server.failures
        body = f"<Error><Code>{self.server.code}</Code></Error>".encode() if is_failing else b""
        self.send_response(self.server.status if is_failing else 200)
        self.send_header("ETag", '"an-etag"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = answer  # noqa: N815 - the names that the library calls

    def log_message(self, *_args):
        pass


@pytest.fixture
def server():
    with FailingServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


def opened(server, *, deadline_seconds):
    return open_blobs(
        f"http://127.0.0.1:{server.server_port}/bucket",
        access_key_id="key",
        secret_access_key="secret",
        deadline_seconds=deadline_seconds,
    )


@pytest.mark.parametrize(
    "status, code, error",
    [
        (500, "InternalError", Unreachable),
        (503, "SlowDown", Unreachable),
        (429, "TooManyRequests", Unreachable),
        (400, "RequestTimeout", Unreachable),
        (409, "OperationAborted", Unreachable),
        (507, "XMinioStorageFull", StoreFull),
        (501, "NotImplemented", Unsupported),
        (403, "AccessDenied", ReadOnly),
        (403, "InvalidAccessKeyId", InvalidInput),
        (401, "ExpiredToken", InvalidInput),
        (404, "NoSuchBucket", InvalidInput),
        (400, "AuthorizationHeaderMalformed", InvalidInput),
        (301, "PermanentRedirect", InvalidInput),
    ],
)
def test_errors_of_writes_are_translated(server, status, code, error):
    server.status, server.code = status, code
    with pytest.raises(error, match=f"{status} {code}|bucket not found|redirect") as caught:
        opened(server, deadline_seconds=0).put("one", b"1")
    assert type(caught.value) is error


@pytest.mark.parametrize(
    "status, code, error",
    [
        (403, "AccessDenied", InvalidInput),
        (500, "InternalError", Unreachable),
        (404, "NoSuchBucket", InvalidInput),
    ],
)
def test_errors_of_reads_are_translated(server, status, code, error):
    server.status, server.code = status, code
    blobs = opened(server, deadline_seconds=0)
    for call in (lambda: blobs.get("one"), lambda: blobs.read("one"), blobs.list):
        with pytest.raises(error) as caught:
            call()
        assert type(caught.value) is error


def test_a_server_that_recovers_in_time_is_no_error(server):
    server.status, server.code, server.failures = 503, "SlowDown", 3
    opened(server, deadline_seconds=30).put("one", b"1")
    assert server.requests == 4


def test_a_server_without_conditional_writes_is_detected(server):
    server.status, server.code = 501, "NotImplemented"
    blobs = opened(server, deadline_seconds=0)
    assert server.requests == 0
    with pytest.raises(Unsupported):
        blobs.put_if("ref", b"1", expect=None)
