"""The services of the Orchestrator: functions that record a run and read it back.

Each call is durable when it returns, or, with ``session=``, when the session commits, all or nothing. Without
a session they use the default store of the process, which `use` sets. `treering.compat.services.aio` has the
same functions for asyncio.
"""

from treering.compat.services.calls import (
    Session,
    create_run,
    end_run,
    end_span,
    get_run_cost,
    get_run_timeline,
    get_session,
    save_blob,
    save_message,
    save_tool_call,
    save_tool_result,
    start_span,
    use,
)

__all__ = [
    "Session",
    "create_run",
    "end_run",
    "end_span",
    "get_run_cost",
    "get_run_timeline",
    "get_session",
    "save_blob",
    "save_message",
    "save_tool_call",
    "save_tool_result",
    "start_span",
    "use",
]
