"""Chakra execution traces: a file per rank, as protobuf messages (`.et`) or as JSON.

    GlobalMetadata, then Node …    each preceded by its size
    Node    1 id   2 name   3 type   4 ctrl_deps   5 data_deps   6 start   7 duration (µs)   10 attributes

Attributes are those that ASTRA-sim reads: `is_cpu_op`, `comm_type`, `comm_size`, `comm_src`, `comm_dst`, `comm_tag`,
`pg_name`, whose ranks a JSON file beside the traces lists (ASTRA-sim's `--comm-group-configuration`). Ours besides:
`duration_picos` (durations are whole µs), `start_picos`, `stream`, `involved_ranks`, and what an op is.
Of dependencies, only data edges are read: control edges make cycles in traces of PyTorch.
Schema: mlcommons/chakra, schema/protobuf/et_def.proto; what is used of it is in `chakra.textproto`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any

from hybrid_des.cluster.purposes import PURPOSES
from hybrid_des.errors import UsageError
from hybrid_des.files import open_file, read_text
from hybrid_des.interchange.profiles import graph
from hybrid_des.interchange.profiles.recognition import BOM, GROUPS, GZIP, head_of, natural

VERSION = b"0.0.4"
MICROSECOND = 10**6  # picoseconds
LONGEST = 10**18  # picoseconds
LARGEST = 2**31  # bytes of a file
KINDS = {4: graph.COMPUTATION, 5: graph.SEND, 6: graph.RECEIVE, 7: graph.COLLECTIVE}
TYPES = {kind: number for number, kind in KINDS.items()}
COLLECTIVES = {
    0: "all-reduce", 1: "reduce", 2: "all-gather", 3: "gather", 4: "scatter", 5: "broadcast", 6: "all-to-all",
    7: "reduce-scatter", 8: "reduce-scatter", 9: "barrier",
}  # fmt: skip
NUMBERS = {does: number for number, does in reversed(COLLECTIVES.items())} | {graph.EXCHANGE: 6}
WORDS = {  # in names of kernels, where a trace does not give the type
    "AllReduce": "all-reduce", "AllGather": "all-gather", "ReduceScatter": "reduce-scatter", "Broadcast": "broadcast",
    "AllToAll": "all-to-all", "SendRecv": "all-to-all",
}  # fmt: skip
NUMBERED = ("op", "microbatch", "chunk", "stage", "elements")
MOST = 2**62  # of a fact that is a number
FLAGS = ("given", "gap", "named")
WORDED = {"op_kind": ("F", "B", "I", "W"), "purpose": tuple(purpose.name for purpose in PURPOSES)}
OWN = (*NUMBERED, *FLAGS, *WORDED)  # facts of a node's place
MEMBERS = re.compile(r"\d+")
FIELDS = {  # as mlcommons/chakra's feeder reads them; that of ASTRA-sim converts from any
    "comm_type": "int64", "comm_size": "int64", "comm_src": "int32", "comm_dst": "int32", "comm_tag": "int32",
}  # fmt: skip


def read_chakra(files: Sequence[Path]) -> list[graph.RankTrace]:
    """Read the traces of ranks, by the numbers in the names of their files.

    Raises:
        UsageError: a file is cut or is no such trace, its nodes miss others or form a cycle, or two are of one rank.
    """
    ordered = sorted(files, key=natural)
    ranks: dict[int, Path] = {}
    for path, rank in zip(ordered, ranks_of(ordered), strict=True):
        if rank in ranks:
            raise UsageError(f"{path}: a second trace of rank {rank}, beside {ranks[rank].name}; name the run's own")
        ranks[rank] = path
    listed = {folder: listed_groups(folder) for folder in {path.parent for path in ordered}}
    traces = [_read(path, listed[path.parent]) for path in ordered]
    return traces if len(traces) == 1 else _placed(traces, ranks_of(ordered))


def _placed(traces: Sequence[graph.RankTrace], ranks: Sequence[int]) -> list[graph.RankTrace]:
    """The traces with places among them instead of ranks: those of some ranks of a job need not begin at 0.

    Raises:
        UsageError: a rank takes part in a collective of a group that it is not in.
    """
    place_of = {rank: turn for turn, rank in enumerate(ranks)}
    placed = []
    for trace, rank in zip(traces, ranks, strict=True):
        for node in trace.nodes:
            members = trace.groups.get(node.group, (rank,))
            if node.kind == graph.COLLECTIVE and rank not in members:
                shown = ", ".join(map(str, members[: graph.MOST_NAMED]))
                raise UsageError(f'{trace.source}: node {node.id}: rank {rank} is not in group "{node.group}": {shown}')
            node.peer = place_of.get(node.peer, node.peer)
        kept = {name: [one for one in members if one in place_of] for name, members in trace.groups.items()}
        groups = {name: tuple(place_of[one] for one in members) for name, members in kept.items()}
        absent = [name for name, members in groups.items() if len(members) < len(trace.groups[name])]
        placed.append(replace(trace, groups=groups, absent=absent))
    return placed


def ranks_of(files: Sequence[Path]) -> list[int]:
    """The ranks of traces, in the order in which they are read: the last numbers in their names, if all have some."""
    named = [re.findall(r"\d+", path.name)[-1:] for path in sorted(files, key=natural)]
    return [int(number[0]) for number in named] if all(named) else [*range(len(named))]


def listed_groups(folder: Path) -> dict[str, tuple[int, ...]]:
    """The ranks of process groups, from the files beside traces that list them, such as ASTRA-sim's `comm_group.json`.

    Raises:
        UsageError: two files differ.
    """
    groups: dict[str, tuple[int, ...]] = {}
    for path in sorted(folder.glob("*.json")):
        if not path.is_file() or GROUPS.match(head_of(path)) is None:
            continue
        try:
            whole = json.loads(read_text(path, "process groups"))
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{path}: not whole JSON: {str(error).splitlines()[0]}") from None
        for name, ranks in whole.items():
            if not isinstance(ranks, list) or not all(type(one) is int and one >= 0 for one in ranks):
                raise UsageError(f'{path}: group "{name:.40}": expected a list of ranks')
            if groups.setdefault(name, tuple(ranks)) != tuple(ranks):
                raise UsageError(f'{path}: group "{name:.40}" has other ranks than in another file of this folder')
    return groups


def _read(path: Path, listed: Mapping[str, tuple[int, ...]]) -> graph.RankTrace:
    try:
        with open_file(path) as file:
            content = file.read(LARGEST + 1)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(content) > LARGEST or content.startswith(GZIP):
        raise UsageError(f"{path}: packed, or larger than {LARGEST // 2**30} GiB")
    try:
        read = _of_json if content.removeprefix(BOM).lstrip()[:1] in (b"{", b"[") else _of_messages
        facts = [one for one in read(content) if one["type"] in KINDS]
        groups: dict[str, tuple[int, ...]] = {}
        nodes = [_node(one, groups, listed) for one in facts]
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        reason = f"lacks {error}" if isinstance(error, KeyError) else str(error).splitlines()[0]
        raise UsageError(f"{path}: not a whole Chakra trace: {reason}") from None
    if not nodes:
        raise UsageError(f"{path}: no computation and no communication")
    unlisted = [name for name, ranks in groups.items() if not ranks]
    for node in nodes:
        if node.group in unlisted:
            node.group = graph.EVERYBODY
    untimed = sum(
        node.kind == graph.COMPUTATION and not node.duration and "duration_picos" not in fact["attributes"]
        for node, fact in zip(nodes, facts, strict=True)
    )
    known = {name: ranks for name, ranks in groups.items() if ranks}
    return graph.RankTrace(str(path), graph.in_order(nodes, str(path)), known, unlisted, untimed=untimed)


def _of_messages(content: bytes) -> Iterator[dict[str, Any]]:
    from google.protobuf.message import DecodeError
    from google.protobuf.proto import parse_length_prefixed

    stream = BytesIO(content)
    try:
        parse_length_prefixed(messages()["GlobalMetadata"], stream)
        while (node := parse_length_prefixed(messages()["Node"], stream)) is not None:
            yield {
                "id": node.id, "name": node.name.decode("utf-8", "replace"), "type": node.type,
                "needs": list(node.data_deps), "duration": node.duration_micros * MICROSECOND,
                "attributes": {one.name.decode("utf-8", "replace"): _number_or_text(one) for one in node.attr},
            }  # fmt: skip
    except (DecodeError, EOFError):
        raise ValueError(f"the message before byte {stream.tell()} is damaged or cut") from None


def _number_or_text(attribute: Any) -> Any:
    """A number, a text or a list of numbers; None if it is something else."""
    value: Any = None
    for field, given in attribute.ListFields():
        if field.message_type is not None:
            value = list(given.values)
        elif field.name != "name":
            value = given.decode("utf-8", "replace") if isinstance(given, bytes) else given
    return value


@cache
def messages() -> Mapping[str, Any]:
    """The classes of messages by name."""
    from google.protobuf import text_format
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message_factory import GetMessageClass

    schema = Path(__file__).with_name("chakra.textproto").read_text(encoding="utf-8")
    file = text_format.Parse(schema, FileDescriptorProto())
    pool = DescriptorPool()
    pool.Add(file)
    return {one.name: GetMessageClass(pool.FindMessageTypeByName(f"chakra.{one.name}")) for one in file.message_type}


def _of_json(content: bytes) -> Iterator[dict[str, Any]]:
    """The nodes of the JSON form, whose keys vary in case."""
    whole = json.loads(content)
    for entry in whole["workload_graph"] if isinstance(whole, dict) else whole:
        keys = {key.lower(): value for key, value in entry.items()}
        attributes = {key: value for key, value in keys.items() if key.startswith("comm_") or key == "is_cpu_op"}
        extra = {
            str(each["name"]): next((v for k, v in each.items() if k != "name"), None) for each in keys.get("attrs", ())
        }
        duration = keys.get("runtime", keys.get("duration_micros", 0)) or 0
        yield {
            "id": keys["id"], "name": str(keys.get("name", "")), "type": keys["nodetype"],
            "needs": list(keys.get("data_deps", keys.get("datadeps", ())) or ()),
            "duration": round(float(duration) * MICROSECOND), "attributes": attributes | extra,
        }  # fmt: skip


def _node(
    message: Mapping[str, Any], groups: dict[str, tuple[int, ...]], listed: Mapping[str, tuple[int, ...]]
) -> graph.Node:
    known, name, kind = message["attributes"], message["name"], KINDS[message["type"]]
    host = bool(known.get("is_cpu_op"))
    if host:
        kind = graph.COMPUTATION  # the call that launches a collective is work of the host
    duration = known.get("duration_picos", message["duration"])
    if not isinstance(message["id"], int) or not isinstance(duration, int) or not 0 <= duration <= LONGEST:
        raise ValueError(f"node {message['id']}: expected a whole number, and a time of at least 0 and at most 11 days")
    start = int(known.get("start_picos", -1))
    node = graph.Node(message["id"], name, kind, duration, tuple(message["needs"]), start=start)
    node.place = {key: known[key] for key in OWN if key in known and _is_own(key, known[key])}
    if kind == graph.COMPUTATION:
        node.stream = str(known.get("stream", f"host {known.get('tid', 0)}" if host else graph.COMPUTE))
        return node
    node.stream, node.size = str(known.get("stream", "")), max(0, int(known.get("comm_size") or 0))
    if kind == graph.COLLECTIVE:
        node.does = _does(known, name)
        node.group = _group(known, groups, listed)
        return node
    node.peer = int(known["comm_dst" if kind == graph.SEND else "comm_src"])
    node.tag = int(known.get("comm_tag") or 0)
    return node


def _is_own(key: str, value: Any) -> bool:
    """Whether a fact is one of ours: another program may use its name for something else."""
    if key in WORDED:
        return value in WORDED[key]
    return isinstance(value, int) and 0 <= value < (MOST if key in NUMBERED else 2)


def _does(known: Mapping[str, Any], name: str) -> str:
    if known.get("does") == graph.EXCHANGE:  # ours: the schema has no such type
        return graph.EXCHANGE
    number = known.get("comm_type")
    if isinstance(number, int) and number in COLLECTIVES:
        return COLLECTIVES[number]
    return next((does for word, does in WORDS.items() if word.lower() in name.lower()), "all-reduce")


def _group(known: Mapping[str, Any], groups: dict[str, tuple[int, ...]], listed: Mapping[str, tuple[int, ...]]) -> str:
    """The name of a collective's group, put into `groups` with its ranks: none if nothing says them."""
    ranks = known.get("involved_ranks")
    if ranks is None and isinstance(known.get("pg_ranks"), str):
        ranks = list(map(int, MEMBERS.findall(known["pg_ranks"])))
    given = known.get("pg_name")
    if not ranks and given in (None, ""):
        return graph.EVERYBODY
    ranks = tuple(map(int, ranks or listed.get(str(given), ())))
    name = str(given or ",".join(map(str, ranks)))
    groups[name] = ranks
    return name


def write_chakra(trace: graph.RankTrace) -> bytes:
    """The trace of a rank as a `.et` file."""
    from google.protobuf.proto import serialize_length_prefixed

    written = BytesIO()
    serialize_length_prefixed(messages()["GlobalMetadata"](version=VERSION), written)
    for node in trace.nodes:
        serialize_length_prefixed(_message(node, trace.groups), written)
    return written.getvalue()


def _message(node: graph.Node, groups: Mapping[str, tuple[int, ...]]) -> Any:
    facts: dict[str, Any] = {"is_cpu_op": False, "duration_picos": node.duration}
    if node.start >= 0:
        facts["start_picos"] = node.start
    if node.stream:
        facts["stream"] = node.stream
    if node.kind in (graph.SEND, graph.RECEIVE):
        end = "comm_dst" if node.kind == graph.SEND else "comm_src"
        facts |= {end: node.peer, "comm_tag": node.tag, "comm_size": node.size}
    elif node.kind == graph.COLLECTIVE:
        facts |= {"comm_type": NUMBERS[node.does], "comm_size": node.size}
        if node.does == graph.EXCHANGE:
            facts["does"] = graph.EXCHANGE
    if node.kind == graph.COLLECTIVE and (members := groups.get(node.group, ())):
        facts |= {"pg_name": node.group, "involved_ranks": members}
    return messages()["Node"](
        id=node.id,
        name=node.name.encode(),
        type=TYPES[node.kind],
        data_deps=node.needs,
        duration_micros=round(node.duration / MICROSECOND),
        attr=[_attribute(name, value) for name, value in {**facts, **node.place}.items()],
    )


@lru_cache(maxsize=1 << 14, typed=True)  # kinds and sizes recur
def _attribute(name: str, value: bool | int | str | tuple[int, ...]) -> Any:
    """An attribute with its value by type."""
    made = messages()["Attribute"](name=name.encode())
    if isinstance(value, bool):
        made.bool = int(value)
    elif isinstance(value, int):
        setattr(made, FIELDS.get(name, "uint64"), value)
    elif isinstance(value, str):
        made.string = value.encode()
    else:
        made.uint64_list.values.extend(value)
    return made
