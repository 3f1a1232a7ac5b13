"""The TypeScript client: it compiles strictly, and works against a real server with Node.js."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

import treering
from tests.server.test_serving import Server
from tests.servers.npm import NODE
from treering.server.auth import Keys

CLIENT = Path(__file__).resolve().parents[2] / "clients" / "typescript"
PACKAGE = json.loads((CLIENT / "package.json").read_text("utf-8"))
NODE_TYPES = "24.0.0"
EXAMPLE = re.compile(r"^```ts\n(?P<code>.*?)^```\n\n```text\n(?P<output>.*?)^```\n", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def compiler(npm):
    return npm("typescript", PACKAGE["devDependencies"]["typescript"]) / "typescript" / "bin" / "tsc"


@pytest.fixture(scope="module")
def built(compiler, npm, tmp_path_factory):
    """The compiled package as `node_modules/treering`, the compiled tests, and the example of the README."""
    folder = tmp_path_factory.mktemp("typescript")
    package = folder / "node_modules" / "treering"
    compiled(compiler, "-p", CLIENT, "--outDir", package / "dist")
    (package / "package.json").write_text(json.dumps(PACKAGE), encoding="utf-8")
    (folder / "package.json").write_text('{"type": "module"}', encoding="utf-8")
    found = EXAMPLE.search((CLIENT / "README.md").read_text("utf-8"))
    assert found is not None
    (folder / "example.ts").write_text(found["code"], encoding="utf-8")
    (folder / "client.test.ts").write_bytes((CLIENT / "test" / "client.test.ts").read_bytes())
    own = json.loads((CLIENT / "tsconfig.json").read_text("utf-8"))["compilerOptions"]
    assert own["strict"]
    options = {
        **own,
        "types": ["node"],
        "rootDir": ".",
        "outDir": ".",
        "declaration": False,
        "skipLibCheck": True,
    }
    options["typeRoots"] = [str(npm("@types/node", NODE_TYPES) / "@types")]
    config = {"compilerOptions": options, "files": ["client.test.ts", "example.ts"]}
    (folder / "tsconfig.json").write_text(json.dumps(config), encoding="utf-8")
    compiled(compiler, "-p", folder)
    return folder


def compiled(compiler, *arguments):
    command = [str(NODE), str(compiler), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def node(folder, *arguments, **environment):
    return subprocess.run(
        [str(NODE), *arguments],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


@pytest.mark.parametrize("has_keys", [False, True], ids=["without keys", "with a key"])
def test_it_works_against_a_server(built, tmp_path, has_keys):
    environment = {}
    if has_keys:
        with treering.open(tmp_path / "store") as store:
            keys = Keys(store.engine, clock=store.clock)
            environment["TREERING_TEST_KEY"] = keys.create(project="acme", scope="admin").token
    with Server(tmp_path / "store") as server:
        done = node(built, "--test", "client.test.js", TREERING_TEST_URL=server.url, **environment)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_example_prints_what_the_readme_shows(built, tmp_path):
    found = EXAMPLE.search((CLIENT / "README.md").read_text("utf-8"))
    assert found is not None
    with Server(tmp_path / "store") as server:
        example = (built / "example.js").read_text("utf-8").replace("http://127.0.0.1:8787", server.url)
        (built / "here.mjs").write_text(example, encoding="utf-8")
        done = node(built, "here.mjs")
    assert (done.stdout, done.returncode) == (found["output"], 0), done.stderr


@pytest.mark.parametrize(
    "code",
    [
        'await client.call("list_runs", { query: { limit: "ten" } });',
        'await client.call("get_run", {});',
        'await client.call("no_such_operation", {});',
        'await client.threads.get("t").resume({ decision: "perhaps" });',
    ],
)
def test_wrong_calls_do_not_compile(built, compiler, code):
    text = f'import {{ Treering }} from "treering";\nconst client = new Treering();\n{code}\n'
    file = built / f"wrong{abs(hash(code))}.ts"
    config = json.loads((built / "tsconfig.json").read_text("utf-8"))
    file.write_text(text, encoding="utf-8")
    wrong = built / f"{file.stem}.json"
    wrong.write_text(json.dumps({**config, "files": [file.name]}), encoding="utf-8")
    command = [str(NODE), str(compiler), "-p", str(wrong), "--noEmit"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert f"{file.name}(3," in done.stdout
