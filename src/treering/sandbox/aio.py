"""The sandbox for asyncio: the same methods, awaited. They run in threads, not in the event loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

from treering.bridge import Bridge
from treering.sandbox.sandbox import RunResult, Sandbox
from treering.sandbox.storage import DEFAULT_LIMIT, CheckpointInfo, SessionOutput

P = ParamSpec("P")
T = TypeVar("T")


class AsyncSandbox:
    """A `Sandbox` whose methods are awaited, with the same arguments.

    Cancelling the await of a run does not end the run; `kill` does.
    """

    def __init__(self, agent: Any = "claude", **options: Any) -> None:
        self._sandbox = Sandbox(agent, **options)
        self._bridge = Bridge(threads=2)

    async def run(
        self,
        prompt: str,
        *,
        from_: str | None = None,
        checkpoint_comment: str | None = None,
        background: bool = False,
    ) -> RunResult:
        """See `Sandbox.run`."""
        return await self._call(
            self._sandbox.run,
            prompt,
            from_=from_,
            checkpoint_comment=checkpoint_comment,
            background=background,
        )

    async def execute(
        self,
        command: Sequence[str],
        *,
        from_: str | None = None,
        checkpoint_comment: str | None = None,
        background: bool = False,
    ) -> RunResult:
        """See `Sandbox.execute`."""
        return await self._call(
            self._sandbox.execute,
            command,
            from_=from_,
            checkpoint_comment=checkpoint_comment,
            background=background,
        )

    async def wait(self) -> RunResult:
        """See `Sandbox.wait`."""
        return await self._call(self._sandbox.wait)

    async def checkpoint(self, *, comment: str | None = None) -> CheckpointInfo:
        """See `Sandbox.checkpoint`."""
        return await self._call(self._sandbox.checkpoint, comment=comment)

    async def list_checkpoints(
        self, *, limit: int = DEFAULT_LIMIT, tag: str | None = None
    ) -> list[CheckpointInfo]:
        """See `Sandbox.list_checkpoints`."""
        return await self._call(self._sandbox.list_checkpoints, limit=limit, tag=tag)

    async def download(
        self, checkpoint: str, files: str | Sequence[str], target: str | Path, *, overwrite: bool = False
    ) -> tuple[str, ...]:
        """See `Sandbox.download`."""
        return await self._call(self._sandbox.download, checkpoint, files, target, overwrite=overwrite)

    async def start(self) -> Self:
        """See `Sandbox.start`."""
        await self._call(self._sandbox.start)
        return self

    async def output(self) -> SessionOutput:
        """See `Sandbox.output`."""
        return await self._call(self._sandbox.output)

    async def download_output(
        self, target: str | Path, *, checkpoint: str | None = None, overwrite: bool = False
    ) -> tuple[str, ...]:
        """See `Sandbox.download_output`."""
        return await self._call(
            self._sandbox.download_output, target, checkpoint=checkpoint, overwrite=overwrite
        )

    async def pause(self) -> None:
        """See `Sandbox.pause`."""
        await self._call(self._sandbox.pause)

    async def resume(self) -> None:
        """See `Sandbox.resume`."""
        await self._call(self._sandbox.resume)

    async def kill(self) -> None:
        """See `Sandbox.kill`."""
        await self._call(self._sandbox.kill)

    async def set_session(self, sandbox_id: str) -> None:
        """See `Sandbox.set_session`."""
        await self._call(self._sandbox.set_session, sandbox_id)

    def get_session(self) -> str | None:
        """See `Sandbox.get_session`."""
        return self._sandbox.get_session()

    def get_session_tag(self) -> str | None:
        """See `Sandbox.get_session_tag`."""
        return self._sandbox.get_session_tag()

    def get_session_timestamp(self) -> str | None:
        """See `Sandbox.get_session_timestamp`."""
        return self._sandbox.get_session_timestamp()

    async def close(self) -> None:
        """See `Sandbox.close`."""
        await self._bridge.finish(self._sandbox.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.kill()
        finally:
            await self.close()

    async def _call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._bridge.call(function, *args, **kwargs)
