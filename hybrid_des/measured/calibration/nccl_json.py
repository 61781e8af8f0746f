"""Rows of the JSON that nccl-tests (-J FILE) and rccl-tests (-Z json) write.

    {"args": ["./all_reduce_perf"], "results": [{"size": 1048576, "type": "float", "redop": "sum", "root": "-1",
     "out_of_place": {"time": 30.1, "alg_bw": 34.836, "bus_bw": 60.964, "nwrong": 0}, "in_place": {…}}, …]}

    {"name": "AllReduce", "gpus": 4, "size": 1024, "type": "float", "redop": "sum", "inPlace": 0,          one per line,
     "time": 19.18, "algBw": 0.0534, "busBw": 0.0801, "#wrong": "0"}                                       or in a list

Source: `src/util.cu` of NVIDIA/nccl-tests and `src/common.cu` of ROCm/rccl-tests. As in text, times are out-of-place.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from hybrid_des.cluster.time_table import shown
from hybrid_des.measured.calibration.nccl_log import NcclLog, RoundedNumber, Row, collective_of, printed

Result = Mapping[str, Any]


def read_json(text: str, name: str) -> NcclLog | None:
    """Read JSON, or lines of it, which may stand among others; None if there is none of these programs.

    Raises:
        UsageError: a result is damaged or wrong.
    """
    log = NcclLog(name, places=["out-of-place"])
    for line, document in _documents(text):
        for result in document if isinstance(document, list) else [document]:
            if isinstance(result, dict) and isinstance(result.get("results"), list):
                _program(log, line, " ".join(map(str, result.get("args") or [])))
                for each in result["results"]:
                    if isinstance(each, dict) and isinstance(each.get("out_of_place"), dict):
                        figures = each["out_of_place"]
                        _add(log, line, each, figures, ("time", "alg_bw", "bus_bw", "nwrong"))
                        _program(log, line, str(each.get("experiment_name", "")))
            elif isinstance(result, dict) and "busBw" in result:
                if result.get("inPlace") in (0, "0"):
                    _add(
                        log,
                        line,
                        result,
                        result,
                        ("time", "algBw", "busBw", "#wrong" if "#wrong" in result else "wrong"),
                    )
                _program(log, line, str(result.get("name", "")))
                if isinstance(gpus := result.get("gpus"), int) and 0 < gpus <= MOST_RANKS:
                    log.ranks = dict.fromkeys(range(gpus), "")
    return log if log.rows else None


MOST_RANKS = 2**20


def _documents(text: str) -> Iterator[tuple[int, Any]]:
    """The whole text, or those of its lines that are JSON objects, each with the number of its line."""
    start = text.lstrip()[:1]
    if start not in ("{", "["):
        return
    try:
        yield 1, json.loads(text)
    except ValueError:
        for number, line in enumerate(text.split("\n"), 1):
            if line.lstrip().startswith("{"):
                try:
                    yield number, json.loads(line.strip().rstrip(","))
                except ValueError:
                    continue


def _program(log: NcclLog, line: int, words: str) -> None:
    if (test := collective_of(words)) and not log.tests:
        log.tests[test] = line


def _add(log: NcclLog, line: int, result: Result, figures: Result, keys: tuple[str, str, str, str]) -> None:
    """Add a row; those of no bytes only count."""
    size, wrong = result.get("size"), figures.get(keys[3], 0)
    if not isinstance(size, int) or not 0 <= size < 10**15:
        log.refuse(line, f"size is {shown(str(size))}, expected a whole number of bytes")
    if str(wrong) not in ("N/A", "0", "0.0"):
        log.refuse(line, f"{size} B: {keys[3]} is {shown(str(wrong))}: results are wrong, expected 0 or N/A")
    if size == 0:
        log.empty += 1
        return
    time, algbw, busbw = (_number(log, line, key, figures.get(key)) for key in keys[:3])
    kind = " ".join(str(result[key]).strip() for key in ("type", "redop", "root") if key in result)
    log.rows.append(Row(line, size, kind, int(result.get("numCycle") or 0), time, algbw, busbw))


def _number(log: NcclLog, line: int, key: str, value: Any) -> RoundedNumber:
    number = printed(f"{value:.6g}") if isinstance(value, int | float) and not isinstance(value, bool) else None
    if number is None or (key == "time" and number.value == 0):
        log.refuse(line, f"{key} is {shown(str(value))}, expected a number{' above 0' * (key == 'time')}")
    return number
