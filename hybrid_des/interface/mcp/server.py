"""The server of `hybrid-des mcp`: tools over standard input and output, by the official SDK of the protocol.

A call is validated here and worked on in a process of its own, which ends with its budget or when it is cancelled.
"""

from __future__ import annotations

import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp_types import (
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
    ToolAnnotations,
)

from hybrid_des.errors import HybridDesError, SimulationError
from hybrid_des.interface.cli.deadline import OutOfTimeError
from hybrid_des.interface.mcp.answers import described
from hybrid_des.interface.mcp.arguments import MOST_S, arguments_of
from hybrid_des.interface.mcp.tools import Reply, failure
from hybrid_des.interface.mcp.worker import Call, begun, prepare
from hybrid_des.units import format_seconds

WRITING = {"init"}  # tools that write files, all into the folder
INSTRUCTIONS = (
    "hybrid-des predicts training steps of large models on GPU clusters by simulating them. simulate tells the time of "
    "a step with an interval; explain why it takes so long and which settings to change; compare which of two "
    "scenarios is faster, why, and whether that can be told; search finds the best plan. Times are seconds, memory "
    "bytes, shares fractions of 1. The likely interval of a step contains nine of ten measured steps, that of a change "
    "four of five measured changes; of two plans whose likely change contains 0, neither is known to be faster. docs "
    "with page=skill says when to use what."
)


async def serve(folder: Path) -> None:
    """Serve a folder until standard input ends."""
    async with stdio_server() as (read, write):
        prepare()  # its standard input and output are not those of the protocol
        served = server(folder)
        await served.run(read, write, served.create_initialization_options())


def server(folder: Path) -> Server[Any]:
    """The server of a folder, for any transport."""

    async def listed(context: Any, given: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=[Tool(**tool, annotations=_hints(tool["name"])) for tool in described()])

    async def called(context: Any, given: CallToolRequestParams) -> CallToolResult:
        reply = await answer(folder, given.name, given.arguments)
        return CallToolResult(
            content=[TextContent(type="text", text=reply.text)],
            structured_content=reply.found.model_dump(mode="json", exclude_unset=True),
            is_error=reply.found.error is not None,
        )

    return Server(
        "hybrid-des", version=version("hybrid-des"), instructions=INSTRUCTIONS,
        on_list_tools=listed, on_call_tool=called,
    )  # fmt: skip


def _hints(tool: str) -> ToolAnnotations:
    """What a client may tell its user of a tool: whether it only reads; a file is never replaced by another text."""
    return ToolAnnotations(
        read_only_hint=tool not in WRITING, destructive_hint=False, idempotent_hint=True, open_world_hint=False
    )


async def answer(folder: Path, tool: str, arguments: object) -> Reply:
    """Answer a call, within its budget; cancelled, its process is ended."""
    try:
        given = arguments_of(tool, arguments)
        call = Call(folder, tool, given, time.monotonic() + given.budget_s)
        with begun(call) as connection, anyio.move_on_after(call.until - time.monotonic()):
            try:
                reply: Reply = await anyio.to_thread.run_sync(connection.recv, abandon_on_cancel=True)
            except (EOFError, OSError):
                ended = f"{tool}: its process has ended: it was killed, or has met a defect (see stderr)"
                raise SimulationError(ended) from None
            return reply
        spent = format_seconds(given.budget_s)
        raise OutOfTimeError(
            f"{tool}: stopped: the budget of {spent} is spent; expected a larger budget_s, at most {MOST_S:g}, "
            "or a smaller scenario, such as one with fewer GPUs or micro-batches"
        )
    except HybridDesError as error:
        return failure(error, str(error), error.exit_code)
