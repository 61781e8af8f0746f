"""Host time and latency of recorded pipelines: found again where planted, and what they are worth to predictions."""

import pandas as pd
import pytest
from support.campaigns import thinned
from support.paths import GOLDEN
from support.scenarios import instant

from hybrid_des import load, simulate
from hybrid_des.errors import UsageError
from hybrid_des.measured.imports.importing import import_profile

PLANTED = {"forward": "3 ms", "backward": "7 ms", "weight": "2 ms", "between": "5 ms"}
COLUMNS = ["step", "pipeline_rank", "chunk", "kind", "microbatch", "start_s", "end_s"]
RECORDINGS = GOLDEN / "recordings"
MEASURED = {  # milliseconds: medians of torch's steps, first to last op (tests/golden/README.md)
    "1f1b_4": (1282.0, "1f1b", 1, 4),
    "zbv_8": (1660.1, "zb-v", 2, 8),
    "int_8": (1803.0, "interleaved-1f1b", 2, 8),
    "1f1b_8": (2034.2, "1f1b", 1, 8),
    "gpipe_8": (2048.4, "gpipe", 1, 8),
}


def planted(kind, folder, chunks, **sections):
    """A table of the ops of a run with planted overheads, over links of 4 ms."""
    scenario = instant(
        kind, schedule={"chunks": chunks}, steps=2, cluster={"nvlink": {"latency": "4 ms"}},
        workload={"overhead": PLANTED}, **sections,
    )  # fmt: skip
    file = folder / f"{kind}.csv"
    ops = simulate(scenario).timeline.query("lane == 'compute'")
    ops[COLUMNS].to_csv(file, index=False)
    return file


def test_ops_take_the_time_of_the_host_besides():
    """A rank of one stage is never idle but between ops; cut in two, each of its ops takes the host's time."""
    host = {"workload": {"overhead": PLANTED}}
    for kind, chunks, ops, work in (("1f1b", 1, 16, 24 + 8 * 0.010), ("interleaved-1f1b", 2, 32, 24 + 16 * 0.010)):
        run = simulate(instant(kind, 1, 8, schedule={"chunks": chunks}, **host))
        assert run.summary["step_time_s"] == pytest.approx(work + (ops - 1) * 0.005, abs=1e-12)
        assert run.summary["busy_s"] == pytest.approx(work, abs=1e-12)


def test_split_backwards_take_the_time_of_both_parts():
    run = simulate(instant("zb-h1", 4, 8, workload={"overhead": PLANTED}))
    lasting = run.timeline.query("lane == 'compute'").groupby("kind").apply(lambda ops: (ops.end_s - ops.start_s).max())
    assert lasting.to_dict() == pytest.approx({"F": 1.003, "B": 1.007, "W": 1.002})


def test_pauses_are_the_hosts_at_any_speed():
    host = {"workload": {"overhead": PLANTED}}
    slow = simulate(instant("1f1b", 1, 8, slow=[{"gpu": 0, "factor": 0.5}], **host))
    assert slow.summary["step_time_s"] == pytest.approx(2 * (24 + 8 * 0.010) + 15 * 0.005)


def test_planted_overheads_are_given_back(tmp_path):
    one, two = (planted(kind, tmp_path, chunks) for kind, chunks in (("1f1b", 1), ("interleaved-1f1b", 2)))
    found = import_profile(one, overheads_from=[two]).figures["overhead"]
    expected = {"forward": 0.003, "backward": 0.007, "between": 0.005, "latency": 0.004}
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=0.02)


def test_a_shorter_first_stage_is_not_taken_for_host_time(tmp_path):
    """Its input needs no gradient: of its rank's backwards half a stage is missing, whole or cut in two."""
    files = []
    for kind, chunks in (("1f1b", 1), ("interleaved-1f1b", 2)):
        files.append(planted(kind, tmp_path, chunks))
        table = pd.read_csv(files[-1])
        first = (table.pipeline_rank == 0) & (table.chunk == 0) & (table.kind == "B")
        table.loc[first, "start_s"] += 1 / chunks
        table.to_csv(files[-1], index=False)
    found = import_profile(files[0], overheads_from=files[1:]).figures["overhead"]
    assert found["backward"] == pytest.approx(0.007, rel=0.02)
    assert found["forward"] == pytest.approx(0.003, rel=0.02)


def test_planted_parts_of_backwards_are_given_back(tmp_path):
    one, two = (planted(kind, tmp_path, chunks) for kind, chunks in (("zb-h1", 1), ("zb-v", 2)))
    found = import_profile(one, overheads_from=[two]).figures["overhead"]
    assert found["weight"] == pytest.approx(0.002, rel=0.02)
    assert found["forward"] == pytest.approx(0.003, rel=0.02)


def test_an_import_with_planted_overheads_predicts_other_schedules(tmp_path):
    one, two = (planted(kind, tmp_path, chunks) for kind, chunks in (("1f1b", 1), ("interleaved-1f1b", 2)))
    import_profile(two, overheads_from=[one]).write(tmp_path / "out")
    changes = ["schedule.kind=gpipe", "schedule.chunks=1", "steps=1"]
    latency = {"cluster": {"nvlink": {"latency": "4 ms"}}}
    expected = simulate(instant("gpipe", workload={"overhead": PLANTED}, **latency)).summary["pipeline_time_s"]
    found = simulate(load(tmp_path / "out" / "scenario.yaml", changes)).summary["pipeline_time_s"]
    assert found == pytest.approx(expected, rel=1e-6)


def test_one_number_of_chunks_does_not_tell_host_time(tmp_path):
    found = import_profile(planted("1f1b", tmp_path, 1)).figures
    assert found["overhead"]["forward"] is None
    assert found["overhead"]["between"] == pytest.approx(0.005, rel=0.02)
    assert any("--overheads-from" in said for said in found["unknown"])


def test_a_recording_of_other_ranks_is_refused(tmp_path):
    one = planted("1f1b", tmp_path, 1)
    (tmp_path / "two").mkdir()
    two = planted("gpipe", tmp_path / "two", 1, parallel={"pipeline": 2})
    with pytest.raises(UsageError, match=r"2 pipeline ranks; .* has 4"):
        import_profile(one, overheads_from=[two])


@pytest.mark.parametrize("base", thinned(["1f1b_4", "1f1b_8", "int_8"], slow=["1f1b_4", "int_8"]))
def test_steps_of_other_torch_schedules_are_predicted(base, tmp_path):
    """Within 3 %, in the measured order, from any of three recordings with the overheads of all three."""
    others = [RECORDINGS / f"{name}.csv" for name in ("1f1b_4", "1f1b_8", "int_8") if name != base]
    imported = import_profile(RECORDINGS / f"{base}.csv", overheads_from=others)
    assert imported.figures["worst_error_percent"] < 1
    imported.write(tmp_path)
    found = {}
    for name, (measured, kind, chunks, microbatches) in MEASURED.items():
        changes = [f"schedule.kind={kind}", f"schedule.chunks={chunks}", f"schedule.microbatches={microbatches}"]
        run = simulate(load(tmp_path / "scenario.yaml", [*changes, "steps=1", "workload.timing=mean"]))
        found[name] = 1000 * run.summary["pipeline_time_s"]
        assert found[name] == pytest.approx(measured, rel=0.03)
    assert list(found.values()) == sorted(found.values())
