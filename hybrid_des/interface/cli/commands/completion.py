"""Print a script that completes commands, options, files and names in bash, zsh or fish.

It completes commands, options, scenario files, and the names of GPUs, schedules, collectives, codecs, shipped
scenarios and pages of the documentation. The script is static: write it once, and again after an upgrade.

  bash   hybrid-des completion bash > ~/.local/share/bash-completion/completions/hybrid-des
  zsh    hybrid-des completion zsh > "${fpath[1]}/_hybrid-des"        (a folder of $fpath, before compinit)
  fish   hybrid-des completion fish > ~/.config/fish/completions/hybrid-des.fish

For the current shell only: eval "$(hybrid-des completion bash)", the same with zsh, and in fish
hybrid-des completion fish | source.
"""

from __future__ import annotations

import argparse
import json

SHELLS = ("bash", "zsh", "fish")
PROGRAM, PREFIX = "hybrid-des", "_shtab_hybrid_des"
# `shtab` completes a command or a FILE as the first word, not both: these lines add the FILE
BEFORE = {
    "bash": "",
    "zsh": f"""
functions[{PREFIX}_commands_only]=$functions[{PREFIX}_commands]
{PREFIX}_commands() {{
  {PREFIX}_commands_only
  FILES
}}
functions[{PREFIX}_command]=$functions[{PREFIX}]
{PREFIX}() {{
  if (( CURRENT > 2 )) && [[ $words[2] == *.y(a|)ml ]]; then
    _arguments -s ${{{PREFIX}_options:#(*{PREFIX}_commands|*'->{PROGRAM}')}} "1: :FILES"
  else
    {PREFIX}_command
  fi
}}
""",
    "fish": "",
}
AFTER = {
    "bash": f"\n{PREFIX}_pos_0_COMPGEN=FILES\ncomplete -o default -o bashdefault -F {PREFIX} {PROGRAM}\n",
    "zsh": "",
    "fish": f'\ncomplete -c {PROGRAM} -n "{PREFIX}_using; and test \\${PREFIX}_npos -eq 0" -ka "FILES" -d scenario\n',
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the shell."""
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help=", ".join(SHELLS))
    parser.add_argument("--json", action="store_true", help="print the shell and its script as JSON")


def run(args: argparse.Namespace) -> int:
    """Print the script."""
    text = script(args.shell)
    print(json.dumps({"shell": args.shell, "script": text}) if args.json else text)
    return 0


def script(shell: str) -> str:
    """The completion script of a shell: bash, zsh or fish."""
    import shtab

    from hybrid_des.interface.cli.completion_words import SCENARIOS

    files = str(SCENARIOS[shell])
    texts = [text[shell].replace("FILES", files) for text in (BEFORE, AFTER)]
    return shtab.complete(_whole_parser(), shell, preamble=texts[0]) + texts[1]


def _whole_parser() -> argparse.ArgumentParser:
    """The options of `hybrid-des FILE`, and every command with its own."""
    from hybrid_des.interface.cli import command_files, simulate
    from hybrid_des.interface.cli.arguments import Parser
    from hybrid_des.interface.cli.completion_words import describe

    whole = Parser(PROGRAM)
    simulate.add_arguments(whole)
    whole._actions[:] = [action for action in whole._actions if action.option_strings]  # FILE: see BEFORE and AFTER
    describe(whole)
    commands = whole.add_subparsers()
    for name in command_files.names():
        parser = commands.add_parser(name, help=command_files.summary(name))
        command_files.find(name).add_arguments(parser)
        describe(parser, name)
    return whole
