"""Wrong plug-in files: one line with the collective, codec or line of the file; a budget ends what does not return."""

import re

import pytest
from support.paths import SCENARIOS

from hybrid_des import collective, explain, load, simulate, spread
from hybrid_des.errors import UsageError
from hybrid_des.registry import import_file
from hybrid_des.workload.placements import Wanted, placed

SCENARIO = SCENARIOS / "a100_8x.yaml"
COLLECTIVE = """\
from hybrid_des.collectives import collective

@collective("mine", summary="")
def mine(group, buffer):
    pieces, after, before = buffer.split(1), (group.me + 1) % group.size, (group.me - 1) % group.size
"""
CODEC = """\
from fractions import Fraction
from hybrid_des.collectives.codecs import Codec, Payload, codec

@codec("mine", summary="", source="")
"""
ENCODE = "    def encode(self, values): return "
DECODE = "    def decode(self, payload): return "
SAME = ENCODE + "Payload((values,), None, values.size)\n" + DECODE
TWO = 'collective "mine", checked on 2 members: '


@pytest.fixture(autouse=True)
def forgotten(scratch):
    """What a test registers is forgotten."""


def said(run, file, change, *options):
    code, out, err = run(SCENARIO, "--import", file, "--set", change, *options)
    assert (code, out, len(err)) == (2, "", 1)
    return err[0]


@pytest.mark.parametrize(
    ("body", "line"),
    [
        (
            "return\n    yield",
            TWO + "element 0 of member 0 ends as 675, which it began with; expected 78, the sum over",
        ),
        (
            "pieces.add(0, pieces.encode(0))\n    return\n    yield",
            TWO + "element 0 of member 0 ends as 1350, not the sum",
        ),
        ("group.to(7).send(pieces.encode(0))\n    yield", TWO + 'collective "mine": member 0 names member 7 of 2'),
        ("yield group.from_(-1).receive()", TWO + 'collective "mine": member 0 names member -1 of 2'),
        ("yield group.from_(before).receive()", TWO + "deadlock: 2 of 2 members of mine wait for each other"),
        (
            "group.to(after).send(pieces.encode(0))\n    return\n    yield",
            TWO + "2 messages were sent but never received",
        ),
        ("yield {}['no']", "mine.py:6: KeyError: 'no'"),
        ("return {}['no']", "mine.py:6: KeyError: 'no'"),
        ("group.to(after).send(None)\n    yield", "mine.py:6: AttributeError: "),
    ],
)
def test_a_collective_that_does_not_reduce_is_one_line(run, write, body, line):
    file = write(f"{COLLECTIVE}    {body}\n", "mine.py")
    assert line in said(run, file, "gradients.algorithm=mine")


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("class Mine: pass", 'mine.py:4: codec "mine" is a class Mine; expected a subclass of'),
        ("def mine(values): return values", 'codec "mine" is a function; expected a subclass of'),
        ("class Mine(Codec):\n    bytes_per_element = Fraction(1)", 'codec "mine" lacks decode() and encode()'),
        (f"class Mine(Codec):\n{SAME}payload.data[0]", "has bytes_per_element None; expected a positive Fraction"),
        (f"class Mine(Codec):\n    bytes_per_element = 'two'\n{SAME}payload.data[0]", "has bytes_per_element 'two'"),
        (f"class Mine(Codec):\n    bytes_per_element = 4\n{SAME}payload.data[0]", "in 256 bytes and 0 of scales; its"),
        (
            f"class Mine(Codec):\n    bytes_per_element = 8\n{SAME}payload.data[0] * float('nan')",
            "decodes finite elements",
        ),
        (f"class Mine(Codec):\n    bytes_per_element = 8\n{SAME}None", "decodes 32 elements to nothing; expected an"),
        (f"class Mine(Codec):\n    bytes_per_element = 8\n{ENCODE}3\n{DECODE}3", "encodes to int; expected a Payload"),
        (f"class Mine(Codec):\n    bytes_per_element = 8\n{ENCODE}1 / 0\n{DECODE}3", "mine.py:7: ZeroDivisionError: "),
    ],
)
def test_a_class_that_is_no_codec_is_one_line(run, write, body, line):
    assert line in said(run, write(f"{CODEC}{body}\n", "mine.py"), "gradients.codec=mine")


PLANS = "from hybrid_des.pipeline.schedules import schedule\n\n"
PLANS += '@schedule("mine", summary="", time="", memory="", source="")\ndef mine(request):\n'


def test_an_error_in_a_plug_in_names_its_own_line(run, write):
    file = write(f"{PLANS}    return [][3]\n", "mine.py")
    assert said(run, file, "schedule.kind=mine") == f"{file}:5: IndexError: list index out of range"


PLAN = PLANS.replace("import schedule\n", "import schedule\nfrom hybrid_des.pipeline import Op, Plan, loop\n")
PLAN += """\
    p, m = request.pipeline, request.microbatches
    ops = [Op(kind, i) for kind in "FB" for i in range(m)]
    return Plan.of("""


@pytest.mark.parametrize(
    ("plan", "line"),
    [
        ("[[Op(k, i) for k in 'FB' for i in range(m - 1)]] * p, [loop(p, 1)], [0] * (m - 1)",
         'schedule "mine" returned a plan of 4 pipeline ranks and 7 micro-batches; expected 4 pipeline ranks and 8'),
        ("[ops] * (p - 1), [loop(p - 1, 1)], [0] * m", 'returned a plan of 3 pipeline ranks and 8 micro-batches; '),
        ("[ops] * p, [(p, 1)], [0] * m", "the paths of a plan: expected lists of (pipeline rank, chunk), and"),
        ("[ops] * p, [loop(p, 1)], [None] * m", "the paths of a plan: expected lists of (pipeline rank, chunk), and"),
        ("[ops] * p, [loop(p, 1)], [-1] * m", "micro-batch 0: there is no path -1, of 1 in the plan"),
        ("[ops] * p, [loop(p, 1), loop(p - 1, 1)], [0] * m", "the paths of a plan have 3 and 4 stages; expected one"),
        ("[[Op('F', 'a')]] * p, [loop(p, 1)], [0] * m", "action 0: found Op(kind='F', microbatch='a', chunk=0); "),
    ],
)  # fmt: skip
def test_a_plan_of_another_form_is_one_line(run, write, plan, line):
    assert line in said(run, write(f"{PLAN}{plan})\n", "mine.py"), "schedule.kind=mine")


DISTRIBUTION = """\
import numpy as np
from hybrid_des.options import Options
from hybrid_des.workload.distributions import distribution

@distribution("mine", summary="", options=Options)
def mine(options):
    return """


@pytest.mark.parametrize(
    ("sample", "line"),
    [
        ("None", 'distribution "mine" returned nothing; expected a function of a generator and a number'),
        ("lambda g: 1", "too many positional arguments; it is called with 2, a generator and a number"),
        ("lambda g, n: None", 'distribution "mine" drew nothing; expected an array of 64 numbers'),
        ("lambda g, n: np.ones(n - 1)", "drew array of shape (63,); expected an array of 64 numbers"),
        ("lambda g, n: np.ones(n) * 1j", "expected an array of 64 numbers"),
        ("lambda g, n: -np.ones(n)", "drew -1; expected factors from 0 to 1e+06"),
        ("lambda g, n: np.full(n, np.nan)", "drew nan; expected factors from 0 to 1e+06"),
    ],
)
def test_a_distribution_that_draws_no_factors_is_one_line(run, write, sample, line):
    assert line in said(run, write(f"{DISTRIBUTION}{sample}\n", "mine.py"), "jitter={distribution: mine}")


DATA_SET = """\
import numpy as np
from hybrid_des.workload.numerics.datasets import dataset

@dataset("mine", features=2, classes=2, held_out=8)
def mine(generator):
    inputs, labels = np.ones((64, 2)), np.arange(64) % 2
    return """


@pytest.mark.parametrize(
    ("drawn", "line"),
    [
        ("None", "expected two arrays, inputs and labels, found nothing"),
        ("inputs[:, :1], labels", "expected inputs of shape (n, 2) and n labels, found shapes (64, 1) and (64,)"),
        ("inputs[:8], labels[:8]", "8 samples, of which 8 are held out: none is left to train on"),
        ("inputs * np.nan, labels", "inputs: expected finite numbers"),
        ("inputs, labels + 1", "labels: expected whole numbers from 0 to 1"),
    ],
)
def test_a_data_set_of_another_form_is_one_line(run, write, drawn, line):
    file = write(f"{DATA_SET}{drawn}\n", "mine.py")
    more = "--set", "workload.parameters=null"
    assert f'data set "mine": {line}' in said(run, file, "numerics={task: mine}", *more)


LENGTHS = """\
import numpy as np
from hybrid_des.workload.lengths import lengths

@lengths("mine", summary="")
def mine(request):
    return """
PACKER = """\
from hybrid_des.workload.packing.registration import packer

@packer("mine", summary="", lanes=False)
def mine(lengths, request):
    return """
PLACEMENT = """\
from hybrid_des.workload.placements import placement

@placement("mine", summary="")
def mine(wanted):
    return """
DOCUMENTS = {
    "model": {"kind": "transformer", "hidden": 64, "layers": 2, "heads": 2, "ffn": 64, "sequence": 64, "vocab": 64},
    "cluster": {"gpu": "h100"},
    "schedule": {"kind": "1f1b", "microbatches": 2},
}


@pytest.mark.parametrize(
    ("text", "data", "line"),
    [
        (f"{LENGTHS}3", {}, "lengths of documents: expected a function of a generator, found int"),
        (f"{LENGTHS}lambda: 3", {}, "too many positional arguments; it is called with 1, a generator"),
        (f"{LENGTHS}lambda g: 3", {}, "lengths of documents: expected blocks that are yielded, found int"),
        (f"{LENGTHS}lambda g: iter([np.ones(1)])", {}, "lengths of documents end; expected blocks without end"),
        (f"{LENGTHS}lambda g: iter([3])", {}, "expected an array of at least one number, found int"),
        (f"{LENGTHS}lambda g: iter([np.ones(0)])", {}, "expected an array of at least one number, found array of"),
        (f"{LENGTHS}lambda g: iter([np.ones(1) * np.nan])", {}, "lengths of documents: expected numbers, found nan"),
        (f"{PACKER}3", {"packing": "mine"}, 'packing "mine": expected replica → micro-batch → numbers of documents'),
        (f"{PACKER}[[[0.0]], [[1]]]", {"packing": "mine"}, "expected replica → micro-batch → numbers of documents"),
        (f"{PACKER}[[[0, 1]]]", {"packing": "mine"}, "expected 2 micro-batches per replica, found 1"),
    ],
)
def test_documents_of_another_form_are_one_line(write, text, data, line):
    import_file(write(f"{text}\n", "mine.py"))
    lengths = {"kind": "fixed" if data else "mine"}
    with pytest.raises(UsageError, match=re.escape(line)) as error:
        simulate(load({**DOCUMENTS, "data": {"lengths": lengths, **data}}))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("held", ["(3,) * 2", "((0.0,), (1,))", "((None,), (1,))", "(([0],), ([1],))"])
def test_a_placement_of_another_form_is_one_line(write, held):
    import_file(write(f"{PLACEMENT}{held}\n", "mine.py"))
    with pytest.raises(UsageError, match=r'^placement "mine": expected the numbers of its experts for each rank$'):
        placed("mine", Wanted((1.0, 1.0), (0, 0)))


KIND = """\
from hybrid_des.workload.models.kinds import kind

@kind("mine", summary="")
def mine():
    while True:
        pass
"""


@pytest.mark.parametrize(
    "command",
    [
        [],
        pytest.param(["explain"], marks=pytest.mark.slow),
        pytest.param(["schedules", "--verify"], marks=pytest.mark.slow),
    ],
    ids=["simulate", "explain", "verify"],
)
def test_a_budget_ends_a_kind_of_model_that_never_returns(run, write, command):
    """It is asked while the scenario is read."""
    file = write(KIND, "mine.py")
    model = "--set", "model={kind: mine}", "--set", "workload=null", "--budget", "0.1s"
    code, out, err = run(*command, SCENARIO, "--import", file, *model)
    assert (code, out, len(err)) == (3, "", 1) and "not complete: the budget of 100 ms is spent" in err[0]


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("yield from mine(group, buffer)", ": RecursionError: maximum recursion depth exceeded"),
        ("raise SystemExit(3)\n    yield", "mine.py:6: SystemExit: 3"),
    ],
)
def test_a_collective_that_ends_everything_is_one_line(run, write, body, line):
    assert line in said(run, write(f"{COLLECTIVE}    {body}\n", "mine.py"), "gradients.algorithm=mine")


def test_a_warning_about_wrong_syntax_is_not_beside_the_error(run, write):
    file = write("3(4)\n", "mine.py")
    assert said(run, file, "steps=1") == f"{file}:1: TypeError: 'int' object is not callable"


def test_a_budget_ends_a_schedule_that_never_returns(run, write):
    file = write(f"{PLANS}    while True:\n        pass\n", "mine.py")
    code, out, err = run(SCENARIO, "--import", file, "--set", "schedule.kind=mine", "--budget", "0.1s")
    assert (code, out, err) == (3, "", ["a100_8x: not complete: the budget of 100 ms is spent"])


OPTIONS = "from hybrid_des.options import Count, Options\n\nclass Mine(Options):\n    parts: Count\n\n"
SILENT = COLLECTIVE + "    return\n    yield\n"


def test_a_collective_that_needs_options_is_checked_with_them(run, write):
    """It was not verified."""
    body = SILENT.replace('summary=""', 'summary="", options=Mine').replace("buffer)", "buffer, options)")
    file = write(OPTIONS + body, "mine.py")
    assert run(SCENARIO, "--import", file, "--json")[::2] == (0, [])  # not used
    more = "gradients={algorithm: mine, parts: 2}"
    assert TWO + "element 0 of member 0 ends as 675, which it began with" in said(run, file, more)


def test_a_collective_of_no_group_is_not_verified(run, write):
    body = "from hybrid_des.errors import Refusal\n" + SILENT.replace(
        "    return\n", "    raise Refusal('not today')\n"
    )
    assert run(SCENARIO, "--import", write(body, "mine.py"), "--json")[2] == [
        "warning: collective mine: not verified: not today"
    ]


USES = {
    "simulate": lambda: simulate(load(SCENARIO, ["gradients.algorithm=mine"])),
    "spread": lambda: spread(load(SCENARIO, ["gradients.algorithm=mine", JITTER]), 2),
    "collective": lambda: collective("mine", ranks=4, sizes=["1 MiB"]),
    "explain": lambda: explain(load(SCENARIO, ["gradients.algorithm=mine"])),
}
JITTER = "jitter={distribution: normal, sigma: 0.1}"


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_collective_registered_in_python_is_checked_when_used(write, use):
    """It sent nothing, and took no time."""
    import_file(write(SILENT, "mine.py"))
    with pytest.raises(UsageError, match="member 0 ends as 675, which it began with"):
        use()
