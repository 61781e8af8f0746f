"""The names that a user finds in the package."""

import pydoc

import hybrid_des


def test_dir_and_help_show_the_public_names():
    shown = pydoc.plain(pydoc.render_doc(hybrid_des))
    for name in ("class Result(", "class Scenario(", "\n    load(", "\n    simulate("):
        assert name in shown
    assert set(hybrid_des.__all__) <= set(dir(hybrid_des))


def test_every_public_name_can_be_imported():
    for name in hybrid_des.__all__:
        assert getattr(hybrid_des, name) is not None
