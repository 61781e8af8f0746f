"""What is known of a run that its budget stopped, as text; nothing in it looks like the result of a step."""

from collections.abc import Mapping
from typing import Any

from hybrid_des.errors import one_line
from hybrid_des.units import format_bytes, format_seconds

MOST_SHOWN = 8  # pipeline ranks


def unfinished_report(facts: Mapping[str, Any]) -> str:
    """Render the facts of an `UnfinishedError`."""
    budget, simulated = format_seconds(facts["budget_s"]), format_seconds(facts["simulated_s"])
    rows = (
        ("ops that have ended", f"{facts['share_of_ops']:.1%}   {facts['steps_done']} steps are complete"),
        ("simulated time", f"{simulated}   on {facts['ranks_simulated']} of {facts['ranks']} ranks"),
        ("computing so far", _of_ranks([format_seconds(time) for time in facts["busy_s"]])),
        ("memory so far", _of_ranks([format_bytes(size) for size in facts["peak_memory_bytes"]])),
        ("sent so far", f"{facts['messages']:,} messages"),
        ("real time", f"{format_seconds(facts['wall_s'])} for {facts['events']:,} events"),
    )
    title = f"{one_line(facts['name'])}: not complete, stopped by the budget of {budget}"
    return "\n".join([title, "", *(f"{label:<24}{value}" for label, value in rows)])


def _of_ranks(values: list[str]) -> str:
    """Values of pipeline ranks; if there are many, only the first ones."""
    more = f"  … ({len(values)} pipeline ranks)" if len(values) > MOST_SHOWN else "   per pipeline rank"
    return "  ".join(values[:MOST_SHOWN]) + more
