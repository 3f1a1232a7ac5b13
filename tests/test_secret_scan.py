"""Keys and passwords are found by their form or their name, and ordinary text is not taken for one."""

from __future__ import annotations

import random
import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import treering
from treering.errors import SecretsFound
from treering.secret_scan import (
    FoundSecret,
    SecretScanner,
    SecretScrubber,
    refuse_secrets,
    scan_folder,
    scan_secrets,
)

LETTERS = string.ascii_letters + string.digits
SAFE = LETTERS + "-_"
HEX = "0123456789abcdef"


def drawn(seed: int, count: int, alphabet: str = LETTERS) -> str:
    """Return the random part of a key. No whole key is written down here: others scan this file."""
    return "".join(random.Random(f"{seed} {count} {alphabet}").choices(alphabet, k=count))


def keys(seed: int) -> dict[str, tuple[str, ...]]:
    def some(count: int, alphabet: str = LETTERS) -> str:
        return drawn(seed, count, alphabet)

    base32 = string.ascii_uppercase + "234567"
    uuid = "-".join(some(size, HEX) for size in (8, 4, 4, 4, 12))
    return {
        "aws-access-key": ("AKIA" + some(16, base32), "ASIA" + some(16, base32)),
        "github-token": (*(f"gh{kind}_{some(36)}" for kind in "pousr"), f"github_pat_{some(22)}_{some(59)}"),
        "gitlab-token": ("glpat" + "-" + some(20, SAFE.replace("-", "")),),
        "anthropic-key": (f"sk-ant-api03-{some(93, SAFE)}AA", f"sk-ant-oat01-{some(93, SAFE)}AA"),
        "openrouter-key": ("sk-or-v1-" + some(64, HEX),),
        "langfuse-key": ("sk-lf-" + uuid,),
        "openai-key": (f"sk-{some(20)}T3BlbkFJ{some(20)}", f"sk-proj-{some(120, SAFE)}a"),
        "google-api-key": ("AIza" + some(34, SAFE) + "b",),
        "google-oauth": ("GOCSPX-" + some(27, SAFE) + "c",),
        "slack-token": (f"xoxb-{some(12, string.digits)}-{some(13, string.digits)}-{some(24)}",),
        "slack-webhook": (
            f"https://hooks.slack.com/services/T{some(8, base32)}/B{some(8, base32)}/{some(24)}",
        ),
        "discord-webhook": (f"https://discord.com/api/webhooks/{some(18, string.digits)}/{some(67, SAFE)}d",),
        "telegram-token": (f"{some(10, '123456789')}:AA{some(32, SAFE)}e",),
        "stripe-key": ("sk_live_" + some(24), "rk_live_" + some(99)),
        "huggingface-token": ("hf_" + some(34, string.ascii_letters),),
        "npm-token": ("npm_" + some(36),),
        "pypi-token": (f"pypi-AgEIcHlwaS5vcmc{some(100, SAFE)}f",),
        "sendgrid-key": (f"SG.{some(22, SAFE)}.{some(42, SAFE)}g",),
        "digitalocean-token": ("dop_v1_" + some(64, HEX),),
        "databricks-token": ("dapi" + some(32, HEX),),
        "langsmith-key": (f"lsv2_pt_{some(32, HEX)}_{some(10, HEX)}",),
        "groq-key": ("gsk_" + some(52),),
        "replicate-token": ("r8_" + some(37),),
        "tavily-key": ("tvly-" + some(32), "tvly-dev-" + some(32)),
        "terraform-token": (f"{some(14)}.atlasv1.{some(66, SAFE)}h",),
        "azure-key": (f"AccountKey={some(86)}==",),
        "json-web-token": (f"eyJhbGciOiJIUzI1NiJ9.eyJ{some(60)}.{some(43, SAFE)}",),
        "private-key": tuple(
            f"-----BEGIN {kind}PRIVATE KEY-----{gap}{some(64)}"
            for kind, gap in (("", "\n"), ("RSA ", "\\n"), ("OPENSSH ", "\r\n"), ("EC ", '",\n "'))
        ),
        "url-password": (
            f"postgresql://app:{some(12)}@db.internal:5432/app",
            f"https://u:{some(30)}@git.corp/x.git",
        ),
        "password": (f"DB_PASSWORD={some(10)}!", f"export SMTP_PASSWD='{some(8)}$%'"),
        "secret": (
            f"SERVICE_TOKEN={some(40)}7q",
            f'"client_secret": "{some(38)}7Q2x"',
            f"apiKey: '{some(40)}1Zq'",
            f"X-Api-Key={some(40, HEX)}",
            f"token: Bearer {some(40)}9Kx",
        ),
    }


CASES = [(rule, key) for seed in range(3) for rule, given in keys(seed).items() for key in given]
EACH_KEY = pytest.mark.parametrize(
    "rule, key", CASES, ids=[f"{each[0]}-{at}" for at, each in enumerate(CASES)]
)


@EACH_KEY
def test_a_key_is_found_wherever_it_stands(rule, key):
    filler = "The quick brown fox jumps over the lazy dog. " * 40
    for text in (key, f"{filler}\n{key}\n{filler}", f"x = 1\n{key} # mine", f"one line\n\n{key}"):
        (found,) = scan_secrets(text)
        assert found.rule == rule
        assert found.line == text[: text.index(key)].count("\n") + 1


@EACH_KEY
def test_a_key_is_found_between_bytes_that_are_no_text(rule, key):
    noise = random.Random(key).randbytes(5000)
    for around in (noise, b"\0" * 5000, "слово и дело ".encode() * 300):
        (found,) = scan_secrets(around + b"\n" + key.encode() + b"\n" + around)
        assert found.rule == rule


@EACH_KEY
def test_a_key_is_found_in_json_and_in_an_environment(rule, key):
    from json import dumps

    dumped = f"PATH=/usr/bin\n{key}\nHOME=/home/me\n"
    assert {each.rule for each in scan_secrets(dumps({"content": dumped, "n": 1}))} == {rule}


@pytest.mark.parametrize("key", [key for _, key in CASES])
def test_a_finding_does_not_tell_the_secret(key):
    (found,) = scan_secrets(key)
    inner = max(key.replace("=", " ").replace(":", " ").split(), key=len)
    assert not any(inner[at : at + 7] in found.hint for at in range(5, len(inner) - 7))


@pytest.mark.parametrize(
    "text",
    [
        "AKIAIOSFODNN7" + "EXAMPLE",
        "AWS_SECRET_ACCESS_KEY=" + "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
        "sk-ant-api03-" + "x" * 95,
        "OPENAI_API_KEY=sk-your-key-here-0000000000000000",
        "ghp_" + "x" * 36,
        "-----BEGIN PRIVATE KEY-----\n...\n-----END PRIVATE KEY-----",
        "if '-----BEGIN RSA PRIVATE KEY-----' in text:",
        "-----BEGIN PUBLIC KEY-----\n" + drawn(1, 64),
        "postgresql://postgres:postgres@localhost:5432/app",
        "postgresql://user:password@db.example.com/app",
        "redis://:${REDIS_PASSWORD}@cache:6379",
        "https://{user}:{token}@git.corp/x.git",
        "PASSWORD=changeme",
        "DB_PASSWORD=$OTHER_PASSWORD",
        "password = getpass('the password of the database')",
        "token = os.environ['GITHUB_TOKEN_FOR_RELEASES_2024']",
        '"next_page_token": "' + drawn(2, 60) + '"',
        '"secret_id": "' + drawn(2, 40) + '"',
        '"sha256": "' + drawn(2, 64, HEX) + '"',
        '"integrity": "sha512-' + drawn(2, 86) + '=="',
        "commit " + drawn(3, 40, HEX),
        "request_id = 7f1c9a52-7be1-4f5e-9d9b-3c1a2b3c4d5e",
        "token_type = meta-llama/Llama-3.1-405B-Instruct-Turbo",
        "max_tokens: 100000000000000000000000",
        "data:image/png;base64," + drawn(4, 4000),
        "class CredentialsProviderFactoryImplementation2Tests:",
        "fencing_token=18446744073709551615000",
        "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiIxMjM0NTY3ODkwIiwibmFtZSI6IkpvaG4gRG9lIn0."
        + drawn(5, 43),
        "skill-" + drawn(6, 48).lower(),
    ],
)
def test_ordinary_text_and_placeholders_are_no_secrets(text):
    assert scan_secrets(text) == ()


def test_the_source_of_this_project_has_no_secrets():
    root = Path(__file__).resolve().parents[1]
    found = [str(each) for part in ("src/treering", "docs", "scripts") for each in scan_folder(root / part)]
    assert [each for each in found if "/static/" not in each and "__pycache__" not in each] == []


def test_a_line_can_be_allowed():
    key = "ghp_" + drawn(1, 36)
    assert scan_secrets(f"{key}\n{key}  # gitleaks:allow\n") == scan_secrets(key)
    assert scan_secrets(f"{key}  # pragma: allowlist secret") == ()


@given(
    st.lists(st.integers(1, 9000), max_size=12),
    st.lists(st.tuples(st.integers(0, 20_000), st.sampled_from(CASES)), min_size=1, max_size=4),
)
def test_a_text_in_pieces_has_the_same_secrets(sizes, placed):
    text = bytearray(b"some words of a text\n" * 1000)
    for at, (_, key) in placed:
        text[at:at] = f"\n{key}\n".encode()
    scanner, start = SecretScanner(), 0
    for size in sizes:
        scanner.feed(bytes(text[start : start + size]))
        start += size
    scanner.feed(bytes(text[start:]))
    assert set(scanner.finish()) == set(scan_secrets(bytes(text)))


def test_a_hostile_text_takes_no_longer_than_its_size_allows():
    """Each of these would take minutes if a rule looked at the rest of the text again and again."""
    for unit in (
        b":aa:AA1",
        b" eyJa",
        b"-eyJa.",
        b"://a:",
        b"sk-ant-a-",
        b"xoxb-a-",
        b"ya29.",
        b"a1" * 8,
        b"api_key=",
        b"SG.",
    ):
        scan_secrets(unit * (200_000 // len(unit)))


def test_secrets_are_refused_with_their_places():
    refuse_secrets([], what="nothing was pushed")
    found = [FoundSecret(path=f"file{at}", rule="npm-token", line=at, hint="npm_...") for at in range(1, 8)]
    with pytest.raises(
        SecretsFound, match=r"nothing was pushed, because it has 7 .*file1:1: npm-token"
    ) as caught:
        refuse_secrets(found, what="nothing was pushed")
    assert len(caught.value.found) == 7


def test_a_snapshot_says_which_files_have_secrets(tmp_path):
    folder = tmp_path / "work"
    (folder / "logs").mkdir(parents=True)
    key = "ghp_" + drawn(1, 36)
    (folder / "logs" / "env.txt").write_text(f"PATH=/bin\nGITHUB_TOKEN={key}\n")
    (folder / "big.log").write_bytes(b"a line of a log\n" * 200_000 + b"token " + key.encode() + b"\n")
    (folder / "notes.md").write_text("nothing here")
    with treering.open(tmp_path / "store") as store:
        infos = []
        for _ in range(2):  # the second one reads no file
            first = store.workspace.snapshot(folder, on_done=infos.append)
        assert infos[1].read_files <= infos[0].read_files
        for info in (*infos, next(iter(store.workspace.snapshots()))):
            places = [(each.path, each.rule, each.line) for each in info.secrets]
            assert places == [("big.log", "github-token", 200_001), ("logs/env.txt", "github-token", 2)]
            assert key not in str(info)
        assert sorted(map(str, store.workspace.secrets(first))) == sorted(map(str, infos[0].secrets))

        checkpoint = store.thread("t").checkpoint([{"role": "user", "content": "hi"}], workspace=folder)
        assert checkpoint.metadata["workspace"]["secrets_count"] == 2
        (folder / "logs" / "env.txt").unlink()
        store.workspace.snapshot(folder, on_done=infos.append)
        assert [each.path for each in infos[-1].secrets] == ["big.log"]

        store.workspace.restore(first, tmp_path / "copy")  # what a restore wrote is known as well
        store.workspace.restore(first, folder)
        for restored in (tmp_path / "copy", folder):
            store.workspace.snapshot(restored, on_done=infos.append)
            assert [each.path for each in infos[-1].secrets] == ["big.log", "logs/env.txt"]


@pytest.mark.parametrize("seed", range(3))
def test_scrubbing_takes_out_whole_secrets_and_nothing_else(seed):
    for rule, found in keys(seed).items():
        for key in found:
            scrubber = SecretScrubber()
            said = scrubber.scrub(f"before\n{key}\nafter".encode()).decode()
            assert said.startswith("before\n")
            assert said.endswith("\nafter") or rule == "private-key", "a key without an end has the rest"
            assert f"<secret: {rule}>" in said
            assert scan_secrets(said) == ()
            assert scrubber.scrub(said.encode()).decode() == said
    body = "\n".join(drawn(seed + line, 64) for line in range(6))
    begin, end = "-----BEGIN RSA PRIVATE KEY-----", "-----END RSA PRIVATE KEY-----"
    said = SecretScrubber().scrub(f'{{"key":"{begin}\n{body}\n{end}","next":1}}'.encode())
    assert said == b'{"key":"<secret: private-key>","next":1}'


def test_a_secret_that_was_found_by_its_name_is_scrubbed_without_it():
    value = drawn(7, 32)
    scrubber = SecretScrubber()
    assert scrubber.scrub(f"API_KEY={value}".encode()) == b"API_KEY=<secret: secret>"
    assert scrubber.scrub(f"it is {value}".encode()) == b"it is <secret: secret>"
    assert scrubber.scrub(b"postgres://a:hunter2@db.internal.net/hunter2").endswith(
        b"@db.internal.net/hunter2"
    )
