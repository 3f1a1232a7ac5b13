"""Every form of a storage config, and whose keys open the bucket, in which order."""

from __future__ import annotations

import json
import ssl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.sandbox import certificates
from tests.servers.bucket import S3Bucket
from treering.blobs.location import AccessKeys, find_credentials, find_region
from treering.errors import InvalidInput, MissingExtra
from treering.sandbox import Sandbox, StorageConfig, list_checkpoints, open_storage
from treering.sandbox.storage import gateway_of, open_bucket

GIVEN = AccessKeys(access_key_id="given", secret_access_key="given-secret")
ENVIRONMENT = {"AWS_ACCESS_KEY_ID": "env", "AWS_SECRET_ACCESS_KEY": "env-secret"}


@pytest.mark.parametrize(
    "config, url",
    [
        (StorageConfig("s3://my-bucket/agent-snapshots/"), "s3://my-bucket/agent-snapshots"),
        (StorageConfig(url="s3://my-bucket"), "s3://my-bucket"),
        (
            StorageConfig(url="s3://my-bucket/p/", endpoint="https://acct.r2.cloudflarestorage.com"),
            "s3://my-bucket/p",
        ),
        (StorageConfig(url="https://minio.example/my-bucket/p"), "s3://my-bucket/p"),
        (StorageConfig(bucket="my-bucket", prefix="a/b/"), "s3://my-bucket/a/b"),
        (StorageConfig(bucket="my-bucket", endpoint="https://minio.example"), "s3://my-bucket"),
        (StorageConfig(url="s3://my-bucket/p", bucket="other"), "s3://other/p"),
        (StorageConfig(url="s3://my-bucket/p", prefix="q"), "s3://my-bucket/q"),
        (StorageConfig(url="s3://my-bucket/p", prefix=""), "s3://my-bucket"),
        (StorageConfig(url="https://minio.example/b1/p", bucket="other", prefix="q"), "s3://other/q"),
    ],
)
def test_a_bucket_in_every_form(config: StorageConfig, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    assert not config.is_gateway
    assert open_bucket(config).url == url


def test_a_folder_needs_nothing_else(tmp_path: Path) -> None:
    assert open_bucket(StorageConfig(tmp_path / "ckpt")).url == (tmp_path / "ckpt").as_uri()
    assert open_bucket(StorageConfig(url=(tmp_path / "c").as_uri())).url == (tmp_path / "c").as_uri()
    for wrong in ({"bucket": "b1"}, {"prefix": "p"}, {"region": "eu-west-1"}, {"credentials": GIVEN}):
        with pytest.raises(InvalidInput, match="is a folder"):
            open_bucket(StorageConfig(tmp_path, **wrong))


def test_the_url_form_and_the_explicit_form_are_equal(s3: S3Bucket) -> None:
    keys = {"accessKeyId": s3.access_key, "secretAccessKey": s3.secret_key}  # as the seed spells them
    open_bucket(StorageConfig(f"{s3.endpoint}/{s3.bucket}/p", credentials=keys)).put("one", b"1")
    again = StorageConfig(bucket=s3.bucket, prefix="p", endpoint=s3.endpoint, credentials=keys)
    assert open_bucket(again).get("one") == b"1"


@pytest.mark.parametrize("url", ["gs://bucket/p", "s3://", "https://server", "s3://key:secret@bucket"])
def test_what_is_no_place_is_refused_with_the_accepted_forms(url: str) -> None:
    with pytest.raises(InvalidInput, match="s3://bucket/prefix") as caught:
        open_bucket(StorageConfig(url))
    assert "secret" not in str(caught.value)


def test_a_dict_of_its_fields_is_a_config(tmp_path: Path) -> None:
    with Sandbox("program", storage={"url": tmp_path / "bucket"}) as sandbox:
        made = sandbox.execute(["true"]) and sandbox.checkpoint(comment="first")
    assert [each.id for each in list_checkpoints({"url": str(tmp_path / "bucket")})][:1] == [made.id]


@pytest.mark.parametrize("wrong", [{"uri": "s3://b"}, {"url": "s3://b", 3: 4}, 3, ["s3://b"], b"s3://b"])
def test_what_is_no_config_is_refused_in_words(wrong: object) -> None:
    for use in (list_checkpoints, lambda storage: Sandbox("program", storage=storage)):
        with pytest.raises(
            InvalidInput, match=r"^storage .*; pass StorageConfig\(\.\.\.\), a URL, .* or a dict of url"
        ):
            use(wrong)


def test_half_of_the_credentials_is_refused() -> None:
    with pytest.raises(InvalidInput, match="secret_access_key"):
        open_bucket(StorageConfig("s3://bucket", credentials={"accessKeyId": "a"}))


def test_nothing_shows_a_secret() -> None:
    config = StorageConfig("s3://bucket", credentials=GIVEN, api_key="tr-secret")
    assert "secret" not in repr(config).replace("StorageConfig", "")
    assert "given-secret" not in repr(GIVEN)


def test_the_missing_extra_names_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.delitem(sys.modules, "treering.blobs.s3", raising=False)
    with pytest.raises(MissingExtra, match=r"pip install 'treering\[s3\]'"):
        open_bucket(StorageConfig("s3://bucket"))


# The gateway
def test_without_a_url_it_is_a_treering_server() -> None:
    environment = {"TREERING_URL": "https://rings.example", "TREERING_API_KEY": "tr-1"}
    gateway = gateway_of(StorageConfig(), environment=environment)
    assert (gateway.url, gateway.api_key) == ("https://rings.example", "tr-1")
    assert gateway_of(StorageConfig(api_key="tr-2"), environment=environment).api_key == "tr-2"
    assert "tr-1" not in repr(gateway)


@pytest.mark.parametrize(
    "environment, named",
    [
        ({}, "TREERING_URL"),
        ({"TREERING_API_KEY": "tr-1"}, "TREERING_URL"),
        ({"TREERING_URL": "https://rings.example"}, "TREERING_API_KEY"),
        ({"TREERING_URL": "./.treering", "TREERING_API_KEY": "tr-1"}, "TREERING_URL"),
    ],
)
def test_what_is_missing_for_the_server_is_named(environment: dict[str, str], named: str) -> None:
    with pytest.raises(InvalidInput, match=named):
        gateway_of(StorageConfig(), environment=environment)


@pytest.mark.parametrize("url", ["http://127.0.0.1:8787", "http://localhost:8787", "http://[::1]:8787"])
def test_a_server_on_this_machine_may_need_no_key(url: str) -> None:
    assert gateway_of(StorageConfig(), environment={"TREERING_URL": url}).api_key is None


def test_a_server_as_the_url_is_told_from_a_bucket() -> None:
    with pytest.raises(InvalidInput, match=r"names no bucket.*set TREERING_URL"):
        open_storage({"url": "http://127.0.0.1:8787"})


@pytest.mark.parametrize(
    "storage, named",
    [
        ({"url": 5}, "url= of the storage is of type int; pass a string"),
        ({"url": "./folder", "prefix": ["a"]}, "prefix= of the storage is of type list"),
        ({"bucket": "bucket", "credentials": "key"}, "credentials= of the storage is of type str"),
        (StorageConfig(bucket=5), "bucket= of the storage is of type int"),  # pyright: ignore[reportArgumentType]
    ],
)
def test_a_field_of_another_type_is_named(storage: Any, named: str) -> None:
    with pytest.raises(InvalidInput, match=named):
        open_storage(storage)


@pytest.mark.parametrize("limit", [0, 501, "5", None, 1.5])
def test_a_limit_that_is_none_is_refused(tmp_path: Path, limit: Any) -> None:
    with pytest.raises(InvalidInput, match="use 1 to 500"):
        list_checkpoints(tmp_path, limit=limit)


def test_parts_of_a_bucket_without_a_bucket_are_refused() -> None:
    with pytest.raises(InvalidInput, match="neither url= nor bucket="):
        gateway_of(StorageConfig(prefix="p"), environment={})


# Whose keys
def aws_folder(home: Path, *, credentials: str = "", config: str = "") -> None:
    (home / ".aws").mkdir(parents=True)
    (home / ".aws" / "credentials").write_text(credentials)
    (home / ".aws" / "config").write_text(config)


def test_keys_that_are_passed_go_first(tmp_path: Path) -> None:
    aws_folder(tmp_path, credentials="[default]\naws_access_key_id = profile\n")
    found = find_credentials(GIVEN, environment=ENVIRONMENT, home=tmp_path)
    assert (found.source, found.keys) == ("given", GIVEN)


def test_the_environment_goes_before_a_profile(tmp_path: Path) -> None:
    aws_folder(tmp_path, credentials="[work]\naws_access_key_id = profile\n")
    environment = {**ENVIRONMENT, "AWS_SESSION_TOKEN": "token", "AWS_PROFILE": "work"}
    found = find_credentials(environment=environment, home=tmp_path)
    assert found.source == "environment"
    assert found.keys == AccessKeys(
        access_key_id="env", secret_access_key="env-secret", session_token="token"
    )


@pytest.mark.parametrize("name", ENVIRONMENT)
def test_half_a_pair_in_the_environment_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="set both keys"):
        find_credentials(environment={name: "x"}, home=tmp_path)


@pytest.mark.parametrize("profile", [None, "work"])
def test_a_profile_is_read_by_boto3(profile: str | None, tmp_path: Path, monkeypatch) -> None:
    section = profile or "default"
    aws_folder(
        tmp_path, credentials=f"[{section}]\naws_access_key_id = pk\naws_secret_access_key = profile-secret\n"
    )
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / ".aws" / "credentials"))
    web = {"AWS_WEB_IDENTITY_TOKEN_FILE": "/token", "AWS_ROLE_ARN": "arn:aws:iam::1:role/r"}
    environment = {**web, **({"AWS_PROFILE": profile} if profile else {})}
    found = find_credentials(environment=environment, home=tmp_path)
    assert (found.source, found.profile) == ("profile", section)
    assert found.provider is not None
    given = found.provider()
    assert (given["access_key_id"], given["secret_access_key"]) == ("pk", "profile-secret")


def test_an_sso_profile_needs_boto3_and_says_how_to_get_it(tmp_path: Path, monkeypatch) -> None:
    aws_folder(tmp_path, config="[profile work]\nsso_session = corp\nsso_account_id = 1\n")
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(MissingExtra, match=r"pip install 'treering\[aws\]'"):
        find_credentials(environment={"AWS_PROFILE": "work"}, home=tmp_path)


def test_a_profile_that_is_named_and_not_there_is_refused(tmp_path: Path) -> None:
    aws_folder(tmp_path, config="[profile other]\nregion = eu-west-1\n")
    with pytest.raises(InvalidInput, match="'work'"):
        find_credentials(environment={"AWS_PROFILE": "work"}, home=tmp_path)


def test_a_profile_with_only_a_region_signs_nobody_in(tmp_path: Path) -> None:
    aws_folder(tmp_path, config="[default]\nregion = eu-west-1\n")
    web = {"AWS_WEB_IDENTITY_TOKEN_FILE": "/token", "AWS_ROLE_ARN": "arn:aws:iam::1:role/r"}
    assert find_credentials(environment=web, home=tmp_path).source == "web identity"
    assert find_credentials(environment={}, home=tmp_path).source == "machine"


def test_the_region_is_given_or_from_the_environment_or_the_default() -> None:
    both = {"AWS_REGION": "eu-west-1", "AWS_DEFAULT_REGION": "eu-west-2"}
    assert find_region("ap-south-1", environment=both) == "ap-south-1"
    assert find_region(None, environment=both) == "eu-west-1"
    assert find_region(None, environment={"AWS_DEFAULT_REGION": "eu-west-2"}) == "eu-west-2"
    assert find_region(None, environment={}) == "us-east-1"


# Each of them against a real server
def test_a_bucket_opens_with_keys_of_the_environment(s3: S3Bucket, monkeypatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3.secret_key)
    blobs = open_bucket(StorageConfig(f"s3://{s3.bucket}/p", endpoint=s3.endpoint))
    blobs.put("one", b"1")
    assert blobs.get("one") == b"1"


def test_a_bucket_opens_with_a_profile(s3: S3Bucket, tmp_path: Path, monkeypatch) -> None:
    file = tmp_path / "credentials"
    file.write_text(f"[work]\naws_access_key_id={s3.access_key}\naws_secret_access_key={s3.secret_key}\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    monkeypatch.setenv("AWS_PROFILE", "work")
    blobs = open_bucket(StorageConfig(f"s3://{s3.bucket}/p", endpoint=s3.endpoint))
    blobs.put("one", b"1")
    assert blobs.get("one") == b"1"


class SignIn(BaseHTTPRequestHandler):
    """Hands out the keys of a bucket, as an instance's metadata service and as STS do."""

    bucket: S3Bucket
    asked: list[str]

    def log_message(self, *_: object) -> None: ...

    def do_PUT(self) -> None:
        self._say(b"a-token")

    def do_GET(self) -> None:
        self.asked.append(self.path)
        if self.path.rstrip("/").endswith("security-credentials"):
            self._say(b"the-role")
            return
        reported = {
            "Code": "Success",
            "AccessKeyId": self.bucket.access_key,
            "SecretAccessKey": self.bucket.secret_key,
            "Token": "",
            "Expiration": "2099-01-01T00:00:00Z",
        }
        self._say(json.dumps(reported).encode())

    def do_POST(self) -> None:
        asked = self.rfile.read(int(self.headers.get("content-length") or 0)).decode()
        self.asked.append(f"{self.path} {asked}")
        self._say(
            f"<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials>"
            f"<AccessKeyId>{self.bucket.access_key}</AccessKeyId>"
            f"<SecretAccessKey>{self.bucket.secret_key}</SecretAccessKey>"
            f"<SessionToken></SessionToken><Expiration>2099-01-01T00:00:00Z</Expiration>"
            f"</Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>".encode()
        )

    def _say(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def signing_in(s3: S3Bucket, tls: ssl.SSLContext | None = None) -> Iterator[tuple[int, list[str]]]:
    asked: list[str] = []
    handler = type("Handler", (SignIn,), {"bucket": s3, "asked": asked})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server.server_address[1], asked
        server.shutdown()
        thread.join()


def test_a_bucket_opens_with_the_machines_own_role(s3: S3Bucket, monkeypatch) -> None:
    with signing_in(s3) as (port, asked):
        monkeypatch.setenv("AWS_METADATA_ENDPOINT", f"http://127.0.0.1:{port}")
        blobs = open_bucket(StorageConfig(f"s3://{s3.bucket}/p", endpoint=s3.endpoint))
        blobs.put("one", b"1")
        assert blobs.get("one") == b"1"
    assert any("the-role" in each for each in asked)


def test_a_bucket_opens_with_a_web_identity(s3: S3Bucket, tmp_path: Path, monkeypatch) -> None:
    authority, tls = certificates.make(tmp_path)
    (tmp_path / "token").write_text("a-jwt")
    with signing_in(s3, tls) as (port, asked):
        monkeypatch.setenv("SSL_CERT_FILE", str(authority))
        monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
        monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::1:role/agents")
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", f"https://localhost:{port}")
        blobs = open_bucket(StorageConfig(f"s3://{s3.bucket}/p", endpoint=s3.endpoint))
        blobs.put("one", b"1")
        assert blobs.get("one") == b"1"
    assert any("a-jwt" in each for each in asked)
