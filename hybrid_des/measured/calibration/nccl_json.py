"""Rows of the JSON and CSV that nccl-tests (-J FILE) and rccl-tests (-Z json, -Z csv) write.

    {"args": ["./all_reduce_perf"], "nccl_version": 22903, "config": {"nthreads": 1, "ngpus": 8, "devices": [{"rank": 0,
     "group": 0, "hostname": "node1", "device": 0, "device_info": "NVIDIA H100 80GB HBM3"}, …]},
     "results": [{"size": 1048576, "type": "float", "redop": "sum", "root": "-1",
     "out_of_place": {"time": 30.1, "alg_bw": 34.836, "bus_bw": 60.964, "nwrong": 0}, "in_place": {…}}, …]}

    {"numCycle": 0, "name": "AllReduce", "gpus": 4, "size": 1024, "type": "float", "redop": "sum",         one per line,
     "inPlace": 0, "time": 19.18, "algBw": 0.0534, "busBw": 0.0801, "wrong": "0"}                          or in a list

    numCycle,collective,nodes,ranks,ranksPerNode,gpusPerRank,size,type,redop,inplace,time,algbw,busbw,#wrong
    0,AllReduce,2,16,8,1,1024,float,sum,0,45.1,0.02,0.04,0

Of nccl-tests, `devices` has only the first GPU of each process. Of rccl-tests with MPI, ranks are processes. Names are
written differently by releases: `name` or `collective`, `wrong` or `#wrong`, `inplace` in large or small letters.
Source: `src/util.cu` of NVIDIA/nccl-tests and `src/common.cu` of ROCm/rccl-tests. As in text, times are out-of-place.
"""

import csv
import json
from collections.abc import Iterator, Mapping
from typing import Any

from hybrid_des.cluster.time_table import shown
from hybrid_des.measured.calibration.nccl_log import (
    FORCED,
    NcclLog,
    RoundedNumber,
    Row,
    collective_of,
    printed,
    release_of,
)
from hybrid_des.units import as_number

Result = Mapping[str, Any]
MOST_RANKS = 2**20
RCCL = {"size", "inplace", "time", "algbw", "busbw"}  # columns of any rccl-tests, in small letters


def read_json(text: str, name: str) -> NcclLog | None:
    """Read JSON or CSV, or lines of JSON, which may stand among others; None if there is none of these programs.

    Raises:
        UsageError: a result is damaged or wrong.
    """
    log = NcclLog(name, places=["out-of-place"])
    for line, result in _results(text):
        if isinstance(result.get("results"), list):
            _nccl_tests(log, line, result)
        elif {key.lower() for key in result} >= RCCL:
            _rccl_tests(log, line, result)
    return log if log.rows else None


def _results(text: str) -> Iterator[tuple[int, Result]]:
    """JSON objects, and rows of CSV, each with the number of its line."""
    for line, document in documents(text):
        for each in document if isinstance(document, list) else [document]:
            if isinstance(each, dict):
                yield line, each
    lines = text.splitlines()
    heads = (number for number, line in enumerate(lines) if {*line.strip().lower().split(",")} >= RCCL)
    if (head := next(heads, None)) is not None:
        names = lines[head].strip().split(",")
        for line, row in enumerate(csv.reader(lines[head + 1 :]), head + 2):
            if len(row) == len(names):
                yield line, {key: as_number(cell.strip()) for key, cell in zip(names, row, strict=True)}


def documents(text: str) -> Iterator[tuple[int, Any]]:
    """The whole text, or those of its lines that are JSON objects, each with the number of its line."""
    try:
        yield 1, json.loads(text)
    except ValueError:
        for number, line in enumerate(text.split("\n"), 1):
            if line.lstrip().startswith("{"):
                try:
                    yield number, json.loads(line.strip().rstrip(","))
                except ValueError:
                    continue


def _nccl_tests(log: NcclLog, line: int, result: Result) -> None:
    """Add the rows of a file of nccl-tests, and what its head says."""
    _program(log, line, " ".join(map(str, result.get("args") or [])))
    if isinstance(code := result.get("nccl_version"), int):
        log.release = release_of(code)
    log.forced |= FORCED.findall("\n".join(map(str, result.get("env") or [])))
    config = result.get("config")
    if isinstance(config, dict):
        log.per_process = max(1, _count(config.get("nthreads")) * _count(config.get("ngpus")))
        for device in config.get("devices") or []:
            if isinstance(device, dict):
                _listed(log, device)
    for each in result["results"]:
        if isinstance(each, dict) and isinstance(each.get("out_of_place"), dict):
            if "cpu_time" in each["out_of_place"]:
                log.refuse(line, "cpu_time is the time of the launch on the CPU (-C 1), expected time")
            _add(log, line, each, each["out_of_place"], ("time", "alg_bw", "bus_bw", "nwrong"))
            _program(log, line, str(each.get("experiment_name", "")))


def _listed(log: NcclLog, device: Result) -> None:
    """Note the ranks of a process by its first GPU."""
    first, at = _count(device.get("rank")), _count(device.get("device"))
    if first + log.per_process > MOST_RANKS:
        return
    for further in range(log.per_process):
        log.ranks[first + further] = str(device.get("group", ""))
        log.hosts[first + further] = str(device.get("hostname", "")), f"device {at + further}"
    log.lines.setdefault("rank 0", 1)
    log.devices.add(str(device.get("device_info", "")).strip())


def _rccl_tests(log: NcclLog, line: int, result: Result) -> None:
    """Add a row of rccl-tests, if it is out-of-place."""
    written = {key.lower(): key for key in result}
    of = {key: result[name] for key, name in written.items()}
    if of["inplace"] in (0, "0"):
        wrong = "#wrong" if "#wrong" in result else "wrong"
        _add(log, line, of, result, (written["time"], written["algbw"], written["busbw"], wrong))
    _program(log, line, str(of.get("name", of.get("collective", ""))))
    processes, nodes = _count(of.get("ranks", 1)), max(1, _count(of.get("nodes", 1)))
    ranks = processes * _count(of.get("gpusperrank", of.get("gpus")))
    if 0 < ranks <= MOST_RANKS and ranks % nodes == 0:
        log.ranks = dict.fromkeys(range(ranks), "")
        log.hosts = {rank: (f"node {rank * nodes // ranks}", f"device {rank}") for rank in range(ranks)}
        log.lines.setdefault("rank 0", line)


def _count(value: Any) -> int:
    return value if isinstance(value, int) and 0 <= value <= MOST_RANKS else 0


def _program(log: NcclLog, line: int, words: str) -> None:
    if (test := collective_of(words)) and not log.tests:
        log.tests[test] = line


def _add(log: NcclLog, line: int, result: Result, figures: Result, keys: tuple[str, str, str, str]) -> None:
    """Add a row; those of no bytes only count."""
    size, wrong = result.get("size"), figures.get(keys[3], 0)
    if not isinstance(size, int) or not 0 <= size < 10**15:
        log.refuse(line, f"size is {shown(str(size))}, expected a whole number of bytes")
    if str(wrong) not in ("None", "N/A", "0", "0.0"):  # None, N/A: not checked
        log.refuse(line, f"{size} B: {keys[3]} is {shown(str(wrong))}: results are wrong, expected 0 or N/A")
    if size == 0:
        log.empty += 1
        return
    time, algbw, busbw = (_number(log, line, key, figures.get(key)) for key in keys[:3])
    kind = " ".join(str(result[key]).strip() for key in ("type", "redop", "root") if key in result)
    log.rows.append(Row(line, size, kind, _count(result.get("numcycle")), time, algbw, busbw))


def _number(log: NcclLog, line: int, key: str, value: Any) -> RoundedNumber:
    number = printed(f"{value:.6g}") if isinstance(value, int | float) and not isinstance(value, bool) else None
    if number is None or (key == "time" and number.value == 0):
        log.refuse(line, f"{key} is {shown(str(value))}, expected a number{' above 0' * (key == 'time')}")
    return number
