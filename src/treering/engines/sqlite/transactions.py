"""Transactions of one SQLite database, and when fresh commits settle around them (see `fresh`).

Whoever reads lets them settle first, so every commit that was acknowledged before is seen. Whoever writes
does so in a transaction of its own, before the one that it came for. **Invariant:** no statement but those
of `fresh` and `shortcut` ever runs while something is fresh that was there when its transaction began.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from treering.engines.sqlite.failures import FAILURES, translated
from treering.engines.sqlite.fresh import settle
from treering.engines.sqlite.patience import BUSY_SECONDS, patiently
from treering.errors import ReadOnly, StoreFull

if TYPE_CHECKING:
    from types import TracebackType

    from treering.engines.sqlite.database import SqliteDatabase
    from treering.engines.sqlite.session import SqliteSession

FEW: Final = 4
PATIENCE: Final = 8
"""After a reader had to let fewer than `FEW` commits settle, so many go straight into their tables."""


class Reading:
    """A read transaction; one question needs none (``begins=False``)."""

    __slots__ = ("_begins", "_database", "_session", "_writing")

    def __init__(self, database: SqliteDatabase, *, begins: bool) -> None:
        self._database = database
        self._begins = begins
        self._writing: Writing | None = None

    def __enter__(self) -> SqliteSession:
        database = self._database
        try:
            session = database.take_reader()
            try:
                has_settled = self._let_settle(session)
                if has_settled and self._begins:
                    session.tell("BEGIN")
            except BaseException:
                session.connection.close()
                raise
        except FAILURES as error:
            raise translated(error, str(database.path)) from error
        if not has_settled:
            database.give_back(session)
            return self._enter_unsettled()
        self._session = session
        return session

    def _let_settle(self, session: SqliteSession) -> bool:
        """Let what is fresh settle; ``False`` where it cannot be changed.

        What comes meanwhile was acknowledged after this began: a busy writer keeps nobody from reading.
        """
        database = self._database
        if session.is_fresh():
            database.patience = 0 if session.is_fresh(FEW - 1) else PATIENCE
            try:
                database.settle()
            except (ReadOnly, StoreFull):
                return False
        return True

    def _enter_unsettled(self) -> SqliteSession:
        """Read where nothing can be written: in a transaction that settles and is then given up."""
        self._writing = Writing(self._database, settles=False)
        session = self._writing.__enter__()
        try:
            settle(session, self._database.fresh)
        except BaseException as error:
            self._writing.__exit__(type(error), error, error.__traceback__)
            raise
        return session

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._writing is not None:
            self._writing.give_up()
        else:
            self._end(failed=kind is not None)
        if error is not None:
            self._database.explain(error)

    def _end(self, *, failed: bool) -> None:
        session = self._session
        try:
            if session.connection.in_transaction:  # some errors end it
                session.tell("ROLLBACK" if failed else "COMMIT")
        except FAILURES as failure:
            session.connection.close()
            raise translated(failure, str(self._database.path)) from failure
        self._database.give_back(session)


class Writing:
    """A write transaction: the only one in this database, of any process."""

    __slots__ = ("_database", "_session", "_settles")

    def __init__(self, database: SqliteDatabase, *, settles: bool = True) -> None:
        self._database = database
        self._settles = settles
        self._session: SqliteSession | None = None

    def __enter__(self) -> SqliteSession:
        database = self._database
        database.hold()
        try:
            self._session = session = database.write_session()
            database.turns.enter(BUSY_SECONDS)
            patiently(session.begin)
            if self._settles and session.is_fresh():
                self._settle(session)
        except BaseException as error:
            self.give_up()
            if isinstance(error, FAILURES):
                raise translated(error, str(database.path)) from error
            raise
        return session

    def _settle(self, session: SqliteSession) -> None:
        """First, and by itself: while a long transaction runs, readers shall find nothing to wait for."""
        session.roll_back()
        self._database.settle_relaxed(session)
        patiently(session.begin)
        if session.is_fresh():  # of someone who does not wait for turns
            settle(session, self._database.fresh)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        database = self._database
        try:
            if kind is None and self._session is not None:
                self._session.commit()
        except FAILURES as failure:
            raise translated(failure, str(database.path)) from failure
        finally:
            self.give_up()
        if error is not None:
            database.explain(error)

    def give_up(self) -> None:
        """Roll back what is not committed, and let others write."""
        try:
            if self._session is not None:
                self._session.roll_back()
        finally:
            try:
                self._database.turns.leave()
            finally:
                self._database.let_go()
