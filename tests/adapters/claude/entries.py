"""Entries of the Claude Agent SDK's transcripts, for tests of its sessions."""

from __future__ import annotations

KEY = {"project_key": "proj", "session_id": "sess"}


def entry(uuid, **more):
    return {"type": "user", "uuid": uuid, **more}


def uuids(entries):
    return [each["uuid"] for each in entries]
