"""The OpenAPI document is true: made-up calls, right and wrong, get what it promises."""

import os
import re
from importlib import import_module

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

import treering
from tests.mutations import SECONDS
from treering.server import parameters
from treering.server.app import ROUTES, create_app
from treering.server.settings import Settings


@pytest.fixture(scope="module")
def document():
    store = treering.open("memory:")
    with store.run(agent="planner", thread="t") as run:
        run.message("user", "hello", model="m", usage={"input": 1})
    store.flush()
    store.thread("t").checkpoint(messages=["a"], state={"b": 1})
    app = create_app(store, Settings(hosts=("testserver",), calls_per_second=1e9))
    return schemathesis.openapi.from_asgi("/openapi.json", app)


CHECKS = [
    not_a_server_error,
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
    negative_data_rejection,
]
ENDPOINTS = [
    each
    for name in ROUTES
    for each in getattr(import_module(f"treering.server.routes.{name}"), "ENDPOINTS", ())
    if not each.raw_body and each.path != "/live"  # which never ends
]
RIGHT = [(GenerationMode.POSITIVE, each.method, each.path) for each in ENDPOINTS]
WRONG = [(GenerationMode.NEGATIVE, each.method, each.path) for each in ENDPOINTS if each.query or each.body]


def make_up_calls(document, mode, method, path, count):
    calls = document[path][method].as_strategy(generation_mode=mode)

    @settings(max_examples=count, deadline=None, suppress_health_check=list(HealthCheck))
    @given(calls)
    def answered(case):
        case.call_and_validate(checks=CHECKS)

    answered()


@pytest.mark.parametrize("mode, method, path", RIGHT + WRONG)
def test_made_up_calls(document, mode, method, path):
    make_up_calls(document, mode, method, path, 5)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mode, method, path", RIGHT + WRONG)
def test_many_made_up_calls(document, mode, method, path):
    make_up_calls(document, mode, method, path, int(os.environ.get(SECONDS, "3600")) // 18)


def test_every_operation_has_words_and_a_name_of_its_own(document):
    operations = [each for path in document.raw_schema["paths"].values() for each in path.values()]
    assert all(each["summary"].endswith(".") for each in operations)
    names = [each["operationId"] for each in operations]
    assert len(set(names)) == len(names)


def test_every_parameter_is_described(document):
    described = [
        (operation["operationId"], parameter["name"], parameter["description"])
        for methods in document.raw_schema["paths"].values()
        for operation in methods.values()
        for parameter in operation["parameters"]
    ]
    assert len(described) > 200
    for operation, name, description in described:
        assert description.endswith("."), (operation, name)
        assert len(description) > len(name) + 10, (operation, name)


def test_no_description_is_left_over():
    used: set[object] = set()
    endpoints = [
        each for name in ROUTES for each in import_module(f"treering.server.routes.{name}").ENDPOINTS
    ]
    for each in endpoints:
        names = re.findall(r"\{(\w+)\}", each.path)
        names += () if each.query is None else each.query.__struct_fields__
        for name in names:
            places = ((each.name, name), parameters.OF_OPERATION), ((each.tag, name), parameters.OF_TAG)
            used.add(next((key for key, known in places if key in known), name))
    known = {*parameters.EVERYWHERE, *parameters.OF_TAG, *parameters.OF_OPERATION}
    assert used == known
