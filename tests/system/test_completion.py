"""Completion scripts in the shells that they are for."""

import shutil
import subprocess

import pytest

from hybrid_des.cluster import gpus
from hybrid_des.interface.cli import command_files
from hybrid_des.interface.cli.commands.completion import SHELLS, script

BASH = """
source {file}
COMP_WORDS=(hybrid-des {words}); COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ))
_shtab_hybrid_des
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
FISH = "source {file}; complete -C 'hybrid-des {words}' | cut -f 1"
COMPLETED = {
    "": {"explain", "search", "completion"},
    "gpus h1": {"h100", "h100-pcie"},
    "schedules zb": {"zb-h1", "zb-v"},
    "init a100": {"a100_8x"},
    "export --for me": {"megatron"},
    "explain sc": {"scenario.yaml"},
    "sc": {"scenario.yaml"},
    "search --im": {"--import"},
    "scenario.yaml --bu": {"--budget"},
}


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_has_every_command_and_gpu(run, shell):
    code, out, err = run("completion", shell)
    assert (code, err) == (0, [])
    assert [name for name in [*command_files.names(), *gpus.names()] if name not in out] == []


def test_other_shells_are_refused_with_those_that_exist(run):
    code, out, (err,) = run("completion", "csh")
    assert (code, out) == (2, "")
    assert all(shell in err for shell in SHELLS)


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_reads_its_script(shell, tmp_path):
    if shutil.which(shell) is None:
        pytest.skip(f"needs {shell}")
    (tmp_path / "script").write_text(script(shell), encoding="utf-8")
    subprocess.run([shell, "-n", tmp_path / "script"], check=True)


@pytest.mark.parametrize("words", COMPLETED)
@pytest.mark.parametrize(("shell", "asked"), [("bash", BASH), ("fish", FISH)])
def test_a_shell_completes(shell, asked, words, tmp_path):
    if shutil.which(shell) is None:
        pytest.skip(f"needs {shell}")
    (tmp_path / "script").write_text(script(shell), encoding="utf-8")
    (tmp_path / "scenario.yaml").touch()
    last = '""' if shell == "bash" and not words else words
    command = asked.format(file=tmp_path / "script", words=last)
    done = subprocess.run([shell, "-c", command], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert COMPLETED[words] <= set(done.stdout.split())
