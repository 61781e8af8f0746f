"""`measure --from` on the output of nccl-tests: what it prints, writes and refuses."""

import io
import sys

import pytest
from support.nccl_logs import NAMES, log, rank_list, rows

from hybrid_des.interface.cli.main import main


def test_the_option_names_the_collective_of_a_log(write, run):
    file = write("ls: all_reduce_perf all_gather_perf\n" + rank_list(range(8)) + NAMES + rows(), "n.txt")
    code, out, _ = run("measure", "--from", file, "--collective", "all_reduce")
    assert (code, out.splitlines()[:3]) == (0, ["# all_reduce in n.txt", "# operation: all_reduce", "# ranks: 8"])
    assert run("measure", "--from", file)[0] == 2
    assert run("measure", "--from", file, "--collective", "all_redoce")[0] == 2


def test_another_collective_is_a_table_of_its_group(write, run):
    file = write(log("all_gather"), "n.txt")
    code, out, _ = run("measure", "--from", file)
    assert code == 0
    assert "bytes,time_us,collective,ranks,nodes" in out.splitlines()
    assert "1048576,50,all-gather,8,1" in out.splitlines()
    code, out, _ = run("measure", "--from", file, "--link")
    assert (code, out.splitlines()[1]) == (0, "# operation: message")


def test_standard_input_is_read(monkeypatch, run):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(log().encode())))
    code, out, err = run("measure", "--from", "-")
    assert (code, out.splitlines()[0], err[0]) == (0, "# all_reduce in stdin", "3 sizes from all_reduce in stdin")
    monkeypatch.setattr(sys, "stdin", None)
    assert run("measure", "--from", "-")[0] == 2


def test_notes_are_printed_beside_the_table(write, run):
    _, out, err = run("measure", "--from", write(log(ranks=()), "n.txt"))
    assert err[0] == "note: no list of ranks; 8 ranks, as busbw / algbw says"
    assert "# ranks: 8" in out


@pytest.mark.parametrize("out", [".", "/", ".."])
def test_a_folder_is_no_table(write, run, out):
    code, printed, err = run("measure", "--from", write(log(), "n.txt"), "--out", out)
    assert (code, printed, err) == (2, "", [f"{out}: is a folder, expected the name of a file"])


def test_a_table_may_go_to_a_device(write, run):
    assert run("measure", "--from", write(log(), "n.txt"), "--out", "/dev/null")[0] == 0


def test_a_device_is_refused(run):
    said = "/dev/zero: a device, not a file"
    assert run("measure", "--from", "/dev/zero") == (2, "", [said])


def test_control_characters_never_reach_the_terminal(write, capsys):
    evil = "\x1b]0;owned\x07\x1b[2J\x9b31m\x00\u202e"
    for text in (log().replace("  110.00", f" x{evil}"), log().replace("all_reduce", evil), evil + log() + evil, evil):
        main(["measure", "--from", str(write(text, "n.txt"))])
        printed = "".join(capsys.readouterr())
        assert not set(printed) & set(evil) - set("owned]0;[2J31m")
