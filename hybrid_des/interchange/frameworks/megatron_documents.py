"""Documents of unequal length in launch lines of Megatron-LM: how they are packed, and the lengths of mock data.

    greedy            --sequence-packing-scheduler dp_balanced
    dynamic-context   --sequence-packing-scheduler default_dynamic_cp --dynamic-context-parallel
    tokens            --max-seqlen-per-dp-cp-rank, of one context rank
    lengths           --varlen-mock-dataset-config-json, if they are lognormal or from a file; else the data has them

Flags: examples/dynamic_context_parallel/benchmark_dcp.sh, megatron/core/datasets/data_schedule.py
(github.com/NVIDIA/Megatron-LM).
"""

import json
import shlex
from collections.abc import Iterable, Iterator
from typing import Any

from hybrid_des.errors import LONGEST_SHOWN, one_line, unknown
from hybrid_des.interchange.frameworks.launch_line import Given, Rule, Values
from hybrid_des.interchange.frameworks.scenario_file import UNKNOWN
from hybrid_des.scenario.definition import Scenario
from hybrid_des.scenario.sections.data import Data
from hybrid_des.workload.lengths import Listed, Lognormal
from hybrid_des.workload.packing.dynamic_context import PerRank, room_of
from hybrid_des.workload.packing.greedy import Filled, most_tokens

DYNAMIC, SCHEDULER, ROOM = "--dynamic-context-parallel", "--sequence-packing-scheduler", "--max-seqlen-per-dp-cp-rank"
LEAST, LENGTHS = "--min-dynamic-context-parallel-size", "--varlen-mock-dataset-config-json"
SCHEDULERS = {"greedy": "dp_balanced", "dynamic-context": "default_dynamic_cp"}
_NEEDED = ("mean_seq_len", "lognormal_sigma", "min_seq_len", "max_seq_len")  # of a distribution


def document_values(scenario: Scenario) -> dict[str, Any]:
    """What a launch line says of a scenario's documents, by path; nothing without `data`."""
    data = scenario.data
    if data is None or scenario.model is None:
        return {}
    network, parallel = scenario.model.network, scenario.parallel
    request = data.request(network, parallel, scenario.schedule, given=scenario.batch is not None)
    limits, room, least = data.limits(request, network), None, 1
    (options,) = data.arguments or (None,)
    if isinstance(options, PerRank):
        room, least = room_of(request, options), options.least
    elif isinstance(options, Filled) and most_tokens(request, options) % parallel.context == 0:
        room = most_tokens(request, options) // parallel.context
    return {
        "data.packing": data.packing,
        "data.room": room,
        "data.least": least,
        "data.lengths": _lengths(data, limits.least, limits.most),
        "batch": scenario.batch,
    }


def _lengths(data: Data, least: int, most: int) -> dict[str, Any] | None:
    """The configuration of mock data with these lengths; None if it has no such lengths."""
    (options,) = data.lengths.arguments or (None,)
    if isinstance(options, Lognormal):
        drawn = {"mean_seq_len": float(options.mean), "lognormal_sigma": float(options.sigma)}
        limits = {"min_seq_len": least, "max_seq_len": most}
        return {"mode": "distribution", "type": "lognormal", "format": "thd", **limits, **drawn}
    if isinstance(options, Listed):
        return {"mode": "file", "format": "thd", "path": options.file.source}
    return None


def write_documents(values: Values) -> Iterable[str]:
    """The flags of packed documents."""
    scheduler, room = SCHEDULERS.get(values.get("data.packing", "")), values.get("data.room")
    if scheduler is None or room is None:
        return
    yield f"{SCHEDULER} {scheduler}"
    yield f"{ROOM} {room}"
    if values["data.packing"] == "dynamic-context":
        yield DYNAMIC
        if values["data.least"] > 1:
            yield f"{LEAST} {values['data.least']}"
    if lengths := values["data.lengths"]:
        yield f"--use-varlen-dataset {LENGTHS} {shlex.quote(json.dumps(lengths, separators=(',', ':')))}"
    yield "--calculate-per-token-loss --dataloader-type single"
    if not values.get("model.experts"):
        yield "--moe-token-dispatcher-type alltoall"  # which packing needs, without experts too


def read_documents(given: Given) -> Values:
    """The values of `data`; none if documents are not packed.

    Raises:
        UsageError: the scheduler is unknown, or a value is missing.
    """
    scheduler = given.text(SCHEDULER)
    given.pass_over("--calculate-per-token-loss")
    if DYNAMIC in given:
        scheduler = scheduler or SCHEDULERS["dynamic-context"]
    if scheduler is None:  # the other flags are named as not understood
        return {}
    room, least, lengths = given.number(ROOM), given.number(LEAST), read_lengths(given)
    given.words("--moe-token-dispatcher-type")
    given.pass_over("--use-varlen-dataset")
    if scheduler not in SCHEDULERS.values():
        raise given.error(SCHEDULER, unknown(scheduler, SCHEDULERS.values()))
    packing = next(name for name, of_megatron in SCHEDULERS.items() if of_megatron == scheduler)
    values: dict[str, Any] = {"data.packing": packing, **lengths}
    if room is not None and packing == "greedy":
        values["data.tokens"] = room * (given.number("--context-parallel-size") or 1)
    elif room is not None:
        values["data.tokens_per_rank"] = room
    if packing == "dynamic-context" and (least or 1) > 1:
        values["data.least"] = least
    return values


def read_lengths(given: Given) -> Values:
    """The lengths of mock data; `UNKNOWN` if the line does not say them."""
    text = given.text(LENGTHS)
    if text is None:
        return {"data.lengths.kind": UNKNOWN}
    try:
        mock = json.loads(text)
        kind = mock.get("mode"), mock.get("type")
    except (ValueError, AttributeError):
        raise given.error(LENGTHS, f'expected JSON, found "{one_line(text, LONGEST_SHOWN)}"') from None
    if kind[0] == "file" and mock.get("path"):
        return {"data.lengths.kind": "file", "data.lengths.file": str(mock["path"])}
    if kind == ("distribution", "lognormal") and not (missing := [key for key in _NEEDED if key not in mock]):
        mean, sigma, least, most = (mock[key] for key in _NEEDED)
        drawn = {"kind": "lognormal", "mean": mean, "sigma": sigma, "min": least, "max": most}
        return {f"data.lengths.{key}": value for key, value in drawn.items()}
    lacks = f" with {', '.join(missing)}" if kind == ("distribution", "lognormal") else ""
    raise given.error(LENGTHS, f"expected a file with its path, or a lognormal distribution{lacks}")


def unsaid_of_documents(scenario: Scenario, values: Values) -> Iterator[str]:
    """What no flag expresses of documents."""
    data = scenario.data
    if data is None:
        return
    if data.packing not in SCHEDULERS:
        yield f"data.packing: {data.packing}: it packs as {' and '.join(SCHEDULERS)} do"
    elif values.get("data.room") is None:
        yield "data.tokens: no multiple of the context ranks"
    if values.get("data.lengths") is None:
        yield f"data.lengths: {data.lengths.kind}: lengths are those of the data"
    if data.padded:
        yield f"data.padded: {str(data.padded).lower()}"
    if data.seed is not None:
        yield f"data.seed: {data.seed}"
    if scenario.batch is None:
        yield "schedule.microbatches: with documents, its global batch counts these"
    if scenario.schedule.microbatch_size > 1:
        yield "schedule.microbatch_size: it packs single documents"


DOCUMENTS = Rule(write_documents, read_documents)
