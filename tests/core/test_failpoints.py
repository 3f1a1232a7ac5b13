"""Failpoints do nothing until they are armed, and then exactly the given action."""

import errno
import os
import signal
import subprocess
import sys
import time

import pytest

from treering.core import failpoints
from treering.core.failpoints import EXIT_CODE, Injected, arm, armed, declared, disarm, hits
from treering.errors import InvalidInput

POINT = failpoints.declare("test.point", "a place in the tests")
OTHER = failpoints.declare("test.other", "another place in the tests")


@pytest.fixture(autouse=True)
def _disarmed():
    yield
    disarm()


def test_nothing_happens_until_it_is_armed():
    failpoints.hit(POINT)
    failpoints.hit("no one has ever declared this, and nobody looks")


def test_an_armed_point_raises_and_others_do_not():
    with armed(POINT, "raise"):
        failpoints.hit(OTHER)
        for _ in range(2):
            with pytest.raises(Injected, match=r"test\.point"):
                failpoints.hit(POINT)
    failpoints.hit(POINT)


def test_an_os_error_can_be_injected():
    with armed(POINT, "raise:ENOSPC"), pytest.raises(OSError, match=r"test\.point") as caught:
        failpoints.hit(POINT)
    assert caught.value.errno == errno.ENOSPC


def test_only_the_nth_hit_counts():
    arm(POINT, "raise:3")
    failpoints.hit(POINT)
    failpoints.hit(POINT)
    with pytest.raises(Injected):
        failpoints.hit(POINT)
    failpoints.hit(POINT)
    assert hits(POINT) == 4
    arm(POINT, "raise:EIO:2")
    failpoints.hit(POINT)
    with pytest.raises(OSError, match=r"test\.point"):
        failpoints.hit(POINT)


def test_a_point_can_wait_or_just_count(monkeypatch):
    slept = []
    monkeypatch.setattr(time, "sleep", slept.append)
    arm(POINT, "sleep:30:2")
    arm(OTHER, "count")
    failpoints.hit(POINT)
    failpoints.hit(OTHER)
    assert slept == []
    failpoints.hit(POINT)
    assert slept == [0.03]
    assert (hits(POINT), hits(OTHER), hits("never armed")) == (2, 1, 0)


def test_an_unknown_name_is_rejected():
    with pytest.raises(InvalidInput, match=r"test\.piont"):
        arm("test.piont", "raise")
    arm(POINT, "raise")
    with pytest.raises(InvalidInput, match=r"test\.piont"):
        failpoints.hit("test.piont")


@pytest.mark.parametrize(
    "action", ["", "explode", "raise:ENOSUCH", "sleep", "sleep:x", "kill:x", "raise:1:2", "count:"]
)
def test_an_invalid_action_is_rejected(action):
    with pytest.raises(InvalidInput, match="invalid action"):
        arm(POINT, action)


def test_a_name_has_one_description():
    assert declared()["test.point"] == "a place in the tests"
    assert failpoints.declare("test.point", "a place in the tests") == "test.point"
    with pytest.raises(InvalidInput, match="already declared"):
        failpoints.declare("test.point", "something else")


CHILD = """
from treering.core.failpoints import declare, hit
name = declare("child.point", "in a child process")
for number in range(5):
    print(number, flush=True)
    hit(name)
"""


@pytest.mark.parametrize(
    "action, code, printed",
    [("kill:3", -signal.SIGKILL, 3), ("exit", EXIT_CODE, 1), ("raise:2", 1, 2), ("count", 0, 5)],
)
def test_a_child_process_is_armed_by_its_environment(action, code, printed):
    environment = os.environ | {failpoints.ENVIRONMENT: f" child.point={action} , child.other=raise"}
    child = subprocess.run(
        [sys.executable, "-c", CHILD], env=environment, capture_output=True, text=True, check=False
    )
    assert child.returncode == code
    assert len(child.stdout.split()) == printed


def test_a_malformed_environment_is_rejected():
    with pytest.raises(InvalidInput, match="name=action"):
        failpoints.arm_from("test.point")


def test_a_function_is_called_at_every_hit():
    called: list[int] = []
    failpoints.arm("test.point", lambda: called.append(failpoints.hits("test.point")))
    failpoints.hit("test.point")
    failpoints.hit("test.point")
    failpoints.disarm("test.point")
    failpoints.hit("test.point")
    assert called == [1, 2]
