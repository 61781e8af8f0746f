"""Imported event dumps: those of two runs of Primus, and those written from simulated runs."""

import json
import shutil
from functools import partial
from pathlib import Path

import pytest
from support import scenarios
from support.campaigns import thinned
from support.paths import SHARED
from support.profiles import event_dumps

from hybrid_des import load, simulate
from hybrid_des.errors import UsageError
from hybrid_des.interchange.profiles.op_table import has_ops
from hybrid_des.measured.imports.importing import import_profile
from hybrid_des.measured.replay.replaying import replay
from hybrid_des.report.files.staging import write_files

PRIMUS = SHARED / "traces" / "primus_pp8"
CHUNKED = SHARED / "traces" / "primus_pp8_vpp2"
MEMORY = {
    PRIMUS: [104.3, 95.6, 88.1, 80.3, 73.1, 65.9, 58.1, 52.2],
    CHUNKED: [130.6, 122.3, 115.4, 108.5, 101.0, 93.1, 85.2, 78.4],
}
instant = partial(scenarios.instant, steps=3)
measured = pytest.mark.skipif(not PRIMUS.exists(), reason="the dumps are not part of the project")


def imported(source, folder):
    """The import, written, and its scenario's file."""
    found = import_profile(source)
    write_files(folder, found.contents())
    return found, folder / "scenario.yaml"


@measured
@pytest.mark.parametrize(
    ("source", "schedule", "simulated", "step", "mean", "worst"),
    [
        (PRIMUS, "1f1b", 3.2736, 3.271, 0.10, 0.15),  # pauses of 0.8 ms between ops, 0.75 ms from rank to rank
        (CHUNKED, "interleaved-1f1b", 2.9150, 2.917, 0.06, 0.11),
    ],
    ids=["1f1b", "interleaved"],
)
def test_runs_of_primus_are_met(source, schedule, simulated, step, mean, worst):
    figures = import_profile(source).figures
    assert figures["schedule"] == schedule
    assert figures["steps"] == [*range(3, 21)]
    assert figures["simulated_step_time_s"] == pytest.approx(simulated, abs=5e-4)
    assert figures["measured_step_time_s"] == pytest.approx(step, abs=5e-4)
    assert figures["mean_error_percent"] == pytest.approx(mean, abs=5e-3)
    assert figures["worst_error_percent"] == pytest.approx(worst, abs=5e-3)
    assert figures["memory_gib"] == pytest.approx(MEMORY[source], abs=0.06)
    assert 7.3 < figures["memory_per_microbatch_gib"] < 7.5


@measured
@pytest.mark.parametrize(("source", "simulated", "mean"), [(PRIMUS, 3.238, 1.03), (CHUNKED, 2.888, 0.99)])
def test_replays_of_primus_take_ops_alone(source, simulated, mean):
    steps = replay(source).steps
    assert steps.simulated_s.mean() == pytest.approx(simulated, abs=5e-4)
    assert steps.error_percent.abs().mean() == pytest.approx(mean, abs=5e-3)


@measured
def test_the_long_forward_of_primus_is_flagged():
    unusual = import_profile(PRIMUS).figures["unusual"]
    one = next(one for one in unusual if one["rank"] == 0)
    assert (one["kind"], one["microbatch"], round(one["seconds"], 2)) == ("F", 7, 0.34)
    assert one["median_s"] == pytest.approx(0.0575, abs=5e-4)


@measured
@pytest.mark.parametrize(
    ("source", "kind", "chunks", "step", "error"),
    [(CHUNKED, "1f1b", 1, 3.245, 1.7), (PRIMUS, "interleaved-1f1b", 2, 2.873, -2.3)],
    ids=["1f1b from interleaved", "interleaved from 1f1b"],
)
def test_means_and_pauses_predict_the_other_schedule(source, kind, chunks, step, error, tmp_path):
    _, file = imported(source, tmp_path)
    changes = [f"schedule.kind={kind}", f"schedule.chunks={chunks}", "steps=1"]
    predicted = simulate(load(file, changes)).summary["step_time_s"]
    found = 100 * (predicted / step - 1)
    assert found == pytest.approx(error, abs=0.1)


KINDS = [("1f1b", {}), ("gpipe", {}), ("interleaved-1f1b", {"chunks": 2})]


@pytest.mark.parametrize(("kind", "options"), thinned(KINDS, slow=[("gpipe", {})]))
def test_dumps_of_our_own_runs_are_met(kind, options, tmp_path):
    scenario = instant(kind, schedule=options, steps=4, jitter={"distribution": "lognormal", "sigma": 0.2})
    found, file = imported(event_dumps(scenario, tmp_path / "dump"), tmp_path / "out")
    assert found.figures["schedule"] == kind
    assert found.figures["skipped_steps"] == [1, 2]
    assert found.figures["worst_error_percent"] == pytest.approx(0, abs=1e-7)
    assert found.figures["clocks"]["spread_s"] == pytest.approx(0, abs=1e-9)
    again = simulate(load(file)).summary["step_time_s"]
    assert again == pytest.approx(found.figures["simulated_step_time_s"], rel=1e-9)
    measured, simulated = (shown.summary["idle_s"] for shown in found.shown())
    assert measured["pipeline_message"] == 0  # ranks waited for ops, whose messages took no time
    assert sum(measured.values()) == pytest.approx(sum(simulated.values()))


def test_an_imported_scenario_takes_other_values(tmp_path):
    """Medians of equal ops are those ops, so that what is predicted is the other scenario itself."""
    _, file = imported(event_dumps(instant(), tmp_path / "dump"), tmp_path / "out")
    changes = [
        "schedule.kind=gpipe",
        "schedule.microbatches=12",
        "parallel.data=2",
        "cluster.gpus_per_node=8",
        "steps=1",
    ]
    for changed, other in (
        (changes, instant("gpipe", 4, 12, 2, steps=1)),
        (["schedule.kind=interleaved-1f1b", "schedule.chunks=2"], instant("interleaved-1f1b", schedule={"chunks": 2})),
        (["parallel.pipeline=2"], instant(p=2, workload={"forward": "2 s", "backward": "4 s"})),
    ):
        expected = simulate(other).summary["step_time_s"]
        assert simulate(load(file, changed)).summary["step_time_s"] == expected


def test_links_of_an_imported_scenario_carry_messages(tmp_path):
    _, file = imported(event_dumps(instant(), tmp_path / "dump"), tmp_path / "out")
    links = ["cluster.nvlink={bandwidth: 1 GB/s, latency: 0}", "workload.activation=1 GB"]
    sent = scenarios.scenario("1f1b", 4, 8, cluster={"nvlink": {"bandwidth": "1 GB/s", "latency": 0}}, steps=3,
                              workload={"forward": "1 s", "backward": "2 s", "activation": "1 GB"})  # fmt: skip
    assert simulate(load(file, links)).summary["step_time_s"] == simulate(sent).summary["step_time_s"]


def test_replay_takes_event_dumps(tmp_path):
    folder = event_dumps(instant(), tmp_path / "dump")
    assert replay(folder).steps.simulated_s.tolist() == [33.0]
    assert replay(folder).trace.schedule == "1f1b"


@pytest.mark.parametrize("form", ["gztar", "zip"])
def test_archives_and_lists_of_files_are_read(form, tmp_path):
    event_dumps(instant(), tmp_path / "dumps")
    packed = shutil.make_archive(tmp_path / "packed", form, tmp_path, "dumps")
    figures = import_profile(tmp_path / "dumps").figures
    for others in (packed, [*(tmp_path / "dumps").iterdir()]):
        assert import_profile(others).figures | {"files": figures["files"]} == figures


@pytest.mark.parametrize("form", ["gztar", "tar", "zip"])
def test_replay_and_import_name_members_of_archives(form, tmp_path):
    event_dumps(instant(), tmp_path / "dumps")
    packed = shutil.make_archive(tmp_path / "packed", form, tmp_path, "dumps")
    found = import_profile(packed)
    assert found.figures["files"] == [f"{packed}/dumps/pp_rank_{rank}.json" for rank in range(4)]
    assert f"{packed}/dumps" in found.values["description"]
    assert has_ops(Path(packed))
    replayed = replay(packed)
    assert replayed.steps.simulated_s.tolist() == [33.0]
    assert replayed.trace.durations.source == f"{packed}/dumps"


def test_errors_name_members_of_archives(tmp_path):
    event_dumps(instant(), tmp_path / "dumps")
    (tmp_path / "dumps" / "pp_rank_2.json").write_text('{"1": {"fwd_start": [0]}}')
    packed = shutil.make_archive(tmp_path / "packed", "zip", tmp_path, "dumps")
    for read in (import_profile, replay):
        with pytest.raises(UsageError) as refused:
            read(packed)
        assert str(refused.value).startswith(f"{packed}/dumps")


def test_a_cut_archive_is_refused_in_one_line(tmp_path):
    event_dumps(instant(), tmp_path / "dumps")
    packed = shutil.make_archive(tmp_path / "packed", "tar", tmp_path, "dumps")
    cut = tmp_path / "cut.tar"
    cut.write_bytes(Path(packed).read_bytes()[:5000])
    with pytest.raises(UsageError, match=r"cut\.tar: cannot be unpacked: "):
        import_profile(cut)


def test_a_planted_surprise_is_named(tmp_path):
    def late(dumps):
        step = dumps[1]["3"]
        start = step["fwd_start"][4]
        for name in ("fwd_start", "fwd_end", "bwd_start", "bwd_end"):
            step[name] = [time + (5000 if time > start else 0) for time in step[name]]

    found = import_profile(event_dumps(instant(), tmp_path / "dump", late))
    (one,) = found.unusual
    assert (one.what, one.rank, one.step, round(one.seconds), round(one.usual)) == ("F4", 1, 3, 6, 1)
    assert "F4 of rank 1 in step 3: 6 s, usually 1 s" in found.text()


def minutes_apart(dumps):
    for name in ("fwd_start", "fwd_end", "bwd_start", "bwd_end"):
        dumps[2]["3"][name] = [time + 300_000 for time in dumps[2]["3"][name]]


def test_clocks_minutes_apart_are_reported(tmp_path):
    found = import_profile(event_dumps(instant(), tmp_path / "dump", minutes_apart))
    assert found.clocks["apart"]
    assert found.figures["simulated_step_time_s"] == 33.0
    assert any("common clock" in one for one in found.unknown)


def backwards(dumps):
    dumps[1]["3"]["fwd_end"][2] = -1.0


def short(dumps):
    dumps[1]["3"]["bwd_end"].pop()


def other_steps(dumps):
    dumps[1]["7"] = dumps[1].pop("3")


def no_rank(dumps):
    del dumps[2]


def no_number(dumps):
    dumps[0]["one"] = {}


BROKEN = [
    (backwards, "step 3: fwd: op 2 ends at -1 ms, before its start at "),
    (short, "step 3: bwd_start and bwd_end: expected two lists of the same length"),
    (other_steps, "no step 3, which pp_rank_0.json has; are they of one run?"),
    (no_rank, "3 of 4 pipeline ranks; rank 2 has no event dump"),
    (no_number, '"one": expected the number of a step, and its events'),
]


@pytest.mark.parametrize(("change", "said"), BROKEN, ids=lambda one: getattr(one, "__name__", ""))
def test_broken_dumps_are_refused_in_one_line(change, said, tmp_path):
    folder = event_dumps(instant(), tmp_path / "dump", change)
    with pytest.raises(UsageError) as refused:
        import_profile(folder)
    assert said in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


def test_cut_json_is_refused_in_one_line(tmp_path):
    folder = event_dumps(instant(), tmp_path / "dump")
    file = folder / "pp_rank_1.json"
    file.write_text(file.read_text()[:300])
    with pytest.raises(UsageError, match=r"pp_rank_1\.json: not whole JSON: "):
        import_profile(folder)


@pytest.mark.usefixtures("unpainted")
def test_the_command_writes_and_prints(run, refused, tmp_path):
    folder = event_dumps(instant(), tmp_path / "dump")
    code, out, err = run("import", folder, "--out", tmp_path / "out", "--json")
    figures = json.loads(out)
    assert (code, err) == (0, [f"wrote 9 files to {tmp_path / 'out'}"])
    assert figures["measured_step_time_s"] == figures["simulated_step_time_s"] == 33.0
    assert json.loads((tmp_path / "out" / "import.json").read_text()) == figures
    assert "measured against simulated" in (tmp_path / "out" / "timelines.html").read_text()
    assert "JSON of an unknown kind" in refused("import", folder / "config.json")
