"""What is said of a loop: its verdict, report, tables, page and picture."""

import json
import re
from dataclasses import replace

import pytest
from support.loop_records import VALUES, record
from support.paths import SCENARIOS
from support.small_loop import TEXT

from hybrid_des import simulate_rl
from hybrid_des.errors import UsageError
from hybrid_des.scenario.loading import document_of
from hybrid_des.studies.rl.report import SO_FAR, engine_parts, verdict_of
from hybrid_des.studies.rl.result import result_of
from hybrid_des.studies.rl.whatifs import Change, WhatIf


def loop_of(**changes):
    return result_of(document_of({**VALUES, **changes}), loop=lambda scenario: record())


def tried(words, gain, age=0.5, kind="ahead"):
    return WhatIf(Change(kind, words, {}), 100 * (1 - gain), 0.0, age, 0.0, gain)


def test_the_verdict_names_losses_and_what_would_help():
    figures = loop_of().figures
    told = verdict_of(
        figures, [tried("ahead 1", 0.2, 1.0), tried("72 instead of 64", 0.1, kind="split"), tried("more", -0.1)]
    )
    assert told == (
        "The trainer waits 30 s of 100 s, an engine idles 27 s; "
        "ahead 1: 80 s, mean age 1.00 instead of 0.50; 72 instead of 64: 90 s."
    )


def test_a_verdict_says_that_nothing_helps():
    told = verdict_of(loop_of().figures, [tried("ahead 1", 0.001), tried("ahead 2", -0.1)])
    assert "none of the 2 changes tried shortens it (ahead 1: 99.9 s, ahead 2: 110 s)" in told


def test_a_trainer_without_room_comes_first():
    loop = result_of(document_of(VALUES), loop=lambda scenario: replace(record(), trainer_fits=False))
    assert verdict_of(loop.figures, []).startswith("OUT OF MEMORY: the training step does not fit")
    assert loop.summary["rl"]["out_of_memory"]


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted((SCENARIOS / "rl").glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_loops_fit(path):
    """With simulated steps: a measured one would not be asked."""
    assert not simulate_rl(path, {"rl.trainer": "simulated", "steps": 1}).summary["rl"]["out_of_memory"]


def test_of_equal_gains_the_younger_samples_are_told():
    figures = loop_of().figures
    told = verdict_of(figures, [tried("ahead 2", 0.203, 2.0), tried("ahead 1", 0.2, 1.0)])
    assert "ahead 1: 80 s" in told
    assert "ahead 2" not in told
    assert "ahead 2" in verdict_of(figures, [tried("ahead 2", 0.3, 2.0), tried("ahead 1", 0.2, 1.0)])


def test_a_cycle_of_several_batches_says_so():
    sparse = {**VALUES, "rl": {**VALUES["rl"], "sync": {"time": 2, "every": 2}}}
    loop = result_of(document_of(sparse), loop=lambda scenario: record())
    assert "mean of 2 cycles of 2 batches after 1 of warm-up" in loop.report(200)


def test_what_lending_is_worth_is_always_told():
    assert "without lending: 120 s" in verdict_of(loop_of().figures, [tried("without lending", -0.2, kind="lend")])


@pytest.mark.parametrize("width", [80, 100, 200])
def test_a_report_is_one_screen(width):
    lines = loop_of().report(width).splitlines()
    assert len(lines) <= (24 if width > 80 else 30)
    assert max(map(len, lines)) <= width


def test_a_report_says_how_such_runs_were_predicted():
    told = re.sub(r"\s+", " ", loop_of().report())
    assert SO_FAR in told
    assert "the trainer's time is measured (rl.trainer)" in told


def test_parts_of_engines_sum_for_colocated_ones_too():
    loop = simulate_rl(document(rollout={"on": "trainer", "tensor": 4, "switch": "1 s"}, ahead=0).value)
    figures = loop.figures
    assert sum(time for _, time in engine_parts(figures).values()) == figures.rollout_gpus * figures.time
    assert figures.tail > 0
    assert engine_parts(figures)["away"][1] >= figures.trainer["train"] * figures.rollout_gpus
    assert "Generation takes" in verdict_of(figures, [])


def document(**rl):
    made = document_of({**VALUES})
    made.value.update(document_of(loaded()).value)
    made.value["rl"] |= rl
    return made


def loaded():
    import yaml

    return yaml.safe_load(TEXT)


def test_tables_have_units_in_their_columns():
    loop = loop_of()
    assert {"begun_s", "ended_s", "response_tokens", "recomputed_tokens", "age", "fate"} <= {*loop.samples}
    assert [*loop.engine_timeline] == ["replica", "begin_s", "end_s", "state", "sequences"]
    assert [*loop.trainer_timeline] == ["begin_s", "end_s", "state", "batch"]
    assert [*loop.syncs] == ["begin_s", "end_s", "version", "cycle_s", "warm_up"]
    assert [*loop.queue] == ["time_s", "groups", "running"]
    assert loop.samples.begun_s.max() == 200


def test_what_never_happened_has_no_time():
    one = record().samples[0]._replace(ended=-1, ready=-1, fate="running", batch=-1, age=-1)
    loop = result_of(document_of(VALUES), loop=lambda scenario: record(samples=(one,)))
    assert loop.samples.ended_s.isna().all()


def test_files_hold_everything(tmp_path):
    written = loop_of().write(tmp_path)
    assert {path.name for path in written.paths} == {
        "summary.json", "report.txt", "what_ifs.json", "samples.csv", "engines.csv", "trainer.csv", "syncs.csv",
        "queue.csv", "loop.png", "loop.svg", "loop.html",
    }  # fmt: skip
    facts = json.loads((tmp_path / "summary.json").read_text())
    assert facts["rl"]["cycle_s"] == 100
    page = (tmp_path / "loop.html").read_text()
    for part in ("The trainer waits 30 s", "waits for the long tail", "replica 1", "weight syncs", "What if"):
        assert part in page


def test_a_page_offers_flags_to_copy():
    from hybrid_des.studies.rl.page import loop_page

    loop = loop_of()
    helping = WhatIf(Change("ahead", "ahead 1", {"rl.ahead": 1}), 80.0, 0.0, 1.0, 0.1, 0.2)
    page = loop_page(loop.scenario, loop.figures, [helping], "")
    words = re.sub("<[^>]+>", " ", re.search(r'<div class="flags">.*?</div>', page)[0])
    assert words.split() == ["--set", "rl.ahead=1", "copy"]


def test_without_time_for_what_ifs_there_are_none():
    loop = replace(loop_of(), unfinished=True)
    assert (loop.what_ifs, loop.all_what_ifs) == ((), ())
    assert "no time for what-ifs" in loop.report()


def test_a_scenario_without_a_loop_is_refused():
    with pytest.raises(UsageError, match="has no `rl`"):
        simulate_rl("scenarios/first.yaml")


def test_parts_of_either_bar_sum_to_all_of_the_time():
    bars = re.findall(r'<div class="shares">(.*?)</div>', loop_of().page())
    assert len(bars) == 2
    for bar in bars:
        assert sum(map(float, re.findall(r"width:([\d.]+)%", bar))) == pytest.approx(100, abs=0.05)
