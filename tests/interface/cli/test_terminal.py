"""What reaches the terminal of foreign texts is printable, on one line and short."""

import weakref

import pytest
import yaml
from support.paths import TESTS
from support.scenarios import MINIMAL

from hybrid_des.errors import CircularOrderError, DeadlockError, ScenarioError, UsageError, one_line

EVIL = "a\x1b]0;owned\x07\x9b31m\rb\u202e"
QUOTED = r'"a\e]0;owned\a\x9b31m\rb\u202E"'
TRANSFER = MINIMAL + "parallel: {pipeline: 2}\n"
TABLE = "bytes,time_us\n"


def safe(text):
    return all(letter.isprintable() or letter == "\n" for letter in text)


CASES = yaml.safe_load((TESTS / "interface" / "cli" / "foreign_texts.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", CASES)
def test_control_characters_do_not_reach_the_terminal(run, write, tmp_path, monkeypatch, case):
    for name, text in CASES[case]["files"].items():
        write(text, name)
    monkeypatch.chdir(tmp_path)
    code, out, err = run(*CASES[case]["arguments"])
    assert safe(out), ascii(out)
    assert all(map(str.isprintable, err)), ascii(err)
    assert len(err) <= 3
    assert bool(code) == bool(err) or "fail: " in out
    assert max(map(len, err), default=0) <= 400


def test_names_of_switches_are_shown_safely(ran, write):
    links = f"[{{between: [gpu0, {QUOTED}], bandwidth: 1 GB/s}}, {{between: [gpu1, {QUOTED}], bandwidth: 1 GB/s}}]"
    cluster = f"cluster: {{gpus_per_node: 2, topology: links, links: {links}}}\n"
    out, _ = ran("topology", write(MINIMAL + cluster), "--route", "0", "1")
    assert "owned" in out
    assert safe(out), ascii(out)


def test_the_first_problems_of_very_many_are_listed(run, write):
    code, out, err = run(write("steps: 1\n" * 100))
    assert (code, out, len(err)) == (2, "", 20)
    assert err[-1] == "… and 80 more problems"


def test_a_long_message_keeps_its_beginning_and_its_end():
    line = str(UsageError(f"--set {'x' * 10_000}: expected a number"))
    assert len(line) == 400
    assert line.startswith("--set xxx")
    assert line.endswith("xxx: expected a number")


def test_a_grid_keeps_its_columns_and_at_most_39_lines():
    text = "rank 0  rank 1\n0F0     1F0"
    assert str(CircularOrderError(text)) == text
    lines = str(DeadlockError("\n".join(f"rank {i}" for i in range(1000)))).split("\n")
    assert (len(lines), lines[-1]) == (39, "… and 962 more lines")


def test_all_problems_are_kept_beside_the_message():
    error = ScenarioError([f"a.yaml:{line}: wrong" for line in range(50)])
    assert len(error.problems) == 50
    assert len(str(error).split("\n")) == 20


def test_white_space_other_than_spaces_is_one_space():
    assert one_line("a \n\tb  c\x85d") == "a b  c d"


def test_running_out_of_memory_is_one_line(run, write, monkeypatch):
    def simulate(scenario, **options):
        raise MemoryError("Unable to allocate 128. GiB")

    monkeypatch.setattr("hybrid_des.result.simulate", simulate)
    code, out, err = run(write(MINIMAL))
    assert (code, out) == (1, "")
    assert err == ["out of memory: the scenario needs more than this machine has (Unable to allocate 128. GiB)"]


def test_what_ran_out_of_memory_is_freed(run, write, monkeypatch):
    class Large:
        pass

    freed = []

    def simulate(scenario, **options):
        large = Large()
        weakref.finalize(large, freed.append, True)
        raise MemoryError("Unable to allocate 128. GiB")

    def say(message):
        assert freed == [True]
        say.message = message

    monkeypatch.setattr("hybrid_des.result.simulate", simulate)
    monkeypatch.setattr("hybrid_des.interface.cli.main.say", say)
    assert run(write(MINIMAL))[0] == 1
    assert say.message.startswith("out of memory: ")


def test_a_device_as_order_file_is_one_line(run, write):
    file = write(MINIMAL.replace("kind: 1f1b", "file: /dev/zero"))
    assert run(file) == (2, "", ["/dev/zero: a device, not a file"])
