"""`hybrid-des schedules --verify`: pass, or the first op that is wrong; exit code 0 or 1."""

import re

import pytest

from hybrid_des.interface.cli.main import main
from hybrid_des.planning.training import Worker
from hybrid_des.workload.numerics.layers import StageLayers

SCENARIO = """
cluster: {gpus_per_node: 6}
parallel: {pipeline: 2, data: 3}
schedule: {kind: zb-h1, microbatches: 4}
workload: {forward: 1, backward: 2}
"""


@pytest.fixture
def verify(write, capsys):
    def verify(*arguments, text=SCENARIO):
        code = main(["schedules", "--verify", str(write(text)), *arguments])
        shown = capsys.readouterr()
        assert shown.err == ""
        return code, shown.out

    return verify


def test_a_right_schedule_passes(verify):
    code, said = verify()
    assert code == 0
    assert said.startswith("pass: all 144 ops of 6 GPUs in 2 steps")


@pytest.mark.parametrize("setting", ["gradients.codec=int8", "numerics={dtype: fp32, task: teacher-student}", "seed=3"])
def test_the_scenarios_own_precision_does_not_disturb_the_verdict(verify, setting):
    assert verify("--set", setting)[0] == 0


def test_an_order_file_passes_or_is_shown_with_its_mistake(verify, write):
    scenario = SCENARIO.replace("kind: zb-h1", "file: order.csv")
    order = "0F0,0F1,0B0,0F2,0B1,0F3,0B2,0B3\n1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3\n"
    write(order, "order.csv")
    assert verify(text=scenario)[0] == 0
    write(order.replace("1F0,1B0", "1B0,1F0"), "order.csv")
    code, said = verify(text=scenario)
    assert code == 1
    assert said.startswith("fail: ")
    assert ">1B0<" in said


@pytest.mark.parametrize("pair", ["(1B0;1F1)", "(1F1;1B0)"])
def test_the_parts_of_a_fused_pair_have_no_order(verify, write, pair):
    write(f"0F0,0F1,0B0,0B1\n1F0,{pair}OVERLAP_F_B,1B1\n", "order.csv")
    scenario = SCENARIO.replace("kind: zb-h1", "file: order.csv").replace("microbatches: 4", "microbatches: 2")
    assert verify(text=scenario)[0] == 0


OWN_SCHEDULE = """
from hybrid_des.pipeline import Op, Plan, loop
from hybrid_des.pipeline.schedules import schedule

@schedule("hasty", summary="a backward before its forward", time="", memory="", source="")
def hasty(request):
    forwards, backwards = ([Op(kind, i) for i in range(request.microbatches)] for kind in "FB")
    mixed = [backwards[0], *forwards, *backwards[1:]]
    return Plan.of([forwards + backwards, mixed], [loop(2, 1)], [0] * request.microbatches)
"""

OWN_COLLECTIVE = """
from hybrid_des.collectives import collective

@collective("wrong-chunk", summary="a ring whose all-gather starts from the wrong piece")
def wrong_chunk(group, buffer):
    n, me = group.size, group.me
    right, left = group.to((me + 1) % n), group.from_((me - 1) % n)
    pieces = buffer.split(n)
    for k in range(n - 1):
        right.send(pieces.encode((me - k) % n))
        pieces.add((me - k - 1) % n, (yield left.receive()))
    message = pieces.finish(me)
    for k in range(n - 1):
        right.send(message)
        message = yield left.receive()
        pieces.put((me - k - 1) % n, message)
"""


@pytest.mark.parametrize(("own", "setting", "said"), [
    (OWN_SCHEDULE, "schedule.kind=hasty", r"(?s)fail: .*>1B0<"),
    (OWN_COLLECTIVE, "gradients.algorithm=wrong-chunk",
     r"fail: rank \d, step 0, reduction of stage 1: the gradient differs from serial training by 0."),
])  # fmt: skip
def test_what_a_user_got_wrong_is_named(verify, write, scratch, own, setting, said):
    code, shown = verify("--import", str(write(own, "own.py")), "--set", setting)
    assert code == 1
    assert re.match(said, shown)


def test_the_first_wrong_op_is_named(verify, monkeypatch):
    right = Worker.run

    def wrong(self, step, op, payload):
        if (self.rank, step, op) == (4, 1, ("F", 2, 0)):
            payload = payload * 1.001
        return right(self, step, op, payload)

    monkeypatch.setattr(Worker, "run", wrong)
    code, said = verify()
    assert code == 1
    assert said.startswith("fail: rank 4, step 1, 1F2: its result differs from serial training by 0.00")


def test_a_forgotten_weight_gradient_is_named(verify, monkeypatch):
    right, calls = StageLayers.add_weight_gradient, []

    def forgetful(self, needed):
        calls.append(1)
        if len(calls) != 7:
            right(self, needed)

    monkeypatch.setattr(StageLayers, "add_weight_gradient", forgetful)
    code, said = verify()
    assert code == 1
    assert "its weight gradient differs from serial training by" in said


def test_what_the_small_model_cannot_be_divided_by_is_refused(run, scenarios):
    code, out, (err,) = run("schedules", "--verify", scenarios / "llama3.1-8b_8.yaml")
    assert (code, out) == (2, "")
    _, _, remedy = err.partition("cannot divide: ")
    assert remedy == "--set parallel.context=1 --set sharding=none"
    code, out, _ = run(
        "schedules", "--verify", scenarios / "llama3.1-8b_8.yaml", *remedy.split(" "), "--set", "batch=16"
    )
    assert (code, out[:5]) == (0, "pass:")
