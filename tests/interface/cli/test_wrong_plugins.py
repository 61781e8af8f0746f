"""Wrong plug-in files: one line with the collective, codec or line of the file; a budget ends what does not return."""

import pytest
from support.paths import SCENARIOS

from hybrid_des import collective, explain, load, simulate, spread
from hybrid_des.errors import UsageError
from hybrid_des.registry import import_file

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
