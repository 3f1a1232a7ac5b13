"""Keys, scopes and projects: who gets in, and that nobody sees or changes another one's data."""

import gzip
import re

import pytest
from starlette.testclient import TestClient

from treering.core.batch import Draft
from treering.errors import InvalidInput
from treering.server.app import create_app
from treering.server.auth import SCOPES, Gate, Keys
from treering.server.settings import Settings

ADDRESS = "http://127.0.0.1:8787"
CANARY = "canary-of-the-other-project"
NAME = "named-by-the-other-project"


@pytest.fixture
def served(store):
    return TestClient(create_app(store, Settings()), base_url=ADDRESS)


@pytest.fixture
def keys(store):
    return Keys(store.engine, clock=store.clock)


def bearer(token):
    return {"authorization": f"Bearer {token}"}


def test_a_key_is_needed_as_soon_as_there_is_one(served, keys):
    made = keys.create(scope="read")
    assert served.get("/runs").status_code == 401
    assert served.get("/metrics").status_code == 401
    assert served.get("/runs", headers=bearer(made.token)).status_code == 200
    assert served.get("/runs", headers={"x-api-key": made.token}).status_code == 200
    assert served.get("/healthz").status_code == 200


@pytest.mark.parametrize("token", ["x", "tr_", "tr_a_b", "tr_{id}_", "tr_{id}_{other}", "{token}x", "é"])
def test_no_other_token_gets_in_and_the_answer_says_nothing(served, keys, token):
    made = keys.create()
    wrong = token.format(id=made.key.id, other="0" * 64, token=made.token)
    answer = served.get("/runs", headers={"authorization": f"Bearer {wrong}".encode()})
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith("Bearer")
    assert made.key.digest not in answer.text


def test_a_secret_is_stored_nowhere(store, keys):
    secret = keys.create().token.rpartition("_")[2]
    values = [ref.value for ref in store.engine.scan_refs("treering.keys", "")]
    assert values
    assert not any(secret.encode() in value for value in values)


def test_a_revoked_key_is_turned_away_by_a_new_server(store, keys):
    made = keys.create()
    keys.create()
    keys.revoke(made.key.id)
    fresh = TestClient(create_app(store, Settings()), base_url=ADDRESS)
    assert fresh.get("/runs", headers=bearer(made.token)).status_code == 401


@pytest.mark.parametrize("scope", SCOPES)
def test_a_scope_opens_its_own_routes_and_those_below(served, keys, scope):
    token = keys.create(scope=scope).token
    allowed = SCOPES.index(scope)
    answers = [
        served.get("/runs", headers=bearer(token)),
        served.put("/state/k", json={"value": 1}, headers=bearer(token)),
        served.post("/store/verify", headers=bearer(token)),
    ]
    expected = [200 if needed <= allowed else 403 for needed in range(3)]
    assert [each.status_code for each in answers] == expected


def test_the_key_of_the_settings_works_in_its_project(store):
    app = create_app(store, Settings(api_key="chosen-0123456789", project="default"))
    client = TestClient(app, base_url=ADDRESS)
    assert client.get("/runs").status_code == 401
    assert client.get("/runs", headers=bearer("chosen-0123456789")).status_code == 200
    assert client.get("/runs", headers=bearer("chosen2")).status_code == 401


def test_a_page_of_another_site_gets_nothing(served):
    assert served.get("/runs", headers={"origin": "https://evil.example"}).status_code == 403
    assert served.get("/runs", headers={"host": "rebound.example"}).status_code == 403
    own = served.get("/runs", headers={"origin": ADDRESS})
    assert own.status_code == 200
    assert "access-control-allow-origin" not in own.headers


def test_others_are_let_in_only_with_a_key(store, keys):
    settings = Settings(host="0.0.0.0")
    with pytest.raises(InvalidInput, match="treering keys create"):
        Gate(store.engine, settings, clock=store.clock).check_binding()
    keys.create()
    Gate(store.engine, settings, clock=store.clock).check_binding()


def test_too_many_calls_are_told_when_to_come_back(store):
    client = TestClient(create_app(store, Settings(calls_per_second=2)), base_url=ADDRESS)
    answers = [client.get("/runs") for _ in range(6)]
    assert [each.status_code for each in answers[:4]] == [200] * 4
    last = answers[-1]
    assert (last.status_code, int(last.headers["retry-after"]) >= 1) == (429, True)


def test_a_body_has_a_limit_before_and_after_decompression(store):
    client = TestClient(create_app(store, Settings(max_body=10_000)), base_url=ADDRESS)
    value = b'{"value": "' + b"0" * 20_000 + b'"}'
    packed = gzip.compress(value)
    assert len(packed) < 1_000
    json = {"content-type": "application/json"}
    assert client.put("/state/k", content=value, headers=json).status_code == 413
    assert client.put("/state/k", content=iter([value]), headers=json).status_code == 413
    bomb = client.put("/state/k", content=packed, headers=json | {"content-encoding": "gzip"})
    assert bomb.status_code == 413
    cut = client.put("/state/k", content=packed[:-20], headers=json | {"content-encoding": "gzip"})
    assert cut.status_code in {413, 422}
    small = gzip.compress(b'{"value": 1}')
    good = client.put("/state/k", content=small, headers=json | {"content-encoding": "gzip"})
    assert good.json()["value"] == 1


def test_no_route_crosses_projects(store, keys, tmp_path):
    """Every route, called by one project with the other one's ids, shows nothing and changes nothing."""
    app = create_app(store, Settings())
    client = TestClient(app, base_url=ADDRESS)
    victim = store.in_namespace("victim")
    names = _plant(victim, tmp_path)
    before = _content(victim)
    stranger = bearer(keys.create(project="stranger", scope="admin").token)
    victim_key = keys.create(project="victim", scope="admin")
    names["id"].append(victim_key.key.id)

    tried = 0
    for path, operations in client.get("/openapi.json").json()["paths"].items():
        for method, operation in operations.items():
            if path == "/live":
                continue  # it never ends; test_live follows as a stranger
            body = _body(operation, client)
            for filled in _filled(path, names):
                for query in ("", f"?{_required(operation)}"):
                    answer = client.request(
                        method, filled + query, headers=stranger, json=body if body is not None else None
                    )
                    tried += 1
                    assert CANARY not in answer.text, f"{method} {filled}{query}"
                    assert victim_key.key.digest not in answer.text
                    assert answer.status_code < 500, f"{method} {filled}: {answer.text}"
    assert tried > 100
    assert _content(victim) == before
    assert client.get("/runs", headers=bearer(victim_key.token)).status_code == 200


def _plant(victim, tmp_path):
    with victim.run(agent=CANARY, thread=NAME) as run:
        run.message("user", CANARY)
    victim.flush()
    checkpoint = victim.thread(NAME).checkpoint(messages=[CANARY], state={"c": CANARY})
    victim.memory.save(NAME, CANARY)
    victim.state.set(NAME, CANARY)
    task = victim.schedules.interval(3600, prompt=CANARY)
    (tmp_path / "ws").mkdir()
    (tmp_path / "ws" / "file.txt").write_text(CANARY)
    snapshot = victim.workspace.snapshot(tmp_path / "ws")
    spans = [each.ref.get("message_id") for each in victim.timeline.of_run(run.id).events]
    return {
        "id": [run.id, NAME, task.id, snapshot],
        "span": [each for each in spans if each],
        "checkpoint": [checkpoint.id],
        "key": [NAME],
    }


def _content(victim):
    return (
        victim.thread(NAME).load().to_dict(),
        victim.memory.get(NAME),
        victim.state.entry(NAME),
        victim.schedules.list_tasks(all=True),
        [each.id for each in victim.runs.each()],
    )


def _filled(path, names):
    parts = re.findall(r"\{(\w+)\}", path)
    if not parts:
        return [path]
    if len(parts) == 1:
        return [path.replace("{" + parts[0] + "}", each) for each in names.get(parts[0], names["id"])]
    return [
        path.replace("{id}", one).replace("{" + parts[1] + "}", other)
        for one in names["id"]
        for other in names.get(parts[1], names["id"])
    ]


def _required(operation):
    given = {"a": "1", "b": "1", "path": "file.txt", "namespace": ""}
    named = [each["name"] for each in operation["parameters"] if each["in"] == "query"]
    return "&".join(f"{name}={given[name]}" for name in named if name in given)


def _body(operation, client):
    if "requestBody" not in operation:
        return None
    samples = {
        "content": "x", "value": 1, "to": "0", "new_id": "fork", "decision": "approve", "version": 1,
        "prompt": "p", "type": "interval",
    }  # fmt: skip
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    if "$ref" in schema:
        schema = client.get("/openapi.json").json()["components"]["schemas"][
            schema["$ref"].rpartition("/")[2]
        ]
    return {name: samples[name] for name in schema.get("required", ()) if name in samples}


def test_a_key_for_a_space_of_treerings_own_is_refused(keys):
    with pytest.raises(InvalidInput):
        keys.create(project="treering.keys")
    with pytest.raises(InvalidInput):
        keys.create(scope="root")


WEAK = [
    "",
    " ",
    "x",
    "short",
    "a" * 40,
    "abcabcabcabcabcabc",
    "sixteen letters of it",
    "\u00e9" * 20,
    "tab\tbed-0123456789",
]


@pytest.mark.parametrize("key", WEAK)
def test_a_server_takes_no_empty_and_no_weak_key(key):
    with pytest.raises(InvalidInput, match=r"the API key is (empty|too weak)"):
        Settings(api_key=key)


@pytest.mark.parametrize("project", ["side.4.acme.x", "side.", "treering.keys"])
def test_no_project_is_named_like_a_namespace_of_another_one(served, keys, store, project):
    with pytest.raises(InvalidInput, match="reserved"):
        keys.create(project=project)
    made = keys.create(project="acme")
    ref = f"key/{made.key.id}"
    (stored,) = store.engine.refs("treering.keys", [ref]).values()
    draft = Draft("treering.keys")  # one that an earlier version would have made
    draft.set_ref(ref, stored.value.replace(b'"acme"', f'"{project}"'.encode()), scope="s")
    store.engine.commit(draft.batch())
    answer = served.get("/runs", headers=bearer(made.token))
    assert answer.status_code == 403
    assert "reserved name" in answer.json()["detail"]
