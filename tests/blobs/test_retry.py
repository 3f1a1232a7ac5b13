"""Retries: how often, how long, and what a conflict means after a lost response."""

from __future__ import annotations

import pytest

from treering.blobs.folder import FolderBlobs
from treering.blobs.retry import RetryingBlobs
from treering.errors import Busy, Conflict, NotFound, ReadOnly, StoreFull, Unreachable


class FlakyBlobs:
    """A real store whose next calls fail, before they take effect or after (as if the response was lost)."""

    def __init__(self, blobs, *failures):
        self.blobs = blobs
        self.failures = list(failures)
        self.calls = 0

    def __getattr__(self, name):
        found = getattr(self.blobs, name)
        return self._shaken(found) if callable(found) else found

    def _shaken(self, method):
        def call(*args, **options):
            self.calls += 1
            failure = self.failures.pop(0) if self.failures else None
            if isinstance(failure, Lost):
                method(*args, **options)
                raise Unreachable("the answer was lost")
            if failure is not None:
                raise failure
            return method(*args, **options)

        return call


class Lost:
    """The call succeeds, but its response is lost."""


class FakeTime:
    """A clock that advances only by sleeping, and jitter that is always the maximum."""

    def __init__(self):
        self.now = 100.0
        self.slept = []

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now += seconds

    def retrying(self, blobs, **options):
        return RetryingBlobs(
            blobs,
            monotonic=lambda: self.now,
            sleep=self.sleep,
            uniform=lambda _low, high: high,
            **options,
        )


@pytest.fixture
def fake_time():
    return FakeTime()


@pytest.fixture
def folder(tmp_path):
    return FolderBlobs(tmp_path)


def test_temporary_errors_are_retried(folder, fake_time):
    folder.put("one", b"1")
    flaky = FlakyBlobs(folder, Unreachable("down"), Busy("locked"))
    assert fake_time.retrying(flaky).get("one") == b"1"
    assert flaky.calls == 3


def test_the_delay_doubles_up_to_a_limit(folder, fake_time):
    flaky = FlakyBlobs(folder, *[Unreachable("down")] * 7)
    fake_time.retrying(flaky, first_wait_seconds=1, longest_wait_seconds=5).put("one", b"1")
    assert fake_time.slept == [1, 2, 4, 5, 5, 5, 5]


def test_the_delay_is_random_between_zero_and_the_limit(folder, fake_time):
    drawn = []
    blobs = RetryingBlobs(
        FlakyBlobs(folder, Unreachable("down"), Unreachable("down")),
        first_wait_seconds=1,
        sleep=fake_time.sleep,
        uniform=lambda low, high: drawn.append((low, high)) or 0.25,
    )
    blobs.put("one", b"1")
    assert drawn == [(0, 1), (0, 2)]
    assert fake_time.slept == [0.25, 0.25]


def test_at_the_deadline_the_last_error_is_raised(folder, fake_time):
    flaky = FlakyBlobs(folder, *[Unreachable(f"failure {number}") for number in range(1, 99)])
    with pytest.raises(Unreachable, match="failure 4") as caught:
        fake_time.retrying(flaky, deadline_seconds=10, first_wait_seconds=1).get("one")
    assert fake_time.slept == [1, 2, 4]
    assert caught.value.__notes__ == ["4 attempts in 7.0 s"]


@pytest.mark.parametrize("error", [NotFound, ReadOnly, StoreFull, Conflict])
def test_permanent_errors_are_raised_immediately(folder, fake_time, error):
    flaky = FlakyBlobs(folder, error("final"))
    with pytest.raises(error, match="final"):
        fake_time.retrying(flaky).put("one", b"1")
    assert (flaky.calls, fake_time.slept) == (1, [])


def test_every_call_is_retried(folder, fake_time):
    folder.put("one", b"1")
    calls = (
        lambda blobs: blobs.put("two", b"2"),
        lambda blobs: blobs.put("three", b"3", if_absent=True),
        lambda blobs: blobs.put_if("four", b"4", expect=None),
        lambda blobs: blobs.get("one"),
        lambda blobs: blobs.read("one"),
        lambda blobs: blobs.stat("one"),
        lambda blobs: blobs.list(),
        lambda blobs: blobs.delete(name for name in ["one"]),
    )
    for call in calls:
        flaky = FlakyBlobs(folder, Unreachable("down"))
        call(fake_time.retrying(flaky))
        assert flaky.calls == 2
    assert [info.name for info in folder.list()] == ["four", "three", "two"]


def test_a_lost_response_is_not_mistaken_for_a_lost_race(folder, fake_time):
    fake_time.retrying(FlakyBlobs(folder, Lost())).put("new", b"mine", if_absent=True)
    etag = fake_time.retrying(FlakyBlobs(folder, Lost())).put_if("ref", b"1", expect=None)
    etag = fake_time.retrying(FlakyBlobs(folder, Lost())).put_if("ref", b"2", expect=etag)
    assert folder.read("ref").data == b"2"
    assert folder.read("ref").etag == etag


def test_checking_whether_it_was_written_is_retried_too(folder, fake_time):
    flaky = FlakyBlobs(folder, Lost(), None, Unreachable("down"))
    fake_time.retrying(flaky).put_if("ref", b"1", expect=None)
    assert flaky.calls == 4


def test_a_lost_race_is_still_a_conflict(folder, fake_time):
    folder.put("ref", b"theirs")
    with pytest.raises(Conflict):
        fake_time.retrying(FlakyBlobs(folder, Unreachable("down"))).put_if("ref", b"mine", expect=None)
    with pytest.raises(Conflict):
        fake_time.retrying(FlakyBlobs(folder, Unreachable("down"))).put("ref", b"mine", if_absent=True)
    assert folder.get("ref") == b"theirs"


def test_without_a_failure_equal_bytes_are_a_conflict(folder, fake_time):
    folder.put("ref", b"same")
    with pytest.raises(Conflict):
        fake_time.retrying(folder).put("ref", b"same", if_absent=True)
