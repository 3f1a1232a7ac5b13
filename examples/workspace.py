"""An agent's files and conversation, kept as one checkpoint and brought back together.

A scripted agent writes a report, then ruins it. Its thread is forked at the good checkpoint, into a second
folder, and rewound in the first. Run it: ``python examples/workspace.py``.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import treering


def write_report(work: Path, thread: treering.store.Thread) -> str:
    """The agent's first turn: two tools, a snapshot with each."""
    with thread.workspace.files(work) as files:
        files.write("/report.md", "# Refunds\n\n3 refunds were sent.\n")
        thread.checkpoint([{"role": "user", "content": "Write the report."}], workspace=work)
        files.edit("/report.md", "3 refunds", "12 refunds")
        done = thread.checkpoint(
            [*thread.load().messages, {"role": "assistant", "content": "It says 12 now."}],
            workspace=work,
            note="the good one",
        )
    return done.id


def ruin_it(work: Path, thread: treering.store.Thread) -> None:
    """The second turn goes wrong, in the files and in the conversation."""
    with thread.workspace.files(work) as files:
        files.delete("/report.md")
        files.write("/drafts/tmp.md", "what was I doing?\n")
    thread.checkpoint(
        [*thread.load().messages, {"role": "assistant", "content": "I tidied up!"}], workspace=work
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as place, treering.open(Path(place) / "store") as store:
        work = Path(place) / "work"
        work.mkdir()
        thread = store.thread("support/alice")
        good = write_report(work, thread)
        ruin_it(work, thread)

        print("What went wrong:")
        for change in thread.diff(good, thread.head).files:
            print(f"  {change.change:<8} {change.path}")

        bolder = thread.fork("support/alice-bolder", at=good)
        bolder.head.restore(Path(place) / "work-2")
        print("The fork has:", (Path(place) / "work-2" / "report.md").read_text().split("\n")[2])

        thread.at(good).restore(work, delete=True)
        thread.rewind(good)
        print("Rewound:", sorted(path.name for path in work.iterdir()), thread.head.note)
        print("Everything checks out:", store.verify().ok)


if __name__ == "__main__":
    main()
