"""Find keys, tokens and passwords in what is about to be stored or handed on.

A program that writes its environment to a file, or an agent that prints a key, puts a secret where nobody
looks for it: into a snapshot, an export, a copy on another machine. The rules below name the forms that
providers give their keys, so that a match is almost always a key. Where a value has no form of its own
(`MY_TOKEN=...`), the name beside it must say what it is, and the value must be as random as keys are
(Shannon entropy). Placeholders (`<your-key>`, `${TOKEN}`, `changeme`) and the examples that providers print
in their documentation are let through, and so is a line that says ``gitleaks:allow`` or
``pragma: allowlist secret``.

**Speed.** Snapshots scan every new file, so most bytes must cost next to nothing. A key is, or ends with, a
long run of letters and digits (of some, with dashes among them): translations to one byte per class and a
search each find these runs at 250 MB a second in text, and only what is around one with a digit or a known
beginning in it is matched with the rules. Compressed and encrypted data have no run of printable characters
and are done four times as fast. **Invariant:** a finding never holds the secret; it has the first
characters, the length, and the line.
"""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Final

import msgspec

from treering.errors import SecretsFound

_AROUND: Final = 320
"""Bytes before and after a suspicious run that are matched with the rules: a name, a quote, a first line."""
_OVERLAP: Final = 4096
"""Bytes of a piece that are scanned again with the next one, so that no secret is cut in two."""
_READ: Final = 1 << 20
_SHOWN: Final = 4
_LISTED: Final = 5

# Nothing before it that would make it part of a longer word; an escaped line break (`\n` in JSON) may be.
_START: Final = rb"(?:(?<![A-Za-z0-9_])|(?<=\\[nrt]))"
_END: Final = rb"(?![A-Za-z0-9_])"

_FORMS: Final[tuple[tuple[str, bytes], ...]] = (
    ("aws-access-key", rb"(?:AKIA|ASIA|ABIA|ACCA)[A-Z2-7]{16}"),
    ("github-token", rb"gh[pousr]_[A-Za-z0-9]{36,255}|github_pat_[A-Za-z0-9]{22}_[A-Za-z0-9]{59}"),
    ("gitlab-token", rb"gl(?:pat|ptt|dt|rt|cbt|ft|soat|agent|oas|imt|ffct)-[A-Za-z0-9_-]{20,255}"),
    ("anthropic-key", rb"sk-ant-[a-z0-9]{3,12}-[A-Za-z0-9_-]{32,255}"),
    ("openrouter-key", rb"sk-or-v1-[0-9a-f]{64}"),
    ("langfuse-key", rb"sk-lf-[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}"),
    (
        "openai-key",
        rb"sk-(?:proj|svcacct|admin|None)-[A-Za-z0-9_-]{40,255}|sk-[A-Za-z0-9]{20}T3BlbkFJ[A-Za-z0-9]{20}",
    ),
    ("google-api-key", rb"AIza[A-Za-z0-9_-]{35}"),
    ("google-oauth", rb"GOCSPX-[A-Za-z0-9_-]{28}|ya29\.[A-Za-z0-9_-]{40,2048}"),
    (
        "slack-token",
        rb"xox[abeoprs]-(?:[A-Za-z0-9]{1,40}-){1,4}[A-Za-z0-9]{16,}|xapp-\d-[A-Z0-9]+-\d+-[a-f0-9]{32,}",
    ),
    (
        "slack-webhook",
        rb"https://hooks\.slack\.com/(?:services|workflows)/T[A-Z0-9]{6,}/[A-Z0-9]{6,}/[A-Za-z0-9/]{20,}",
    ),
    (
        "discord-webhook",
        rb"https://(?:ptb\.|canary\.)?discord(?:app)?\.com/api/webhooks/\d{17,20}/[A-Za-z0-9_-]{60,}",
    ),
    ("telegram-token", rb"\d{8,10}:AA[A-Za-z0-9_-]{33}"),
    ("stripe-key", rb"[sr]k_live_[A-Za-z0-9]{24,247}|whsec_[A-Za-z0-9+/]{32,}"),
    ("huggingface-token", rb"hf_[A-Za-z0-9]{34,40}"),
    ("npm-token", rb"npm_[A-Za-z0-9]{36}"),
    ("pypi-token", rb"pypi-AgE[A-Za-z0-9_-]{60,}"),
    ("sendgrid-key", rb"SG\.[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43}"),
    ("twilio-key", rb"SK[0-9a-f]{32}"),
    ("mailgun-key", rb"key-[0-9a-f]{32}"),
    ("digitalocean-token", rb"do[opr]_v1_[0-9a-f]{64}"),
    ("shopify-token", rb"shp(?:at|ca|pa|ss)_[0-9a-fA-F]{32}"),
    ("databricks-token", rb"dapi[0-9a-f]{32}(?:-\d)?"),
    ("langsmith-key", rb"lsv2_(?:pt|sk)_[0-9a-f]{32}_[0-9a-f]{10}"),
    ("groq-key", rb"gsk_[A-Za-z0-9]{52}"),
    ("perplexity-key", rb"pplx-[A-Za-z0-9]{48,}"),
    ("xai-key", rb"xai-[A-Za-z0-9]{70,}"),
    ("replicate-token", rb"r8_[A-Za-z0-9]{37}"),
    ("tavily-key", rb"tvly-(?:dev-|prod-)?[A-Za-z0-9]{32}"),
    ("linear-key", rb"lin_(?:api|oauth)_[A-Za-z0-9]{40}"),
    ("notion-token", rb"ntn_[A-Za-z0-9]{46}"),
    ("grafana-token", rb"gl(?:sa_[A-Za-z0-9]{32}_[0-9a-f]{8}|c_[A-Za-z0-9+/]{60,})"),
    ("doppler-token", rb"dp\.(?:pt|st|ct|sa)\.(?:[a-z0-9_-]+\.)?[A-Za-z0-9]{40,44}"),
    ("vault-token", rb"hv[sb]\.[A-Za-z0-9_-]{24,}"),
    ("terraform-token", rb"[A-Za-z0-9]{14}\.atlasv1\.[A-Za-z0-9_=-]{60,}"),
    ("pulumi-token", rb"pul-[0-9a-f]{40}"),
    ("age-key", rb"AGE-SECRET-KEY-1[QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L]{58}"),
    ("azure-key", rb"AccountKey=[A-Za-z0-9+/]{86}=="),
    (
        "json-web-token",
        rb"(?<![.-])eyJ[A-Za-z0-9_-]{10,4096}\.eyJ[A-Za-z0-9_-]{10,8192}\.[A-Za-z0-9_-]{20,2048}",
    ),
)
_BREAK: Final = rb"(?:\s|\\{1,4}[nrt]|[\\\"'+,]){0,40}"
_OTHERS: Final[tuple[tuple[str, bytes], ...]] = (
    (
        "private-key",
        rb"-----BEGIN (?:[A-Z0-9]{1,12} ){0,2}PRIVATE KEY(?: BLOCK)?-----"
        + _BREAK
        + rb"(?:[A-Za-z-]{4,20}: [^\n\\]{0,100}"
        + _BREAK
        + rb"){0,3}[A-Za-z0-9+/]{40}",
    ),
    (
        "url-password",
        (
            rb"://(?P<user>[^\x00-\x20:/@\"'<>\\`]{0,100}):(?P<password>[^\x00-\x20/@\"'<>\\`]{4,200})"
            rb"@(?P<host>[A-Za-z0-9\[][A-Za-z0-9._:-]*)"
        ),
    ),
    (
        "password",  # as in an environment: an upper-case name at the beginning of a line
        rb"(?:PASSWORD|PASSWD|PASSPHRASE)=[\"']?(?P<value>[^\s\"'\\$<{(]{8,200})",
    ),
    (
        "secret",
        (
            rb"(?i:api_?-?key|secret|token|passw(?:or)?d|passphrase|credential|private_?key|access_?key)"
            rb"(?P<rest>(?:s|[_.-][A-Za-z0-9_.-]{0,20})?)\\?[\"']?[ \t]{0,3}(?::=|=>|=|:)[ \t]{0,3}\\?[\"']?"
            rb"(?i:bearer )?(?P<random>[A-Za-z0-9+/_=.~-]{20,200})"
        ),
    ),
)
_BY_FORM: Final = re.compile(
    b"|".join(b"(?P<r%d>%s(?:%s)%s)" % (at, _START, form, _END) for at, (_, form) in enumerate(_FORMS))
)
_BY_NAME: Final = re.compile(b"|".join(b"(?P<r%d>%s)" % (at, form) for at, (_, form) in enumerate(_OTHERS)))
_FORM_NAMES: Final = {f"r{at}": name for at, (name, _) in enumerate(_FORMS)}
_OTHER_NAMES: Final = {f"r{at}": name for at, (name, _) in enumerate(_OTHERS)}

# How the rules begin, in lower case: only there are they tried. A form without a beginning of its own has it
# behind a few characters, `_BACK` of them at most.
_FORM_BEGINS: Final = (
    rb"a[ksbc][ic]a|gh[pousr]_|github_pat_|gl[a-z]{2,5}[-_]|sk-|aiza|gocspx-|ya29|xox|xapp-|https://(?:hooks|discord"
    rb"|ptb|canary)|:aa|[sr]k_live|whsec_|hf_|npm_|pypi-|sg\.|sk[0-9a-f]{4}|key-|do[opr]_v1|shp[acs]|dapi|lsv2_|gsk_"
    rb"|pplx-|xai-|r8_|tvly-|lin_|ntn_|dp\.|hv[sb]\.|\.atlasv1|pul-|age-sec|accountkey=|eyj"
)
_OTHER_BEGINS: Final = (
    rb"-----begin|://|passw|passph|api_?-?key|secret|token|credential|private_?key|access_?key"
)
_BEGINS: Final = re.compile(rb"(?:%s)|(?P<other>%s)" % (_FORM_BEGINS, _OTHER_BEGINS))
_BACK: Final = {b":aa": 10, b".atlasv1": 14}

SCAN_RULES: Final = sha256(_BY_FORM.pattern + _BY_NAME.pattern).hexdigest()[:16]
"""Changes with the rules: what was scanned with others is scanned again."""

_LETTERS: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789")
_PLAIN: Final = bytes(
    ord("a" if 0x20 <= code < 0x7F or code in b"\t\n\r" else " " if code >= 0x80 else "\0")  # noqa: PLR2004
    for code in range(256)
)
_ALNUM: Final = bytes(ord("a" if code in _LETTERS else " ") for code in range(256))
_WORD: Final = bytes(ord("a" if code in _LETTERS or code in b"_-" else " ") for code in range(256))
_RUN: Final = b"a" * 16
_LONG_RUN: Final = b"a" * 26
_PEEK: Final = 1024
_DIGIT: Final = re.compile(rb"[0-9]")
# Keys that may have no long run of letters and digits, because "-" and "_" are among their characters.
_DASHED: Final = re.compile(rb"AIza|sk-|GOCSPX-|glpat-|hf_")
_SENDGRID: Final = 43
"""The length of the second half of a SendGrid key, which a dot precedes."""
# What needs no long run at all. The last one only where there is an "@".
_WORDS: Final = (b"PASSW", b"PASSPH", b"://hooks.slack", b"://")

_PLACEHOLDER: Final = re.compile(
    rb"(?i)example|placeholder|changeme|change[-_]me|your[-_]?|dummy|sample|redacted|fake|xxxx|\*\*\*|\.\.\."
    rb"|1234567890|0123456789|abcdefghij|^(?:test|password|passwd|secret|pass|pw|user|root|admin|postgres|tiger)\d{0,4}$"
)
_DOCUMENTED: Final = re.compile(rb"eyJzdWIiOiIxMjM0NTY3ODkwIi|EXAMPLE")
_LOCAL: Final = re.compile(
    rb"(?i)^(?:localhost|127\.|0\.0\.0\.0|\[?::1|host\.docker|example\.|.*\.example|(?:my)?(?:host(?:name)?|server)(?:[:/]|$))"
)
_ALLOWED: Final = re.compile(rb"gitleaks:allow|pragma: ?allowlist secret")
# Names that say "token" and mean something else, or something that is not secret.
_HARMLESS: Final = re.compile(
    rb"(?i)(?:public|csrf|xsrf|page|next|prev|continuation|sync|resume|delta|cursor|fencing|idempotency|max|min|num"
    rb"|count|total|input|output|prompt|completion|cached?|special|pad|eos|bos)[_.-]?$"
)
_HARMLESS_REST: Final = re.compile(
    rb"(?i)^[_.-]?(?:s?_?(?:id|ids|name|names|count|type|hash|digest|sha256|url|uri|path|file|arn|ref|key_id))\b"
)
_KINDS: Final = bytes(
    ord("0") if chr(code).isdigit() else ord("A") if chr(code).isupper() else ord("a") for code in range(256)
)
_HEX: Final = re.compile(rb"[0-9a-fA-F]+")
_VARIABLE: Final = re.compile(rb"(?:export )?[A-Z0-9_]{0,40}")
_LINE: Final = 1000
_KEY_END: Final = re.compile(rb"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----|(?=\\?\")|\Z")
_DISTINCT: Final = 12
_UUID: Final = re.compile(rb"(?i)[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}")
_ENTROPY: Final = 3.7
"""Bits per character. 20 random letters and digits have 3.9 or more nearly always; words have less."""
_HEX_ENTROPY: Final = 3.0
_HEX_LENGTH: Final = 32


class SecretMatch(msgspec.Struct, frozen=True, array_like=True):
    """A secret in one text: which rule found it, where, and how it begins."""

    rule: str
    line: int
    """The first line is 1."""
    hint: str
    """The first characters and the length, never the secret."""


class FoundSecret(msgspec.Struct, frozen=True, kw_only=True):
    """A secret in one of several files or records. ``path`` says in which."""

    path: str
    rule: str
    line: int
    hint: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule} ({self.hint})"


class SecretScanner:
    """Scans a text that comes in pieces. `feed` all of them, then `finish`."""

    def __init__(self) -> None:
        self._kept = b""
        self._start = 0
        """Where ``_kept`` begins in the text."""
        self._line = 1
        self._reported = 0
        """Up to where secrets that begin there have been reported."""
        self._found: dict[SecretMatch, None] = {}

    def feed(self, piece: bytes) -> None:
        """Scan the next piece."""
        data = self._kept + piece if self._kept else piece
        self._scan(data, len(data) - _OVERLAP // 2)
        cut = max(0, len(data) - _OVERLAP)
        self._line += data.count(b"\n", 0, cut)
        self._start += cut
        self._kept = data[cut:]

    def finish(self) -> tuple[SecretMatch, ...]:
        """Return what was found, in order."""
        self._scan(self._kept, len(self._kept))
        return tuple(self._found)

    def _scan(self, data: bytes, until: int) -> None:
        """Report what begins before ``until``; what follows may go on in the next piece."""
        for rule, at, hint in _matches(data):
            if self._reported - self._start <= at < until:
                self._found.setdefault(SecretMatch(rule, self._line + data.count(b"\n", 0, at), hint))
        self._reported = max(self._reported, self._start + until)


def scan_secrets(data: bytes | str | Iterable[bytes]) -> tuple[SecretMatch, ...]:
    """Return the secrets in a text, or in the pieces of one."""
    if isinstance(data, str):
        data = data.encode("utf-8", "surrogatepass")
    if isinstance(data, bytes):
        return tuple(
            dict.fromkeys(
                SecretMatch(rule, data.count(b"\n", 0, at) + 1, hint) for rule, at, hint in _matches(data)
            )
        )
    scanner = SecretScanner()
    for piece in data:
        scanner.feed(piece)
    return scanner.finish()


def scan_folder(folder: Path) -> Iterator[FoundSecret]:
    """Yield the secrets in the files below a folder, by path."""
    for above, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            file = Path(above) / name
            yield from scan_file(file, path=file.relative_to(folder).as_posix())


def scan_file(file: Path, *, path: str | None = None) -> Iterator[FoundSecret]:
    """Yield the secrets in a file; ``path`` is what they call it."""
    with file.open("rb") as opened:
        for each in scan_secrets(iter(partial(opened.read, _READ), b"")):
            yield FoundSecret(path=path or str(file), rule=each.rule, line=each.line, hint=each.hint)


def refuse_secrets(found: Iterable[FoundSecret], *, what: str) -> None:
    """Raise `SecretsFound` if there are any; ``what`` begins the message, as in "nothing was pushed"."""
    listed = tuple(found)
    if listed:
        raise SecretsFound(
            f"{what}, because it has {len(listed):,} secret(s): {describe_secrets(listed)}. Revoke and "
            "remove them, mark a line that has none with 'gitleaks:allow', or allow them explicitly",
            found=tuple(str(each) for each in listed),
        )


def describe_secrets(found: Sequence[FoundSecret]) -> str:
    """Return one line that names the first secrets."""
    more = f"; and {len(found) - _LISTED:,} more" if len(found) > _LISTED else ""
    return "; ".join(str(each) for each in found[:_LISTED]) + more


class SecretScrubber:
    """Puts ``<secret: RULE>`` in the place of secrets.

    One that was found is replaced everywhere from then on, unless it is so short that it could be a word.
    """

    def __init__(self) -> None:
        self.rules: dict[bytes, str] = {}
        """The secrets that were found, and the rules that found them."""

    def scrub(self, data: bytes) -> bytes:
        """Return a text without its secrets."""
        found = [
            (match, rule, _whole_key(data, match) if rule == "private-key" else secret)
            for match, rule, secret in _found_in(data)
        ]
        for match, rule, secret in reversed(found):
            self.rules[secret] = rule
            at = data.find(secret, match.start())
            data = data[:at] + f"<secret: {rule}>".encode() + data[at + len(secret) :]
        for secret in sorted(self.rules, key=len, reverse=True):
            if len(secret) >= _DISTINCT:
                data = data.replace(secret, f"<secret: {self.rules[secret]}>".encode())
        return data


def _whole_key(data: bytes, match: re.Match[bytes]) -> bytes:
    """Return a private key to its end, of which the rule matches only the beginning."""
    end = _KEY_END.search(data, match.end())
    if end is None:
        return match[0]
    return data[match.start() : end.end()]


def _matches(data: bytes) -> Iterator[tuple[str, int, str]]:
    """Yield rule, offset and hint of each secret."""
    for match, rule, secret in _found_in(data):
        yield rule, match.start(), _hint(rule, secret)


def _found_in(data: bytes) -> Iterator[_Confirmed]:
    """Yield each secret; one with a form is not found by its name too."""
    for start, stop in _windows(data):
        forms: list[re.Match[bytes]] = []
        others: list[re.Match[bytes]] = []
        for begin in _BEGINS.finditer(data[start:stop].lower()):
            at = start + begin.start()
            if begin["other"] is not None:
                others += filter(None, [_BY_NAME.match(data, at, stop)])
            else:
                first = max(start, at - _BACK.get(begin[0], 0))
                forms += filter(None, (_BY_FORM.match(data, each, stop) for each in range(first, at + 1)))
        found = _confirmed(forms, _FORM_NAMES, [])
        yield from sorted(found + _confirmed(others, _OTHER_NAMES, found), key=_offset)


_Confirmed = tuple[re.Match[bytes], str, bytes]


def _offset(each: _Confirmed) -> int:
    return each[0].start()


def _confirmed(
    matches: Iterable[re.Match[bytes]], names: dict[str, str], known: Iterable[_Confirmed]
) -> list[_Confirmed]:
    """Return those matches that are secrets, and not part of one before them or of a known one."""
    spans = [match.span() for match, _, _ in known]
    found: list[_Confirmed] = []
    for match in matches:
        first, last = match.span()
        if any(first < known_last and known_first < last for known_first, known_last in spans):
            continue
        rule = next(name for group, name in names.items() if match[group] is not None)
        secret = _secret(rule, match)
        if secret is not None and _ALLOWED.search(_line_of(match.string, first)) is None:
            spans.append((first, last))
            found.append((match, rule, secret))
    return found


def _windows(data: bytes) -> list[tuple[int, int]]:
    """Return the parts of a text that may hold a secret, in order; they do not overlap."""
    if not _is_text(data):
        return []
    places = [each for each in _runs(data, _ALNUM, _RUN) if _DIGIT.search(data, *each) is not None]
    places += [
        (start, stop)
        for start, stop in _runs(data, _WORD, _LONG_RUN)
        if _DASHED.search(data, start, stop) is not None
        or (stop - start >= _SENDGRID and data[start - 1 : start] == b".")
    ]
    for word in _WORDS if b"@" in data else _WORDS[:-1]:
        at = data.find(word)
        while at >= 0:
            places.append((at, at + len(word)))
            at = data.find(word, at + len(word))
    if not places:
        return []
    windows: list[tuple[int, int]] = []
    for first, last in sorted(places):
        start, stop = max(0, first - _AROUND), min(len(data), last + _AROUND)
        if windows and start <= windows[-1][1]:
            windows[-1] = (windows[-1][0], max(stop, windows[-1][1]))
        else:
            windows.append((start, stop))
    return windows


def _is_text(data: bytes) -> bool:
    """Whether there is any text in it; in compressed or encrypted data there is none."""
    if _RUN in data[:_PEEK].translate(_PLAIN):
        return True
    shape = data.translate(_PLAIN)
    return _RUN in shape or b"\0" not in shape


def _runs(data: bytes, classes: bytes, least: bytes) -> Iterator[tuple[int, int]]:
    """Yield the runs of characters of a class that are as long as ``least`` or longer."""
    shape = data.translate(classes)
    at = shape.find(least)
    while at >= 0:
        stop = shape.find(b" ", at)
        stop = len(data) if stop < 0 else stop
        yield at, stop
        at = shape.find(least, stop)


def _secret(rule: str, found: re.Match[bytes]) -> bytes | None:
    """Return the secret itself; ``None`` if it is a placeholder, an example, or no secret after all."""
    if rule == "url-password":
        password = found["password"]
        is_secret = (
            password != found["user"]
            and password[:1] not in b"$%{<[*"
            and _PLACEHOLDER.search(password) is None
            and _LOCAL.match(found["host"]) is None
        )
        return password if is_secret else None
    if rule == "password":
        value, name = found["value"], _line_of(found.string, found.start(), until=found.start())
        is_variable = _VARIABLE.fullmatch(name.rpartition(b"\\n")[2]) is not None
        return value if is_variable and _PLACEHOLDER.search(value) is None else None
    if rule == "secret":
        return _random_value(found)
    if rule == "private-key":
        return found[0]
    secret = found[0]
    return None if _DOCUMENTED.search(secret) or _repeats(secret) else secret


def _random_value(found: re.Match[bytes]) -> bytes | None:
    """Return the value of a name such as ``api_key``, if it is as random as a key."""
    value = found["random"]
    before = found.string[max(0, found.start() - 24) : found.start()]
    if _HARMLESS.search(before) or _HARMLESS_REST.match(found["rest"]) or _PLACEHOLDER.search(value):
        return None
    if not (any(0x30 <= byte <= 0x39 for byte in value) and _UUID.fullmatch(value) is None):  # noqa: PLR2004
        return None
    if _HEX.fullmatch(value):
        return value if len(value) >= _HEX_LENGTH and _entropy(value) >= _HEX_ENTROPY else None
    if value.count(b".") > 1 or value.count(b"/") > 2 or b"--" in value:  # noqa: PLR2004 - a path, or names
        return None
    return value if _is_jumbled(value) and _entropy(value) >= _ENTROPY else None


def _is_jumbled(value: bytes) -> bool:
    """Whether digits and both cases take turns as they do by chance; in names they come in words."""
    kinds = value.translate(_KINDS)
    turns = sum(one != other for one, other in pairwise(kinds))
    return kinds.count(b"0") * 7 >= len(value) or turns * 5 >= len(value) * 2


def _entropy(value: bytes) -> float:
    counts = Counter(value)
    return -sum(count / len(value) * math.log2(count / len(value)) for count in counts.values())


def _repeats(secret: bytes) -> bool:
    """Whether it is made of a few characters, as `sk-ant-xxxxxxxx` is."""
    return len(set(secret[-20:])) <= _LISTED


def _line_of(data: bytes, at: int, *, until: int | None = None) -> bytes:
    """Return the line of an offset, up to ``until`` or its end."""
    first = max(0, at - _LINE)
    start = data.rfind(b"\n", first, at) + 1 or first
    stop = data.find(b"\n", at, at + _LINE) if until is None else until
    return data[start : stop if stop >= 0 else at + _LINE]


def _hint(rule: str, secret: bytes) -> str:
    """Describe a secret without telling it: a fifth of it at most."""
    if rule == "private-key":
        return secret[:64].decode("ascii", "replace").split("-----")[1].lower()
    shown = secret[: min(_SHOWN, len(secret) // 5)].decode("ascii", "replace")
    return f"{shown}... of {len(secret)} characters"
