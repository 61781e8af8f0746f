"""Reports on several jobs: what they do to each other, why each takes as long as it does; their files and result."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from hybrid_des.report.billed import bill_columns
from hybrid_des.report.content import alarm_of
from hybrid_des.report.plots.curves import natural
from hybrid_des.report.text_tables import text_table
from hybrid_des.studies.jobs.fabric_rows import OTHERS
from hybrid_des.studies.jobs.neighbours import (
    Neighbours,
    Remedies,
    Remedy,
    TrialCount,
)
from hybrid_des.units import format_bytes, format_seconds, format_share

MOST_WAITS, MOST_LINKS = 8, 8  # lines in the report


WIDTH = 100  # of an output without one


def render(neighbours: Neighbours, width: int | None = None) -> str:
    """The report of the command line as text; without a width, tables are as wide as they are, lines `WIDTH`."""
    cluster, jobs = neighbours.jobs.cluster, neighbours.jobs
    title = f"{jobs.name}: {jobs.description}" if jobs.description else jobs.name
    taken = sum(len(one.gpus) for one in jobs.jobs)
    sharing = f"sharing {cluster.sharing}"  # the verdict depends on it
    setup = f"{len(jobs.jobs)} jobs on {taken} of {cluster.gpus} GPUs, topology {cluster.topology}, {sharing}"
    room = width or WIDTH
    blocks = [
        [title, setup],
        [line for alarm in alarms_of(neighbours) for line in textwrap.wrap(alarm, room, subsequent_indent="  ")],
        [_jobs(neighbours, width)],
        _bills(neighbours, width),
        _waits(neighbours, width),
        _links(neighbours, width),
        _remedies(neighbours.remedies),
        [line for note in neighbours.notes for line in textwrap.wrap(f"note: {note}", room, subsequent_indent="  ")],
        [f"real time {format_seconds(neighbours.wall_s)} for {neighbours.events:,} events"],
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def alarms_of(neighbours: Neighbours) -> list[str]:
    """What to say first: the jobs that exceed the memory of their GPUs."""
    alarms = {one.job.name: alarm_of(one.together) for one in neighbours.runs}
    return [f"{name}: {alarm}" for name, alarm in alarms.items() if alarm]


def _jobs(neighbours: Neighbours, width: int | None) -> str:
    urgent = any(one.priority for one in neighbours.jobs.jobs)
    heads = ["job", "GPUs", "nodes", "start", *(["priority"] if urgent else []), "steps"]
    heads += ["alone", "together", "slowdown", "GPUs compute", "shares links with"]
    rows = []
    for job_run in neighbours.runs:
        facts = neighbours.summary["jobs"][job_run.job.name]
        rows.append([
            job_run.job.name, str(facts["gpus"]), ranges(facts["nodes"]), format_seconds(facts["start_s"]),
            *([str(job_run.job.priority)] if urgent else []), str(facts["steps"]),
            format_seconds(facts["alone_step_time_s"]), format_seconds(facts["step_time_s"]),
            f"{job_run.slowdown:.3f}×", format_share(facts['gpu_utilisation']),
            ", ".join(facts["shares_links_with"]) or "nobody: as alone",
        ])  # fmt: skip
    return text_table(heads, rows, width=width)


def _bills(neighbours: Neighbours, width: int | None) -> list[str]:
    """The bill of each job that has one, together with the others."""
    bills = {name: facts["bill"] for name, facts in neighbours.summary["jobs"].items() if "bill" in facts}
    if not bills:
        return []
    columns = bill_columns(list(bills.values()))
    rows = [[name, *cells] for name, *cells in zip(bills, *columns.values(), strict=True)]
    return [text_table(["cost, together", *columns], rows, width=width)]


def ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers in short, such as 0-3,8."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    shown = ["-".join(map(str, part)) for part in parts]
    return ",".join(shown) if len(shown) < 5 else f"{','.join(shown[:3])}, … ({len(numbers)})"


def _waits(neighbours: Neighbours, width: int | None) -> list[str]:
    waits = neighbours.waits
    if not len(waits):
        return []
    rows = [
        [
            *map(str, (row["job"], row["behind"], row["link"])),
            format_seconds(row["waited_s"] / row["messages"]),
            f"{row['messages']:.3g}",
        ]
        for row in waits.head(MOST_WAITS).to_dict("records")
    ]
    heads = ["who waits", "for", "on link", "each time", "messages per step"]
    more = len(waits) - len(rows)
    lines = [
        "messages that wait for others' messages, and how long each does on average",
        text_table(heads, rows, "  ", width=width),
    ]
    return [*lines, *([f"  … and {more} more pairs of job and link"] if more > 0 else [])]


def _links(neighbours: Neighbours, width: int | None) -> list[str]:
    shared, summary = neighbours.summary["shared_links"], neighbours.summary["links"]
    if not shared:
        return []
    names = [*(one.job.name for one in neighbours.runs), *([OTHERS] if neighbours.traffic else [])]
    busiest = sorted(shared, key=lambda link: (-sum(summary[link]["busy_ratio"].values()), natural(link)))
    rows = [
        [
            link,
            format_share(sum(summary[link]["busy_ratio"].values())),
            *(_of_job(summary[link], name) for name in names),
        ]
        for link in busiest[:MOST_LINKS]
    ]
    more = len(shared) - len(rows)
    lines = [
        "busiest links that several jobs use: share of the time, and bytes",
        text_table(["link", "busy", *names], rows, "  ", width=width),
    ]
    return [*lines, *([f"  … and {more} more"] if more > 0 else [])]


def _of_job(link: Mapping[str, Any], name: str) -> str:
    size = link["bytes"].get(name)
    return "" if size is None else f"{format_share(link['busy_ratio'][name])} {format_bytes(size)}"


def remedy_lines(remedies: Remedies | None) -> dict[str, str]:
    """The best starts and priorities by what they are called, if any were tried."""
    if remedies is None:
        return {}
    if remedies.skipped:
        return {"What would help": f"not tried: {remedies.skipped}"}
    orders = _order(remedies) if remedies.tried_orders.changes else "not known"
    return {
        "Best starts": f"{_start(remedies.starts)}{_missing(remedies.tried_starts)}",
        "Best priorities": f"{orders}{_missing(remedies.tried_orders)}",
    }


def _remedies(remedies: Remedies | None) -> list[str]:
    if remedies is None:
        return []
    if remedies.skipped:
        return [f"other starts and priorities: not tried; {remedies.skipped}"]
    starts, priorities = remedy_lines(remedies).values()
    before = f"mean slowdown {remedies.slowdown:.3f}×"
    shifts, orders = remedies.tried_starts, remedies.tried_orders
    tried, every = shifts.changes + orders.changes, shifts.of + orders.of
    count = (
        f"{tried} of {every} changes simulated, more with --budget;" if tried < every else f"{tried} changes simulated,"
    )
    return [
        f"what would help ({count} {before} now, weighted by GPUs)",
        f"  best starts      {starts}",
        f"  best priorities  {priorities}",
    ]


def _missing(tried: TrialCount) -> str:
    return f" ({tried.changes} of {tried.of} tried)" if tried.changes < tried.of else ""


def _start(remedy: Remedy | None) -> str:
    if remedy is None:
        return "as they are"
    at = ", ".join(f"{name} at {format_seconds(value)}" for name, value in remedy.values.items())
    return f"{at}: {remedy.slowdown:.3f}× ({_each(remedy)})"


def _order(remedies: Remedies) -> str:
    remedy = remedies.priorities
    if remedy is None:
        return "none help"
    names = sorted(remedy.values, key=lambda name: -remedy.values[name])
    under = f" with cluster.sharing={remedies.sharing}" if remedies.sharing else ""
    return f"{' before '.join(names)}{under}: {remedy.slowdown:.3f}× ({_each(remedy)})"


def _each(remedy: Remedy) -> str:
    return ", ".join(f"{name} {value:.3f}×" for name, value in remedy.of_jobs.items())
