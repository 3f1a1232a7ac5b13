"""Artifacts of Google ADK: versioned files that agents save.

An artifact is a list with two items for each version: its metadata, and its bytes or text. Equal contents
of 4 KiB or more are one object, whichever artifact they belong to. A ref names the list and the number of
versions. **Invariant:** a version is stored whole or not at all, and its number is never reused.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Final, Self

import msgspec
from google.adk.artifacts import artifact_util
from google.adk.artifacts.base_artifact_service import ArtifactVersion, BaseArtifactService, ensure_part
from google.adk.errors.input_validation_error import InputValidationError
from google.adk.platform import time as platform_time
from google.genai import types
from pydantic_core import to_jsonable_python

from treering.adapters.conversation import escape_part
from treering.adapters.shared import Opened, StoreOrUrl, checked, checked_namespace, json_for_models
from treering.core.batch import ABSENT, Draft, Expect
from treering.core.content import Content, list_address
from treering.core.encoding import decode, encode
from treering.core.ids import Scope, namespace_prefix, new_id
from treering.core.query import Erasure, each_ref
from treering.errors import Busy, ListMoved, RefMoved
from treering.store import Store

USER: Final = "user:"
"""Names that begin so are of the user, in whichever session."""
_ATTEMPTS: Final = 50
_REFERENCES: Final = 5
"""How many references to other artifacts are followed, as in the SDK."""


class TreeringArtifactService(BaseArtifactService):
    """ADK's artifact service on a treering store, a URL or a folder."""

    def __init__(self, store: StoreOrUrl | None = None, *, namespace: str = "") -> None:
        space = checked_namespace(namespace)
        self._opened = Opened(store)
        self._artifacts = Artifacts(self._opened.store, space)

    async def save_artifact(
        self,
        *,
        app_name: str,
        user_id: str,
        filename: str,
        artifact: types.Part | dict[str, Any],
        session_id: str | None = None,
        custom_metadata: dict[str, Any] | None = None,
    ) -> int:
        """Save the next version and return its number; the first one is 0."""
        path = ArtifactPath.of(app_name, user_id, session_id, filename)
        return await self._call(self._artifacts.save, path, ensure_part(artifact), custom_metadata or {})

    async def load_artifact(
        self,
        *,
        app_name: str,
        user_id: str,
        filename: str,
        session_id: str | None = None,
        version: int | None = None,
    ) -> types.Part | None:
        """Return a version (by default the newest), or ``None``; references are resolved."""
        path = ArtifactPath.of(app_name, user_id, session_id, filename)
        return await self._call(self._artifacts.load, path, version, session_id, _REFERENCES)

    async def list_artifact_keys(
        self, *, app_name: str, user_id: str, session_id: str | None = None
    ) -> list[str]:
        """List the names of a user's artifacts, and of a session's if given."""
        return await self._call(self._artifacts.names, app_name, user_id, session_id)

    async def delete_artifact(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> None:
        """Delete all versions, if the artifact exists."""
        await self._call(self._artifacts.delete, ArtifactPath.of(app_name, user_id, session_id, filename))

    async def list_versions(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> list[int]:
        """List the numbers of all versions."""
        path = ArtifactPath.of(app_name, user_id, session_id, filename)
        return list(range(await self._call(self._artifacts.count, path)))

    async def list_artifact_versions(
        self, *, app_name: str, user_id: str, filename: str, session_id: str | None = None
    ) -> list[ArtifactVersion]:
        """List the metadata of all versions."""
        path = ArtifactPath.of(app_name, user_id, session_id, filename)
        return await self._call(self._artifacts.versions, path)

    async def get_artifact_version(
        self,
        *,
        app_name: str,
        user_id: str,
        filename: str,
        session_id: str | None = None,
        version: int | None = None,
    ) -> ArtifactVersion | None:
        """Return the metadata of a version (by default the newest), or ``None``."""
        path = ArtifactPath.of(app_name, user_id, session_id, filename)
        return await self._call(self._artifacts.version, path, version)

    async def close(self) -> None:
        """Close the store, if it was opened here; a store that was passed in stays open."""
        await self._opened.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _call(self, function: Any, *args: Any) -> Any:
        return await self._opened.bridge.call(function, *args)


class ArtifactPath(msgspec.Struct, frozen=True, kw_only=True):
    """The owner and name of an artifact; ``session`` is ``None`` for an artifact of the user."""

    app: str
    user: str
    session: str | None
    name: str

    @classmethod
    def of(cls, app: str, user: str, session: str | None, name: str) -> ArtifactPath:
        """Return the path of an artifact; a name without ``user:`` needs a session."""
        for what, each in (("app_name", app), ("user_id", user), ("filename", name)):
            checked(each, f"{what} of an ADK artifact")
        if session is not None:
            checked(session, "session_id of an ADK artifact")
        if name.startswith(USER):
            return cls(app=app, user=user, session=None, name=name)
        if session is None:
            raise InputValidationError("Session ID must be provided for session-scoped artifacts.")
        return cls(app=app, user=user, session=session, name=name)

    @property
    def folder(self) -> str:
        """The common prefix of the refs and scopes of one owner's artifacts."""
        owner = "user" if self.session is None else f"session/{escape_part(self.session)}"
        return f"{escape_part(self.app)}/{escape_part(self.user)}/{owner}"

    def uri(self, version: int) -> str:
        """The URI by which other artifacts may refer to it."""
        return artifact_util.get_artifact_uri(self.app, self.user, self.name, version, self.session)


class _Versions(msgspec.Struct, frozen=True, kw_only=True):
    """The content of an artifact's ref: the list of its versions."""

    name: str
    list: str
    count: int


class Artifacts:
    """The artifacts of one namespace, as blocking code."""

    def __init__(self, store: Store, namespace: str) -> None:
        self._store = store
        self._engine = store.engine
        self._space = store.space
        self._namespace = namespace

    def save(self, path: ArtifactPath, part: types.Part, custom: dict[str, Any]) -> int:
        """Save the next version and return its number."""
        note, content = _encode_part(path, part)
        note["custom_metadata"] = to_jsonable_python(custom, serialize_unknown=True)
        scope = str(Scope(self._namespace, "adk-artifact", path.folder))
        for _ in range(_ATTEMPTS):
            stored, expect = self._versions_ref(path)
            known = stored or _Versions(name=path.name, list=new_id(), count=0)
            draft = Draft(self._space)
            draft.append(
                known.list,
                encode(note | {"created": platform_time.get_time()}),
                content,
                scope=scope,
                at=2 * known.count,
            )
            draft.set_ref(
                self._ref(path),
                msgspec.json.encode(msgspec.structs.replace(known, count=known.count + 1)),
                scope=scope,
                expect=expect,
                links=(list_address(known.list),),
            )
            try:
                self._engine.commit(draft.batch())
            except (RefMoved, ListMoved):
                continue
            return known.count
        raise Busy(f"artifact {path.name!r} has too many concurrent writers; try again")

    def load(
        self, path: ArtifactPath, version: int | None, session: str | None, references: int
    ) -> types.Part | None:
        """Return a version, following at most this many references."""
        stored, _ = self._versions_ref(path)
        place = _place(stored, version)
        if stored is None or place is None:
            return None
        note, content = self._read(stored, place, 2)
        part = _put_together(decode(note), content)
        if artifact_util.is_artifact_ref(part) and part.file_data is not None:
            target = artifact_util.resolve_artifact_reference(
                file_uri=part.file_data.file_uri or "",
                app_name=path.app,
                user_id=path.user,
                session_id=session,
                remaining_depth=references,
            )
            there = ArtifactPath.of(target.app_name, target.user_id, target.session_id, target.filename)
            return self.load(there, target.version, target.session_id, references - 1)
        return None if _is_removed(part) else part

    def names(self, app: str, user: str, session: str | None) -> list[str]:
        """Return the names of a user's and a session's artifacts, sorted."""
        wanted = [ArtifactPath(app=app, user=user, session=None, name="")]
        if session is not None:
            wanted.append(ArtifactPath(app=app, user=user, session=session, name=""))
        found: list[str] = []
        for path in wanted:
            refs = each_ref(self._engine, self._space, self._ref(path))
            found += [_decoded(each.value).name for each in refs]
        return sorted(found)

    def count(self, path: ArtifactPath) -> int:
        """Return the number of versions."""
        stored, _ = self._versions_ref(path)
        return 0 if stored is None else stored.count

    def versions(self, path: ArtifactPath) -> list[ArtifactVersion]:
        """List the metadata of all versions."""
        stored, _ = self._versions_ref(path)
        return [] if stored is None else [self._known(path, stored, place) for place in range(stored.count)]

    def version(self, path: ArtifactPath, version: int | None) -> ArtifactVersion | None:
        """Return the metadata of one version (``None``: the newest)."""
        stored, _ = self._versions_ref(path)
        place = _place(stored, version)
        return None if stored is None or place is None else self._known(path, stored, place)

    def delete(self, path: ArtifactPath) -> None:
        """Delete all versions and the content that only they have."""
        stored, _ = self._versions_ref(path)
        if stored is not None:
            self._engine.erase(self._space, Erasure(refs=(self._ref(path),), lists=(stored.list,)))

    def _known(self, path: ArtifactPath, stored: _Versions, place: int) -> ArtifactVersion:
        note = decode(self._read(stored, place, 1)[0])
        return ArtifactVersion(
            version=place,
            canonical_uri=path.uri(place),
            custom_metadata=note["custom_metadata"],
            create_time=note["created"],
            mime_type=note["mime_type"],
        )

    def _read(self, stored: _Versions, place: int, count: int) -> list[Content]:
        return self._engine.read_list(self._space, stored.list, 2 * place, 2 * place + count)

    def _versions_ref(self, path: ArtifactPath) -> tuple[_Versions | None, Expect]:
        name = self._ref(path)
        ref = self._engine.refs(self._space, [name]).get(name)
        return (None, ABSENT) if ref is None else (_decoded(ref.value), ref.version)

    def _ref(self, path: ArtifactPath) -> str:
        return f"adk/{namespace_prefix(self._namespace)}artifact/{path.folder}/{escape_part(path.name)}"


def _place(stored: _Versions | None, version: int | None) -> int | None:
    count = 0 if stored is None else stored.count
    place = count - 1 if version is None else version
    return place if 0 <= place < count else None


def _decoded(value: bytes) -> _Versions:
    return msgspec.json.decode(value, type=_Versions)


def _encode_part(path: ArtifactPath, part: types.Part) -> tuple[dict[str, Any], Content]:
    """Return a part's metadata as JSON, and its content."""
    blob = part.inline_data
    if blob is not None:
        content, mime_type, left_out = Content("bytes", blob.data or b""), blob.mime_type, "inline_data"
    elif part.text is not None:
        content, mime_type, left_out = encode(part.text), "text/plain", "text"
    elif part.file_data is not None:
        content, mime_type, left_out = Content("bytes", b""), _mime_type(path, part), ""
    else:
        raise InputValidationError("Not supported artifact type.")
    plain: dict[str, Any] = part.model_dump(mode="json", exclude_none=True, exclude={left_out})
    if blob is not None:
        plain["inline_data"] = blob.model_dump(mode="json", exclude_none=True, exclude={"data"})
    return {"part": plain, "mime_type": mime_type}, content


def _put_together(note: dict[str, Any], content: Content) -> types.Part:
    part = types.Part.model_validate_json(json_for_models(note["part"]))
    if content.kind != "bytes":
        part.text = decode(content)
    elif part.inline_data is not None:
        part.inline_data.data = content.data
    return part


def _mime_type(path: ArtifactPath, part: types.Part) -> str | None:
    """Return the type of an external file; that of a referenced artifact is known only when it is loaded."""
    if part.file_data is None or not artifact_util.is_artifact_ref(part):
        return part.file_data and part.file_data.mime_type
    target = artifact_util.parse_artifact_uri(part.file_data.file_uri or "")
    if target is None:
        raise InputValidationError(f"Invalid artifact reference URI: {part.file_data.file_uri}")
    artifact_util.validate_artifact_reference_scope(
        app_name=path.app, user_id=path.user, session_id=path.session, parsed_uri=target
    )
    return None


def _is_removed(part: types.Part) -> bool:
    """Whether a version is the marker that the SDK's rewind saves for a removed artifact."""
    blob = part.inline_data
    return blob is not None and not blob.data and blob.mime_type == "application/octet-stream"
