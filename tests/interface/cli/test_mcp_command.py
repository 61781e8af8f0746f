"""`hybrid-des mcp` refuses in one line what it cannot serve, and shows its tools without the SDK."""

import json
import sys

import pytest

from hybrid_des.errors import UsageError, installing
from hybrid_des.interface.mcp.arguments import TOOLS, arguments_of
from hybrid_des.interface.mcp.fence import fenced


def test_without_its_extra_the_command_names_it(run, monkeypatch):
    monkeypatch.delitem(sys.modules, "hybrid_des.interface.mcp.server", raising=False)
    for name in ("anyio", "mcp", "mcp_types"):
        monkeypatch.setitem(sys.modules, name, None)
    assert run("mcp") == (2, "", [f"mcp needs the mcp extra: {installing('mcp')}"])
    assert {tool["name"] for tool in json.loads(run("mcp", "--json")[1])} == set(TOOLS)


def test_a_folder_that_is_none_is_not_served(run, tmp_path):
    pytest.importorskip("mcp")
    assert run("mcp", "--folder", tmp_path / "none") == (2, "", [f"{tmp_path / 'none'}: expected a folder"])


@pytest.mark.parametrize("tool", TOOLS)
def test_an_argument_that_no_tool_takes_is_told(tool):
    with pytest.raises(UsageError, match=f'^{tool}: unknown argument "bugdet_s"; did you mean "budget_s"'):
        arguments_of(tool, {"bugdet_s": 3})


@pytest.mark.parametrize("budget", [0, -1, 601, float("inf"), float("nan"), "soon"])
def test_a_budget_is_at_most_ten_minutes(budget):
    with pytest.raises(UsageError, match="budget_s"):
        arguments_of("docs", {"budget_s": budget})


def test_the_fence_refuses_what_is_outside(tmp_path):
    """By names, by links and by steps upwards; what is installed may be read only."""
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path / "other")
    hook = fenced(folder)
    for path in (tmp_path / "other", folder / ".." / "other", folder / "link", f"{folder}2", "/etc/hostname"):
        with pytest.raises(PermissionError, match="the folder of this server"):
            hook("open", (str(path), "r", 0))
    for event, paths in (("os.mkdir", ("/x", 0, -1)), ("os.rename", (str(folder / "a"), "/x", -1, -1)),
                         ("open", (json.__file__, None, 1))):  # fmt: skip
        with pytest.raises(PermissionError, match="the folder of this server"):
            hook(event, paths)
    hook("open", (str(folder / "new.yaml"), "w", 1))
    hook("open", (json.__file__, "r", 0))
    hook("open", (3, "r", 0))
