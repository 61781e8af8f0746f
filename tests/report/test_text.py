"""Lines of text that fit into a terminal."""

import pytest

from hybrid_des.report.text import fitting


@pytest.mark.parametrize(
    ("room", "line"),
    [(100, "links: a, bb, ccc"), (17, "links: a, bb, ccc"), (16, "links: a, 2 more"), (3, "links: a, 2 more")],
)
def test_a_line_takes_the_parts_it_has_room_for(room, line):
    assert fitting("links: ", ["a", "bb", "ccc"], room) == line
