"""The text of explain: at most fifteen lines, plain sentences, the same numbers as the report and JSON."""

import json
import re
from dataclasses import replace

import pytest
from support.explanations import explained
from support.paths import ROOT, SCENARIOS
from support.verdicts import of_model

from hybrid_des import load, render_explanation, simulate
from hybrid_des.analysis.advice import Advice, AdviceLine
from hybrid_des.analysis.difference import Difference
from hybrid_des.analysis.losses import losses, step_alone
from hybrid_des.report.content import content_of
from hybrid_des.report.explained import in_brief, offered, opening, rest
from hybrid_des.report.page.traced_pages import explanation_page
from hybrid_des.scenario.loading import scenario_from
from hybrid_des.studies.advice import advise

PAIR = re.compile(r"\b[a-z_]+(\.[a-z_]+)*=\S")
CASES = ROOT.parent / "shared" / "advice"
MY_13B = [file for file in [ROOT.parent / "shared" / "repro5" / "main" / "repro_my13b.yaml"] if file.is_file()]
TIGHT = {"cluster": {"gpu": "a100-40gb"}, "model": {"base": "llama2-7b"}, "parallel": {"pipeline": 4}}


def changed(scenario, gain=0.25, **more):
    """Advice of three lines, as long as those of real jobs."""
    lines = [
        AdviceLine(
            words=("no recompute", "TP8 → TP4, DP2 → DP4"), settings={"recompute": "none", "parallel.tensor": 4},
            kinds=("recompute", "layout"), scenario=scenario, step_s=14.8, gain=gain,
            sure=Difference(("recompute",), 0.1, 20), held=43 * 10**9, memory=80 * 10**9,
            remarks=("checkpoints change their layout",),
            flags=("--tensor-model-parallel-size 4", "drop --recompute-granularity, --recompute-method"),
        ),
        AdviceLine(
            ("ZB-V schedule",), {"schedule.kind": "zb-v", "parallel.order": ["data", "tensor"]}, ("schedule",),
            scenario, 16.0, 0.2, None, 60, 80,
        ),
        AdviceLine(("no recompute",), {"recompute": None}, ("recompute",), scenario, 17.0, 0.1, None, 60, 80),
    ]  # fmt: skip
    return replace(Advice(scenario, 20.0, 60, 80, lines, framework="Megatron-LM"), **more)


@pytest.fixture(scope="module")
def found():
    return losses(scenario_from(of_model(parallel={"tensor": 4, "pipeline": 2}, recompute="full")))


def test_the_opening_is_that_of_the_whole_text(found):
    first, whole = opening(found.run), render_explanation(found)
    assert whole == f"{first}\n{rest(found, above=first.count(chr(10)) + 1)}"


def test_a_proposal_says_gain_interval_memory_and_flags(found):
    text = render_explanation(found, 140, advice=changed(found.run.scenario))
    assert "Change     Same model, batch and machine; flags for Megatron-LM.\n" in text
    assert (
        " 1  no recompute; TP8 → TP4, DP2 → DP4: 14.8 s (−25 %, likely −32 to −17 %), 43 GB, "
        "checkpoints change their layout\n"
        "    --tensor-model-parallel-size 4; drop --recompute-granularity, --recompute-method\n" in text
    )
    assert (
        " 2  ZB-V schedule: 16 s (−20 %), 60 B\n"
        "    --set schedule.kind=zb-v --set 'parallel.order=[data, tensor]'\n" in text
    )
    assert " 3  no recompute: 17 s (−10 %), 60 B\n    --set recompute=null" in text


def test_flags_are_left_out_before_changes(found):
    """Cut to one line each, then those of later changes, then all."""
    first, *_ = changed(found.run.scenario).lines

    def lines_with(flags, change):
        lines = [replace(first, words=(change,), flags=(*flags, f"--number {number}")) for number in range(3)]
        text = render_explanation(found, 100, advice=changed(found.run.scenario, lines=lines))
        assert len(text.splitlines()) <= 15 and re.findall(r"^ (\d)  ", text, re.MULTILINE) == ["1", "2", "3"]
        return text

    cut = lines_with(("--a-flag 1",) * 40, "a change")
    assert cut.count(f"\n    {'--a-flag 1 ' * 8}…") == 3 and "; all flags with --details." in cut
    some = lines_with(("--a-flag 1",) * 40, "a change of many settings that needs two lines, " * 2)
    assert some.count("--a-flag 1 …") == 1 and "; all flags with --details." in some
    whole = lines_with((), "a change")
    assert whole.count("--number") == 3 and "--details" not in whole


def test_changes_without_room_are_counted(found):
    first, *_ = changed(found.run.scenario).lines
    long = replace(first, words=("a change that needs more lines than there are, " * 8,))
    text = render_explanation(found, 100, advice=changed(found.run.scenario, lines=[long] * 3))
    assert len(text.splitlines()) <= 15 and re.findall(r"^ (\d)  ", text, re.MULTILINE) == ["1"]
    assert "; 2 more with --details." in text


def test_flags_written_above_are_referred_to(found):
    first, *_ = changed(found.run.scenario).lines
    text = render_explanation(found, 140, advice=changed(found.run.scenario, lines=[first, first]))
    assert text.count("--tensor-model-parallel-size 4") == 1 and "    (flags as in 1)" in text


def test_remarks_without_room_beside_a_change_stand_below(found):
    first, *_ = changed(found.run.scenario).lines
    lines = [replace(first, words=("a change of so many settings that no remark has room",)), first, first]
    text = render_explanation(found, 120, advice=changed(found.run.scenario, lines=lines))
    assert text.count("43 GB, checkpoints change their layout") == 2
    assert text.endswith("\n    (change 1: checkpoints change their layout)")


def test_hardware_comes_last_where_no_setting_helps_much():
    found = losses(load(SCENARIOS / "contention_slower.yaml"))
    without, small, large = (
        render_explanation(found, advice=changed(found.run.scenario, lines=lines))
        for lines in ([], changed(found.run.scenario, 0.03).lines[:1], changed(found.run.scenario, 0.4).lines[:1])
    )
    assert without.splitlines()[-1].startswith("Hardware   NICs twice as fast would change the step by −")
    assert small.splitlines()[-1].startswith("Hardware ") and "Hardware" not in large
    assert "Change     None of the settings that were tried makes the step 2 % shorter." in without


def test_a_slow_node_is_to_be_repaired_first():
    scenario = load(SCENARIOS / "h100_2x8.yaml", ["schedule.microbatches=8", "slow=[{node: 1, factor: 0.8}]"])
    found = losses(scenario)
    text = render_explanation(found, advice=changed(scenario))
    assert re.search(
        r"^Repair     If node 1 were as fast as the others, the step would take \S+ m?s \(−\d+ %\)\.$",
        text,
        re.MULTILINE,
    )
    assert text.index("Repair") < text.index("Change")
    assert "Node 1 computes for " in found.verdict


def test_what_does_not_fit_says_what_fills_the_gpu():
    found = losses(load(TIGHT | {"schedule": {"kind": "1f1b", "microbatches": 4}}))
    fitting = changed(found.run.scenario, -0.29, held=49 * 10**9, memory=40 * 10**9)
    lines = render_explanation(found, 150, advice=fitting).splitlines()
    assert re.fullmatch(r"OUT OF MEMORY: the fullest GPU needs [\d.]+ of 40 GB, [\d.]+ GB too much", lines[1])
    assert re.match(r"Memory     rank 0: optimizer state [\d.]+ GB, activations of 4 micro-batches", lines[2])
    assert re.match(r"Step       A step would take \S+ m?s with enough memory: ", lines[3])
    assert not any(line.startswith("Main loss") for line in lines)
    assert lines[5].startswith("To fit     Same model, batch and machine; flags for Megatron-LM.")
    assert lines[6].startswith(" 1  no recompute; TP8 → TP4, DP2 → DP4: 14.8 s, 43 of 80 GB, ")


def test_unstated_memory_is_left_out():
    found = losses(load(SCENARIOS / "prototype_4gpu.yaml"))
    text = render_explanation(found, advice=changed(found.run.scenario))
    assert " 2  ZB-V schedule: 16 s (−20 %)\n" in text and " GB" not in text


def test_if_nothing_fits_the_nearest_plan_is_named():
    found = losses(load(TIGHT | {"schedule": {"kind": "1f1b", "microbatches": 4}}))
    nearest = replace(changed(found.run.scenario).lines[0], held=45 * 10**9, memory=40 * 10**9)
    text = render_explanation(found, 200, advice=Advice(found.run.scenario, 1.6, 49, 40, nearest=nearest))
    assert (
        "To fit     None of the settings that were tried fits; the nearest is no recompute; TP8 → TP4, DP2 → DP4, which"
        in text
    )
    assert text.endswith("lacks 5 GB.")


SHIPPED = sorted(
    file
    for file in [*SCENARIOS.glob("*.yaml"), *(CASES.glob("*.yaml") if CASES.is_dir() else ()), *MY_13B]
    if not re.search(r"^(sweep|search|jobs):", file.read_text(encoding="utf-8"), re.MULTILINE)
)  # fmt: skip
QUICK = {
    "a100_8x.yaml", "h100_2x8.yaml", "prototype_4gpu.yaml", "21.yaml",
}  # fmt: skip
SHOWN = {80: 2, 100: 3, 120: 3}  # changes, if there are as many, by columns


@pytest.mark.parametrize(
    "file",
    [pytest.param(file, marks=() if file.name in QUICK else pytest.mark.slow, id=file.stem) for file in SHIPPED],
)
def test_the_text_has_at_most_fifteen_lines_without_keys(file):
    scenario = load(file)
    found = losses(scenario)
    advised = advise(scenario, run=found.run)
    for width, most in SHOWN.items():
        text = render_explanation(found, width, advice=advised)
        lines = text.splitlines()
        assert len(lines) <= 15 and max(map(len, lines)) <= width
        if file.parent != CASES:
            assert len(re.findall(r"^ \d  ", text, re.MULTILINE)) >= min(most, len(advised.lines)), width
    assert [line for line in lines if PAIR.search(line) and not line.startswith("    ")] == []
    summary = simulate(scenario).summary
    shares, loss = summary["step_shares"], found.main_loss
    assert f"Time       GPUs spend {shares['computing'] * 100:.0f} % of the step computing" in text
    if loss is not None and not summary["out_of_memory"]:
        assert f"Main loss  {shares[loss] * 100:.0f} % of the step goes to " in text


@pytest.mark.parametrize("name", ["prototype_4gpu", pytest.param("contention_slower", marks=pytest.mark.slow)])
def test_causes_change_nothing_in_the_short_text(name):
    whole = explained(name)
    assert render_explanation(whole) == render_explanation(losses(whole.run.scenario), advice=whole.advice)


def test_everything_shows_the_same_verdict_and_lines():
    whole = explained("prototype_4gpu")
    whole = replace(whole, advised=lambda: changed(whole.run.scenario))
    verdict, brief = whole.verdict, in_brief(whole.losses)
    first, *_ = offered(whole.losses, whole.advice)["lines"]
    page, notebook = explanation_page(whole), whole._repr_html_()
    assert brief["Main loss"] == [verdict]
    assert brief["Time"][0] in notebook
    assert first["change"] == "no recompute; TP8 → TP4, DP2 → DP4"
    for shown in (" ".join(page.split()), notebook):
        assert verdict in shown
        assert "no recompute; TP8 → TP4, DP2 → DP4" in shown
    assert "ritical path" not in render_explanation(whole) and "Critical path  " in page


def test_json_has_the_verdict_the_loss_and_advice(run):
    code, out, _ = run("explain", SCENARIOS / "prototype_4gpu.yaml", "--json")
    found = json.loads(out)
    summary = simulate(SCENARIOS / "prototype_4gpu.yaml").summary
    assert code == 0
    assert (
        found["verdict"].startswith("11 % of the step goes to the pipeline bubble: ") and found["main_loss"] == "bubble"
    )
    assert found["step_shares"] == summary["step_shares"]
    assert (found["efficiency"], found["busy_ratio"]) == (summary["efficiency"], summary["busy_ratio"])
    assert {"next", "advice", "path", "ladder", "ranking", "proposals", "what_if", "idle"} <= found.keys()


def test_what_a_user_asks_is_answered_in_the_text(run):
    asked = ("--what-if", "schedule.kind=gpipe", "--what-if", "rank.1.time=2x")
    _, out, _ = run("explain", SCENARIOS / "prototype_4gpu.yaml", *asked)
    assert re.search(r"^What if    schedule.kind=gpipe: \S+", out, re.MULTILINE)
    assert re.search(r"^           rank.1.time=2x: \+\d+ %", out, re.MULTILINE)
    assert "links twice as fast" not in out


@pytest.mark.slow
def test_details_are_those_who_ask_for(run):
    labels = ("Critical path", "What if", "Idealized", "Sensitivity", "Idle time")
    short, long = (run("explain", SCENARIOS / "prototype_4gpu.yaml", *more)[1] for more in ((), ("--details",)))
    assert long.startswith(short.rstrip("\n"))  # without a what-if, which stands in the table
    assert [name for name in labels if f"\n{name} " in long] == list(labels)
    assert [name for name in labels if f"\n{name} " in short] == []


def test_a_terminal_shows_the_step_first(run, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    shown = []
    monkeypatch.setattr("hybrid_des.interface.cli.commands.explain.show_text", shown.append)
    assert run("explain", SCENARIOS / "prototype_4gpu.yaml", "--quiet")[0] == 0
    assert shown[0] == opening(step_alone(load(SCENARIOS / "prototype_4gpu.yaml")))
    assert len(shown) == 2 and shown[1].startswith("Main loss  ")


def test_each_part_of_the_bar_has_its_own_colour():
    """Where layers are recomputed, the host is waited for, and tensor ranks exchange."""
    scenario = of_model(parallel={"tensor": 2, "pipeline": 2}, recompute="full")
    scenario["efficiency"] = {"launch": "100 us"}
    shares = [share for share in content_of(simulate(scenario)).shares if share.seconds]
    assert {"recomputing activations", "host inside ops", "tensor collectives"} <= {share.label for share in shares}
    colours = [share.colour.upper()[:7] for share in shares]
    assert len({*colours}) == len(colours) and "#FFFFFF" not in colours
