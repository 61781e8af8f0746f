"""`hybrid-des mcp` as an agent uses it, by the client of the official SDK."""

import asyncio
import contextlib
import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from support.paths import ROOT, SCENARIOS

mcp = pytest.importorskip("mcp")
from mcp.client.stdio import StdioServerParameters, stdio_client  # noqa: E402

PROCESSES = Path("/proc")
LONGEST_S = 300.0  # of a test, on a busy machine
PLAN = "llama3.1-70b_128"
PLANS = [], ["parallel.tensor=2", "parallel.context=4"], ["parallel.tensor=8", "parallel.data=2"]
ENDLESS = {"scenario": "a100_8x", "set": ["steps=400000", "jitter={distribution: lognormal, sigma: 0.1}"]}


@contextlib.asynccontextmanager
async def client(folder):
    words = ["-m", "hybrid_des", "mcp", "--folder", str(folder)]
    parameters = StdioServerParameters(command=sys.executable, args=words, env={**os.environ, "PYTHONWARNINGS": ""})
    async with mcp.Client(stdio_client(parameters)) as connected:
        yield connected


def talk(folder, conversation):
    """What a conversation with the server of a folder gives."""

    async def run():
        async with asyncio.timeout(LONGEST_S), client(folder) as connected:
            return await conversation(connected)

    return asyncio.run(run())


def called(folder, tool, **arguments):
    """What a tool answers: its text, the same as numbers, and whether it is an error."""
    reply = talk(folder, lambda connected: connected.call_tool(tool, arguments))
    return reply.content[0].text, reply.structured_content, reply.is_error


@pytest.mark.slow
def test_an_agent_chooses_among_three_plans_in_six_calls(tmp_path):
    """The quickest in prediction, whether that is certain, and what the plans differ in; the folder stays empty."""
    calls = []

    async def conversation(connected):
        async def call(tool, **arguments):
            calls.append(tool)
            reply = await connected.call_tool(tool, {"scenario": PLAN, **arguments})
            assert not reply.is_error, reply.content
            assert len(reply.content[0].text.split()) < 400
            return reply.structured_content

        steps = [await call("simulate", set=changes) for changes in PLANS]
        order = sorted(range(len(PLANS)), key=lambda number: steps[number]["step_time_s"])
        best, second = (PLANS[number] for number in order[:2])
        compared = await call("compare", set=[], **{"with": best if best else second})
        return steps, compared, await call("explain", set=best)

    steps, compared, explained = talk(tmp_path, conversation)
    assert len(calls) <= 6
    for step in steps:
        low, high = step["likely_step_time_s"]
        assert low < step["step_time_s"] < high
        assert step["fits"] == (step["peak_memory_bytes"] <= step["memory_bytes"])
    assert compared["a_step_time_s"] == steps[0]["step_time_s"]
    assert compared["likely_change_ratio"][0] < compared["change_ratio"] < compared["likely_change_ratio"][1]
    assert sum(compared["causes_s"].values()) == pytest.approx(compared["b_step_time_s"] - compared["a_step_time_s"])
    assert explained["step_time_s"] == min(step["step_time_s"] for step in steps)
    assert explained["main_loss"]
    assert [*tmp_path.iterdir()] == []


@pytest.mark.slow
def test_the_best_plan_of_a_search_is_simulated_as_found(tmp_path):
    axes = "search.axes=[{schedule.kind: [gpipe, 1f1b, zb-h1]}]"
    _, found, _ = called(tmp_path, "search", scenario="a100_8x", set=[axes])
    best = found["best"][0]
    assert (found["stopped"], found["objective"]) == ("", "step_time_s")
    _, step, _ = called(tmp_path, "simulate", scenario="a100_8x", set=best["set"])
    assert (step["step_time_s"], step["peak_memory_bytes"]) == (best["cost"], best["peak_memory_bytes"])


@pytest.mark.slow
@pytest.mark.parametrize("tool", ["simulate", "explain", "compare"])
def test_a_call_ends_with_its_budget(tmp_path, tool):
    """Simulated to the end, the scenario would take hours."""
    extra = {"with": ["steps=999999"]} if tool == "compare" else {}
    text, found, failed = called(tmp_path, tool, **ENDLESS, **extra, budget_s=1)
    assert failed and found["error"]["exit_code"] == 3
    assert "the budget of " in text and len(text.splitlines()) == 1


@pytest.mark.slow
@pytest.mark.skipif(not PROCESSES.is_dir(), reason="needs /proc")
def test_a_cancelled_call_ends_its_process(tmp_path):
    """The process that works on it is gone, though its budget is not spent."""

    def workers():
        """Processes whose current folder is that of the server, beside the server."""
        found = 0
        for process in PROCESSES.iterdir():
            with contextlib.suppress(OSError):  # it has ended, or is not ours
                found += process.name.isdecimal() and (process / "cwd").readlink() == tmp_path
        return found

    async def conversation(connected):
        asked = asyncio.create_task(connected.call_tool("explain", {**ENDLESS, "budget_s": 600}))
        while not workers():
            await asyncio.sleep(0.05)
        asked.cancel()
        while workers():
            await asyncio.sleep(0.05)
        return (await connected.call_tool("docs", {})).is_error

    assert talk(tmp_path, conversation) is False


WRONG = {  # tool and arguments, and what the line says
    ("simulate", '{"scenaro": "a100_8x"}'): 'unknown argument "scenaro"; did you mean "scenario"?',
    ("simulate", "{}"): "scenario is required: a file of the folder",
    ("simulate", '{"scenario": "a100_8x", "budget_s": 3600}'): "budget_s: input should be less than or equal to 600",
    ("simulate", '{"scenario": "a100_8"}'): 'a100_8: no such file; did you mean "scenarios/a100_8x.yaml"?',
    ("simulate", '{"scenario": "a100_8x", "set": ["schedule.knd=1"]}'): 'unknown "knd"; did you mean "kind"?',
    ("simulate", '{"scenario": "base: scenarios/a100_8x.yaml\\nsteps: x"}'): "text:2: steps: expected a whole number",
    ("simulate", '{"scenario": "experiments/chunks"}'): "sweep: several scenarios; the tools take one",
    ("simulate", '{"scenario": "jobs/two_jobs"}'): "jobs: several scenarios; the tools take one",
    ("simulate", '{"scenario": "/etc/hostname"}'): "outside of ",
    ("simulate", '{"scenario": "base: /etc/hostname\\nsteps: 2"}'): "outside of ",
    ("simulate", '{"scenario": "link.yaml"}'): "outside of ",
    ("compare", '{"scenario": "a100_8x"}'): "expected other, a second scenario, or with, changes",
    ("explain", '{"scenario": "a100_8x", "what_if": ["cluster.nvlik=2x"]}'): "did you mean",
    ("init", '{"name": "../outside", "model": "llama3.1-8b"}'): "outside of ",
    (
        "init",
        '{"name": "mine", "log": "verl.log", "tool": "axolotl"}',
    ): "tool: expected verl, nemo-rl, slime,",
    ("init", '{"name": "mine", "log": "/etc/hostname", "tool": "verl"}'): "outside of ",
    ("docs", '{"page": "refrence"}'): "did you mean",
    ("run", "{}"): "unknown tool",
}


@pytest.mark.slow
def test_wrong_arguments_get_one_line(tmp_path):
    """Nothing outside of the folder is read or written, and nothing in it either."""
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "secret.yaml").write_text((SCENARIOS / "a100_8x.yaml").read_text())
    (folder / "link.yaml").symlink_to(tmp_path / "secret.yaml")

    async def conversation(connected):
        return [await connected.call_tool(tool, json.loads(arguments)) for tool, arguments in WRONG]

    for (call, said), reply in zip(WRONG.items(), talk(folder, conversation), strict=True):
        (content,) = reply.content
        assert reply.is_error, call
        assert said in content.text and "\n" not in content.text, call
        assert reply.structured_content["error"]["message"] == content.text
    assert sorted(file.name for file in tmp_path.iterdir()) == ["folder", "secret.yaml"]
    assert [file.name for file in folder.iterdir()] == ["link.yaml"]


@pytest.mark.slow
def test_files_are_made_in_the_folder_and_read_there(tmp_path):
    chunks = {"scenario": "experiments/chunks", "set": ["sweep=none", "plot=none"]}

    async def conversation(connected):
        assert not (await connected.call_tool("simulate", chunks)).is_error
        made = await connected.call_tool("init", {"name": "a100_8x"})
        own = await connected.call_tool("simulate", {"scenario": "a100_8x.yaml", "set": ["schedule.kind=gpipe"]})
        based = await connected.call_tool("simulate", {"scenario": "base: a100_8x.yaml\nschedule: {kind: gpipe}"})
        return made, own, based

    made, own, based = (reply.structured_content for reply in talk(tmp_path, conversation))
    assert made["files"] == [file.name for file in tmp_path.iterdir()] == ["a100_8x.yaml"]
    assert own["step_time_s"] == based["step_time_s"] > 0


@pytest.mark.slow
def test_the_log_of_a_loop_becomes_a_file_that_runs(tmp_path):
    shutil.copy(ROOT / "tests/interchange/loops/nemo_rl.log", tmp_path / "run.log")
    stated = ["rl.response.sigma=1", "cluster.gpu=h100"]

    async def conversation(connected):
        made = await connected.call_tool("init", {"name": "mine", "log": "run.log", "tool": "nemo-rl", "set": stated})
        return made, await connected.call_tool("simulate", {"scenario": "mine.yaml"})

    made, simulated = talk(tmp_path, conversation)
    assert made.structured_content["files"] == ["mine.yaml"]
    assert "rl.trainer.time 156.7 s" in made.content[0].text
    assert simulated.structured_content["loop"]["cycle_s"] > 156.7


@pytest.mark.slow
def test_tools_say_what_they_take_and_give(tmp_path):
    """Every argument and figure is described; only one tool writes."""
    tools = talk(tmp_path, lambda connected: connected.list_tools()).tools
    assert {tool.name for tool in tools} == {"simulate", "explain", "compare", "search", "init", "docs"}
    assert [tool.name for tool in tools if not tool.annotations.read_only_hint] == ["init"]
    for tool in tools:
        assert tool.description and tool.output_schema["properties"]
        assert all("description" in argument for argument in tool.input_schema["properties"].values()), tool.name
        assert tool.input_schema["properties"]["budget_s"]["maximum"] == 600
