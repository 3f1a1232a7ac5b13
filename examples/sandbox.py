"""An agent works in a sandbox, and another machine goes on with nothing but the bucket.

    python examples/sandbox.py [STORAGE]

STORAGE is ``s3://bucket/prefix`` (keys as AWS has them), or a folder (without it, one that is made for this).
The "agent" is a shell script, so that this runs without a model; ``Sandbox("claude")`` and its like
take a prompt instead.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from treering.sandbox import Sandbox, StorageConfig, download_files, list_checkpoints

STEPS = (
    ("first draft", "echo 'Draft v1' > report.txt; echo 'wrote a draft' >> ~/notes.txt"),
    ("reviewed", "echo 'Draft v1, reviewed' > report.txt"),
    ("spoilt", "echo 'lorem ipsum' > report.txt"),
)


def main(storage: StorageConfig) -> None:
    """Three runs, and back to the second one."""
    with Sandbox("program", storage=storage, session_tag_prefix="example") as here:
        for comment, script in STEPS:
            done = here.execute(["sh", "-c", script], checkpoint_comment=comment)
            if done.checkpoint is None:
                sys.exit(f"no checkpoint: {done.warning or done.output}")

    # The sandbox is gone. All that is left is the storage.
    found = list_checkpoints(storage, limit=3)
    for each in found:
        print(f"{each.comment}: {each.files} files, after {_name(each.parent_id, found)}")
    reviewed = next(each for each in found if each.comment == "reviewed")

    with Sandbox("program", storage=storage) as elsewhere:
        again = elsewhere.execute(["cat", "report.txt"], from_=reviewed.id, checkpoint_comment="a new branch")
        print(f"restored: {again.output.strip()}")

    with tempfile.TemporaryDirectory() as folder:
        download_files(storage, "latest", "workspace/report.txt", folder)
        print(f"one file: {(Path(folder) / 'workspace' / 'report.txt').read_text().strip()}")


def _name(parent: str | None, found: list) -> str:
    return next((each.comment for each in found if each.id == parent), "nothing")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(StorageConfig(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as made:
            main(StorageConfig(Path(made) / "checkpoints"))
