"""A file names what it holds; the registry finds it, and answers a wrong name with the nearest right one."""

import sys

import pytest
from support import registries
from support.tables import from_table

from hybrid_des.errors import UsageError, unknown
from hybrid_des.pipeline import schedules
from hybrid_des.registry import import_file

MINE = """
from hybrid_des.pipeline.schedules import find, schedule
@schedule('mine-of-a-test', summary='', time='', memory='', source='', chunks=1)
def mine(request):
    return find('gpipe').build(request)
"""


@pytest.fixture
def rooms(tmp_path, monkeypatch):
    """A package of two files that register themselves."""
    package = tmp_path / "rooms_of_a_test"
    package.mkdir()
    package.joinpath("__init__.py").write_text(
        "from hybrid_des.registry import Registry\nroom = Registry('room', 'rooms_of_a_test')\n"
    )
    for name in ("kitchen", "cellar"):
        package.joinpath(f"{name}.py").write_text(
            f"from rooms_of_a_test import room\n@room('{name}', floor={len(name)})\ndef build():\n    return '{name}'\n"
        )
    monkeypatch.syspath_prepend(tmp_path)
    import rooms_of_a_test

    yield rooms_of_a_test.room
    for name in [name for name in sys.modules if name.startswith("rooms_of_a_test")]:
        del sys.modules[name]


def test_files_are_found_without_being_listed(rooms):
    assert rooms.names() == ["cellar", "kitchen"]
    assert rooms["kitchen"].build() == "kitchen"
    assert rooms["kitchen"].facts == {"floor": 7}


def test_a_wrong_name_is_answered_with_the_nearest(rooms):
    with pytest.raises(UsageError, match='unknown "kitchn"; did you mean "kitchen"'):
        rooms["kitchn"]
    with pytest.raises(UsageError, match="expected one of cellar, kitchen"):
        rooms["zzz"]


def test_a_name_stands_for_one_thing(rooms):
    rooms.names()
    with pytest.raises(UsageError, match="registered twice"):
        rooms("cellar")(lambda: None)


def test_unknown_names_the_nearest_or_all():
    assert unknown("1f2b", ["1f1b", "gpipe"]) == 'unknown "1f2b"; did you mean "1f1b"?'
    assert unknown("x", ["b", "a"]) == 'unknown "x"; expected one of a, b'


GPUS = ["a100-40gb", "a100-80gb", "b200", "h100", "h200"]


@pytest.mark.parametrize(("name", "known", "said"), [
    ("A100", GPUS, 'did you mean "a100-40gb" or "a100-80gb"?'),
    ("H100", GPUS, 'did you mean "h100"?'),
    ("80GB", GPUS, 'did you mean "a100-80gb"?'),
    ("1F1B", ["1f1b", "eager-1f1b"], 'did you mean "1f1b"?'),
    ("tree", ["double-binary-tree", "ring"], 'did you mean "double-binary-tree"?'),
    ("gpus", ["gpu", "gpus_per_node"], 'did you mean "gpu"?'),
    ("zb", ["ZB-V", "gpipe", "zb-h1"], 'did you mean "ZB-V" or "zb-h1"?'),
    ("", ["a", "b"], "expected one of a, b"),
])  # fmt: skip
def test_suggestions_ignore_case_and_know_parts_of_names(name, known, said):
    assert unknown(name, known) == f'unknown "{name}"; {said}'


def test_a_user_file_registers_and_may_run_twice(tmp_path, scratch):
    file = tmp_path / "mine.py"
    file.write_text(MINE)
    import_file(file)
    import_file(str(file))
    assert schedules.find("mine-of-a-test").name == "mine-of-a-test"


def test_nothing_is_written_beside_a_user_file(tmp_path, scratch, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    (tmp_path / "mine.py").write_text(MINE)
    import_file(tmp_path / "mine.py")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.py"]


def test_what_is_registered_in_scratch_is_forgotten_after(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(MINE)
    before = schedules.names()
    for _ in range(2):
        with pytest.raises(ZeroDivisionError), registries.scratch():
            import_file(file)
            assert schedules.names() == sorted([*before, "mine-of-a-test"])
            raise ZeroDivisionError
        assert schedules.names() == before


@from_table
def test_a_users_file_that_fails_says_why_in_one_line(tmp_path, text, said):
    file = tmp_path / "mine.py"
    if text is not None:
        file.write_text(text)
    with pytest.raises(UsageError, match=said) as error:
        import_file(file)
    assert "\n" not in str(error.value)
    assert str(file) in str(error.value)
