"""YAML is read strictly: scalars as YAML 1.2 means them, and everything that could mislead is refused."""

import itertools
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybrid_des.errors import ScenarioError, one_line
from hybrid_des.scenario.strict_yaml import MAX_BYTES, MAX_DEPTH, Document, Parsed, dotted, parse, read


def problems(text):
    with pytest.raises(ScenarioError) as error:
        parse(text, "a.yaml")
    return list(error.value.problems)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e9", 10**9),
        ("1e-6", Fraction(1, 10**6)),
        ("1E+3", 1000),
        ("0.1", Fraction(1, 10)),
        (".5", Fraction(1, 2)),
        ("5.", 5),
        ("-3", -3),
        ("+7", 7),
        ("010", 10),
        ("0x1F", 31),
        ("0o17", 15),
        ("no", "no"),
        ("yes", "yes"),
        ("on", "on"),
        ("Off", "Off"),
        ("y", "y"),
        ("true", True),
        ("False", False),
        ("tRUE", "tRUE"),
        ("12:30:45", "12:30:45"),
        ("2026-11-21", "2026-11-21"),
        ("1_000", "1_000"),
        ("0b11", "0b11"),
        ("null", None),
        ("~", None),
        ("none", "none"),
        (".inf", float("inf")),
        ("-.inf", float("-inf")),
        ("inf", "inf"),
        (".nan", ".nan"),
        ("'1'", "1"),
        ('"true"', "true"),
        ("50 ms", "50 ms"),
        ("<<", "<<"),
        ("=", "="),
        ("1e9999", "1e9999"),
    ],
)
def test_scalars_mean_what_yaml_1_2_says(text, value):
    found = parse(f"a: {text}", "a.yaml").value["a"]
    assert found == value
    assert isinstance(found, (type(value), Fraction))


def test_places_are_kept_for_keys_and_items():
    value, places = parse("a:\n  b: 1\n  c:\n    - 2\n    -\n      d: 3\ne: {f: [4,\n  5]}\n", "a.yaml")
    document = Document(value, "a.yaml", places)
    assert document.value == {"a": {"b": 1, "c": [2, {"d": 3}]}, "e": {"f": [4, 5]}}
    lines = {path: place.removeprefix("a.yaml:") for path, place in document.places.items()}
    assert lines == {
        (): "1",
        ("a",): "1",
        ("a", "b"): "2",
        ("a", "c"): "3",
        ("a", "c", 0): "4",
        ("a", "c", 1): "6",
        ("a", "c", 1, "d"): "6",
        ("e",): "7",
        ("e", "f"): "7",
        ("e", "f", 0): "7",
        ("e", "f", 1): "8",
    }
    assert document.place(("e", "f", 1, "nothing", "here")) == "a.yaml:8"
    assert document.problem(("e", "f", 1), "wrong") == "a.yaml:8: e.f[1]: wrong"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\nb: 2\na: 3", ["a.yaml:3: a: given twice; first at line 1"]),
        ("a:\n  {b: 1,\n  b: 2}", ["a.yaml:3: a.b: given twice; first at line 2"]),
        ("a: {b: 1}\na: {b: 2}", ["a.yaml:2: a: given twice; first at line 1"]),
        ("a: &x 1\nb: *x", ["a.yaml:1: YAML anchors and aliases are not supported; repeat the value where it is used"]),
        ("a: !!str 1", ["a.yaml:1: the YAML tag tag:yaml.org,2002:str is not supported; write the plain value"]),
        ("a: !x [1]", ["a.yaml:1: the YAML tag !x is not supported; write the plain value"]),
        ("a: 1\n---\nb: 2", ["a.yaml:2: a second document starts; a file holds one scenario"]),
        ("? [a, b]\n: 1", ["a.yaml:1: a key must be a scalar, not a list or mapping"]),
        ("a: [1, 2", ["a.yaml:1: not valid YAML: expected ',' or ']', but got '<stream end>'"]),
        ("a: 1\n b: 2", ["a.yaml:2: not valid YAML: mapping values are not allowed here"]),
        ("a: 1\n\tb: 2", ["a.yaml:2: not valid YAML: found character '\\t' that cannot start any token"]),
        ("a: 'x", ["a.yaml:1: not valid YAML: found unexpected end of stream"]),
        ("a: @", ["a.yaml:1: not valid YAML: found character '@' that cannot start any token"]),
        ("a: 1\nb: \0", ["a.yaml:2: not valid YAML: control character 0x00"]),
        (
            "a: 1\na: 2\nb: 3\nb: 4",
            ["a.yaml:2: a: given twice; first at line 1", "a.yaml:4: b: given twice; first at line 3"],
        ),
        ("a: 1\na: 2\nb: [", ["a.yaml:3: not valid YAML: expected the node content, but found '<stream end>'"]),
        (
            "a: !x 1\nb: !y 2",
            [
                "a.yaml:1: the YAML tag !x is not supported; write the plain value",
                "a.yaml:2: the YAML tag !y is not supported; write the plain value",
            ],
        ),
        ('a: "\\ud800"', ["a.yaml:1: an unpaired surrogate is not a valid character"]),
        ('"\\udfff": 1', ["a.yaml:1: an unpaired surrogate is not a valid character"]),
    ],
)
def test_what_misleads_is_refused_with_its_line(text, said):
    assert problems(text) == said


@pytest.mark.parametrize("opening", ["[", "{a: ", "- ", "? "])
@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 50_000])
def test_deep_nesting_is_refused_at_once(opening, depth):
    assert len(problems(opening * depth)) == 1


def test_the_deepest_nesting_allowed_is_read():
    value = parse("[" * MAX_DEPTH + "]" * MAX_DEPTH, "a.yaml").value
    for _ in range(MAX_DEPTH - 1):
        (value,) = value
    assert value == []


def test_an_alias_bomb_is_one_line(write):
    names = "abcdefghi"
    bomb = "a: &a [x, x, x, x, x, x, x, x, x]\n"
    bomb += "".join(f"{n}: &{n} [{', '.join([f'*{m}'] * 9)}]\n" for m, n in itertools.pairwise(names))
    with pytest.raises(ScenarioError) as error:
        read(write(bomb))
    assert len(error.value.problems) == 1


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\xff\xfe\x00a", ":1: not a text file in UTF-8 (byte 0xff)"),
        (b"a: 1\nb: \xe9\n", ":2: not a text file in UTF-8 (byte 0xe9)"),
        ("a: 1".encode("utf-16"), ":1: not a text file in UTF-8 (byte 0xff)"),
        (b"\x7fELF\x02\x01\x01\x00", ":1: not valid YAML: control character 0x7f"),
        (b"#" * (MAX_BYTES + 1), ": larger than 1 MiB; not a scenario file"),
    ],
)
def test_what_is_no_text_is_refused(write, content, said):
    file = write(content)
    with pytest.raises(ScenarioError) as error:
        read(file)
    assert list(error.value.problems) == [f"{file}{said}"]


def test_a_file_that_cannot_be_read_says_so(tmp_path):
    for path, said in ((tmp_path, "a directory"), (tmp_path / "no.yaml", "no such file"), ("\0", "cannot be read")):
        with pytest.raises(ScenarioError, match=said):
            read(path)


def test_a_byte_order_mark_is_not_part_of_a_key(write):
    assert read(write(b"\xef\xbb\xbfa: 1")).value == {"a": 1}


letters = st.characters(codec="utf-8") | st.sampled_from(list("[]{}:,-?&*!|>'\"%@` \n\t#~<>.0123abc"))


def test_any_text_is_read_or_refused_in_whole_lines():
    checked = Counter()

    @given(st.text(letters) | st.text(letters).map("a: {}".format))
    def every_case(text):
        try:
            document = parse(text, "a.yaml")
        except ScenarioError as error:
            assert error.problems
            assert all(line.startswith("a.yaml:") and line.isprintable() for line in error.problems)
            checked["refused"] += 1
        else:
            assert isinstance(document, Parsed)
            checked["read"] += 1

    every_case()
    assert min(checked["refused"], checked["read"]) >= 10, checked


def test_paths_and_messages_are_written_for_people():
    assert dotted(("workload", "forward", 2)) == "workload.forward[2]"
    assert one_line("a\n\x1b[31mb\t c") == "a \N{REPLACEMENT CHARACTER}[31mb c"
    assert len(one_line("x" * 10_000)) == 400
