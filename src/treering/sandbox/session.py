"""A session: one sandbox from its first run to `kill` or `set_session`, with its tag, log and lineage."""

from __future__ import annotations

import secrets
from pathlib import Path

from treering.core.batch import Usage
from treering.core.clock import SystemClock
from treering.core.ids import check_space
from treering.errors import InvalidInput
from treering.sandbox.local import LocalSandbox
from treering.sandbox.profiles import AgentProfile
from treering.sandbox.running import Recorder
from treering.sandbox.session_log import SessionLog, SessionMeta, iso_of
from treering.sandbox.vault import Vault
from treering.store import Store


class Session:
    """What belongs to one sandbox for as long as this process works in it.

    ``parent`` is the checkpoint that it is at, ``usage`` the tokens that its agent has counted so far.
    """

    def __init__(
        self,
        at: LocalSandbox,
        profile: AgentProfile,
        *,
        prefix: str,
        provider: str,
        model: str | None,
        logs: Path,
    ) -> None:
        self.at = at
        self.tag = f"{prefix}-{secrets.token_hex(8)}"
        self.timestamp = iso_of(SystemClock().now_us())
        self.parent: str | None = None
        self.usage: dict[str, Usage] | None = None
        self.is_paused = False
        self._profile = profile
        self._logs = logs
        self._meta = SessionMeta(
            tag=self.tag,
            provider=provider,
            agent=profile.name,
            model=model,
            sandbox_id=at.id,
            timestamp=self.timestamp,
        )
        self._log: SessionLog | None = None
        self._vault = Vault()
        self.link()

    @property
    def log(self) -> SessionLog:
        """Its log, which begins with the first run."""
        if self._log is None:
            self._log = SessionLog(self._logs, self._meta)
        return self._log

    @property
    def log_path(self) -> Path | None:
        """The file of its log, if there is one yet."""
        return None if self._log is None else self._log.path

    @property
    def goes_on(self) -> bool:
        """Whether the agent has a session of its own to go on with."""
        pattern = self._profile.sessions
        return pattern is not None and next(iter(self.at.home.glob(pattern)), None) is not None

    def link(self) -> None:
        """Let the agent read what its user signs in with."""
        self._vault.link(self._profile.credentials, source=Path.home(), home=self.at.home)

    def recorder(self, store: Store | None, *, model: str | None) -> Recorder:
        """What writes the next run into a timeline, if there is one."""
        meta = {"sandbox_id": self.at.id}
        if self.parent is not None:
            meta["parent_checkpoint"] = self.parent
        return Recorder(
            store,
            agent=self._profile.name,
            model=model,
            tag=self.tag,
            meta=meta,
            before=self.usage,
            goes_on=self.goes_on,
        )

    def flush(self) -> None:
        """Return when the log is written."""
        if self._log is not None:
            self._log.flush()

    def close(self) -> None:
        """End the log, and take the credentials away."""
        if self._log is not None:
            self._log.close()
        self._vault.close()


def check_prefix(prefix: str) -> str:
    """What tags of sessions begin with: a word that a file name can have in it."""
    try:
        return check_space(prefix)
    except InvalidInput:
        raise InvalidInput(
            f"session_tag_prefix={prefix!r} is not acceptable; use letters, digits, _ . and -, at most 120, "
            "and do not begin with a dot"
        ) from None
