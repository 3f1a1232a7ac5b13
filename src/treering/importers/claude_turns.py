"""One run of Claude Code: from its lines to messages, tool calls and agents below agents.

The lines of one answer are put together before they are written, since each of them holds one block and
they may stand apart: a tool may have answered before the last block is there. A subagent has a span of its
own below the call that began it, and its lines go there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from treering.importers.claude_lines import SYNTHETIC, ClaudeLine, claude_usage
from treering.importers.tokens import added

if TYPE_CHECKING:
    from treering.core.batch import Usage
    from treering.importers.scribe import Scribe
    from treering.views.recording.spans import Place

MAIN: Final = ""
"""The chain of the agent itself; subagents' chains have their names."""
FINAL: Final = frozenset({"end_turn", "stop_sequence", "max_tokens", "refusal"})
"""Why an answer ended, where no tool is to be called after it."""


class Answer:
    """An answer of the model while its lines come in."""

    def __init__(self, id: str, ts_us: int) -> None:
        self.id = id
        self.ts_us = ts_us
        self.model: str | None = None
        self.blocks: list[dict[str, Any]] = []
        self.usage: Usage | None = None
        self.stop_reason: str | None = None
        self.metadata: dict[str, Any] = {}

    @property
    def is_whole(self) -> bool:
        """Whether nothing more can come. After a thought, and before a tool has answered, more may."""
        return self.stop_reason in FINAL and bool(self.blocks) and self.blocks[-1].get("type") == "text"

    def add(self, line: ClaudeLine) -> None:
        """One more line of it; the fullest count of tokens is the last one."""
        message = line.message
        if message is None:
            return
        self.blocks += line.blocks
        self.model = message.model if message.model != SYNTHETIC else None
        self.stop_reason = message.stop_reason or self.stop_reason
        usage = claude_usage(message.usage)
        if usage is not None and (self.usage is None or usage.output >= self.usage.output):
            self.usage = usage
        tier = (message.usage or {}).get("service_tier")
        if isinstance(tier, str) and tier != "standard":
            self.metadata["service_tier"] = tier
        if message.model == SYNTHETIC:
            self.metadata["synthetic"] = True


class _Chain:
    """One agent's lines: where they go, and the answer that is still growing."""

    def __init__(self, place: Place | None) -> None:
        self.place = place
        self.answer: Answer | None = None
        self.last_us = 0


class ClaudeTurn:
    """Takes the lines of a run and lets a scribe write them down."""

    def __init__(self, scribe: Scribe) -> None:
        self.scribe = scribe
        self.counted: dict[str, Usage] = {}
        """Tokens that were told of by messages, by model."""
        self.last_us = 0
        """When something was last done; what is merely said to the agent behind that is not part of it."""
        self._chains: dict[str, _Chain] = {MAIN: _Chain(None)}
        self._agents: dict[str, str] = {}

    def take(self, line: ClaudeLine, *, ts_us: int, chain: str = MAIN) -> None:
        """A line of a conversation."""
        at = self._chains.get(chain) or self._chains[MAIN]
        at.last_us = max(at.last_us, ts_us)
        if not self.last_us or line.type == "assistant" or line.results:
            self.last_us = max(self.last_us, ts_us)
        if line.type == "assistant":
            self._answer(at, line, ts_us)
        elif line.type == "user":
            self._said(at, line, ts_us)

    def chain(self, name: str, *, agent: str, tool: str | None, ts_us: int) -> str:
        """The chain of a subagent: below the call ``tool`` if that is known, else below the run."""
        if name not in self._chains:
            above = self.scribe.place_of(tool) if tool is not None else None
            place = self.scribe.open(f"agent-{name}", agent, kind="agent", place=above, ts_us=ts_us)
            self._chains[name] = _Chain(place)
            self._agents[name] = f"agent-{name}"
        return name

    def end_chain(self, name: str) -> None:
        """A subagent is done."""
        if name in self._agents:
            chain = self._chains[name]
            self._settle(chain)
            self.scribe.close(self._agents[name], ts_us=chain.last_us)

    @property
    def agents(self) -> list[str]:
        """The chains of subagents."""
        return list(self._agents)

    def is_done(self, name: str) -> bool:
        """Whether the last answer of a chain says that nothing more is to come."""
        answer = self._chains[name].answer
        return answer is not None and answer.is_whole

    def settle(self, *, unfinished: bool = True) -> list[str]:
        """Write the answers, those too that may go on; gives back which were left."""
        left: list[str] = []
        for chain in self._chains.values():
            if chain.answer is None:
                continue
            if unfinished or chain.answer.is_whole:
                self._settle(chain)
            else:
                left.append(chain.answer.id)
        return left

    def finish(self) -> None:
        """Nothing more will come."""
        self.settle()
        for name in self._agents:
            self.end_chain(name)
        self.scribe.finish(self.last_us)

    def _answer(self, chain: _Chain, line: ClaudeLine, ts_us: int) -> None:
        id_ = (line.message and line.message.id) or line.uuid or f"{ts_us}"
        if chain.answer is None or chain.answer.id != id_:
            self._settle(chain)
            chain.answer = Answer(id_, ts_us)
        chain.answer.add(line)
        for block in line.blocks:
            if block.get("type") in {"tool_use", "server_tool_use"} and isinstance(block.get("id"), str):
                self.scribe.open(
                    block["id"],
                    str(block.get("name") or "tool"),
                    input=block.get("input"),
                    place=chain.place,
                    ts_us=ts_us,
                )

    def _said(self, chain: _Chain, line: ClaudeLine, ts_us: int) -> None:
        rest: list[dict[str, Any]] = []
        for block in line.blocks:
            tool = block.get("tool_use_id")
            if block.get("type") == "tool_result" and isinstance(tool, str):
                status = "error" if block.get("is_error") else "ok"
                self.scribe.close(tool, ts_us=ts_us, status=status, output=block.get("content"))
            else:
                rest.append(block)
        if rest and line.message is not None:
            self._settle(chain)
            content = line.message.content if len(rest) == len(line.blocks) else rest
            self.scribe.message(
                "user",
                content,
                name=line.uuid or f"user-{ts_us}",
                ts_us=ts_us,
                place=chain.place,
                metadata=_marks(line),
            )

    def _settle(self, chain: _Chain) -> None:
        answer, chain.answer = chain.answer, None
        if answer is None:
            return
        if answer.usage is not None and answer.model is not None:
            self.counted[answer.model] = added(self.counted.get(answer.model), answer.usage)
        self.scribe.message(
            "assistant",
            answer.blocks,
            name=answer.id,
            ts_us=answer.ts_us,
            place=chain.place,
            model=answer.model,
            usage=answer.usage,
            metadata=answer.metadata,
        )


def _marks(line: ClaudeLine) -> Mapping[str, Any]:
    marks = {"meta": line.is_meta, "compact_summary": line.is_summary}
    return {name: True for name, is_so in marks.items() if is_so}
