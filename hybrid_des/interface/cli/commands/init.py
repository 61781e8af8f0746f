"""List the shipped scenarios, copy one, or make one from a model's config.json or another program's job.

Without a name, the shipped scenarios are listed. A copy comes with the files that it builds on. `--from` takes a
config.json of Hugging Face, `--from-megatron` the flags of pretrain_gpt.py or a script that starts it, which is read
and not run, `--from-job` the files of a job of another program, beside `--from` where they do not describe the model.
What is assumed, unknown, not understood or refused by Megatron-LM is listed; values that depend on conditions of the
script are UNKNOWN until --set states them. A file is never replaced by another text.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from hybrid_des.errors import Refusal, UsageError
from hybrid_des.interface.cli.arguments import add_out, as_path
from hybrid_des.interface.cli.output import output_width, say, show, show_result, status_line, write_file

if TYPE_CHECKING:
    from hybrid_des.interchange.frameworks.scenario_file import Imported
    from hybrid_des.scenario.definition import Scenario


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the name, what a scenario is made from, and a folder."""
    parser.add_argument(
        "name", metavar="NAME", nargs="?", help="a shipped scenario, such as a100_8x, or a new name; default: list all"
    )
    parser.add_argument("--from", dest="config", metavar="FILE", type=as_path, help="a model's config.json")
    parser.add_argument("--from-megatron", dest="line", metavar="LINE", help="flags of Megatron-LM, or a script's path")
    parser.add_argument(
        "--from-job", dest="job", action="append", metavar="FILE", type=as_path,
        help="a configuration or launch script of another program, such as torchtitan or DeepSpeed; several of one job",
    )  # fmt: skip
    parser.add_argument("--tool", metavar="NAME", help="the program of --from-job, where its keys do not say it")
    parser.add_argument(
        "--json", action="store_true", help="print the list, the written files, or what was found, as JSON"
    )
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE", help="a value of the new scenario")
    add_out(parser, "write to this folder instead")


def run(args: argparse.Namespace) -> int:
    """Write the files, the scenario last."""
    if args.config is not None and args.line is not None:
        raise UsageError("init: --from and --from-megatron: expected one of the two")
    if args.job and args.line is not None:
        raise UsageError("init: --from-job and --from-megatron: expected one of the two; --from-job reads scripts too")
    if args.config is not None or args.line is not None or args.job:
        return _import(args)
    if args.set or (args.name is None and args.out is not None):
        raise UsageError(
            "init: expected the NAME of a shipped scenario, --from FILE or --from-megatron LINE, or --from-job FILE"
        )
    if args.name is None:
        return _list(args)
    from hybrid_des.scenario.shipped import with_bases

    texts = with_bases(args.name)
    files = _write(args, dict(reversed(texts.items())))
    *_, scenario = files
    if args.json:
        print(json.dumps([str(path) for path in files]))
    else:
        show(f"{scenario}: run it with hybrid-des {scenario}", verbatim=True)
    for path in [*files][:-1]:
        say(f"wrote {path}, which it builds on")
    return 0


def _list(args: argparse.Namespace) -> int:
    """Print names and descriptions of the shipped scenarios."""
    from hybrid_des.report.text_tables import text_table
    from hybrid_des.scenario.shipped import shipped, shipped_description

    rows = [
        {"name": name, "description": shipped_description(file), "file": str(file)} for name, file in shipped().items()
    ]
    table = [(row["name"], row["description"]) for row in rows]
    show_result(
        args, lambda: rows, lambda: text_table(("name", "description"), table, width=output_width()), ascii_only=False
    )
    return 0


def _write(args: argparse.Namespace, texts: dict[str, str]) -> list[Path]:
    """Write files by name, none of which may replace another."""
    files = {(args.out or Path()) / name: text for name, text in texts.items()}
    for path, text in files.items():
        if path.exists() and (not path.is_file() or path.read_text(encoding="utf-8", errors="replace") != text):
            raise UsageError(f"{path}: exists and differs; move it away, or choose a folder with --out")
    if args.out is not None:
        args.out.mkdir(parents=True, exist_ok=True)
    for path, text in files.items():
        write_file(path, text)
    return [*files]


def _import(args: argparse.Namespace) -> int:
    """Write a scenario from elsewhere, and say what it does not hold."""
    from hybrid_des.interchange.frameworks.scenario_file import scenario_file, within_limits, without_stated

    name, imported = _read(args)
    imported, scenario = within_limits(name, without_stated(imported, args.set), args.set)
    if scenario is not None:
        _refuse_too_large(scenario, quiet=args.json)
    text, unknown = scenario_file(name, imported, args.set)
    (file,) = _write(args, {f"{name}.yaml": text})
    if args.json:
        facts = {
            "read": imported.read,
            "assumed": imported.assumed,
            "unknown": unknown,
            "not_understood": imported.unread,
            "refused": imported.refused,
            "without_effect": imported.idle,
        }
        print(json.dumps({"file": str(file), **facts}, indent=2, ensure_ascii=False))
        return 0
    then = f"run it with hybrid-des {file}" if not unknown else "state what is UNKNOWN, then run it"
    show(f"{file}: {then}", verbatim=True)
    for what, lines in (
        ("read", imported.read),
        ("unknown", unknown),
        ("assumed", imported.assumed),
        ("not understood", imported.unread),
        ("refused by Megatron-LM", imported.refused),
    ):
        for line in lines:
            say(f"{what}: {line}")
    if imported.idle:
        say(f"without effect on a step: {', '.join(imported.idle)}")
    return 0


def _refuse_too_large(scenario: Scenario, *, quiet: bool) -> None:
    """Refuse a scenario that is refused when it is run: where all replicas are too many, the run tells.

    Raises:
        Refusal: it is too large; the message names a setting with which it is not, if there is one.
    """
    from hybrid_des.scenario.sizes import too_large
    from hybrid_des.shortcuts.run import run as simulated

    if too_large(scenario, scenario.parallel.data):  # whether one replica stands for others shows as messages meet
        try:
            with status_line(quiet):
                simulated(scenario.model_copy(update={"on_oom": "warn"}), detailed=False)
        except Refusal as refusal:
            raise Refusal(f"{scenario.name}: {refusal}") from None


def _read(args: argparse.Namespace) -> tuple[str, Imported]:
    """The name of the new scenario, and what was found."""
    from hybrid_des.files import read_text
    from hybrid_des.interchange.frameworks.hugging_face import read_hugging_face
    from hybrid_des.interchange.frameworks.megatron import read_megatron

    if args.job:
        return args.name or args.job[0].stem, _read_job(args)
    if args.config is not None:
        file, expected = args.config, "a model's config.json"
    else:
        file, expected = Path(args.line), "a launch line of Megatron-LM"
        if not os.path.isfile(args.line):  # noqa: PTH113 (a line is longer than names may be, for which Path raises)
            if "--" not in args.line:
                raise UsageError(f"{file}: no such file, nor flags such as --num-layers 32; expected {expected}")
            return args.name or "megatron", read_megatron(args.line, "--from-megatron")
    folder = file.resolve().parent.name
    name = args.name or (folder if file.name == "config.json" and folder else file.stem)
    text = read_text(file, expected)
    return name, read_hugging_face(text, str(file)) if args.config is not None else read_megatron(
        text, str(file), is_file=True
    )


def _read_job(args: argparse.Namespace) -> Imported:
    """What files of another program state, with a model's config.json where one is given."""
    from hybrid_des.files import read_text
    from hybrid_des.interchange.frameworks.hugging_face import read_hugging_face
    from hybrid_des.interchange.jobs import read_job
    from hybrid_des.scenario.overrides import Change, changes_of

    args.set = [re.sub("^model=", "model.base=", text) for text in args.set]  # the stack and the length are the job's
    model = None
    if args.config is not None:
        model = read_hugging_face(read_text(args.config, "a model's config.json"), str(args.config))
    changes = (change for change in changes_of(args.set) if isinstance(change, Change))
    return read_job(args.job, args.tool, {".".join(change.path): change.value for change in changes}, model)
