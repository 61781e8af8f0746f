"""List the shipped scenarios, copy one, or make one from a model's config.json, another program's job, or a log.

Without a name, the shipped scenarios are listed. A copy comes with the files that it builds on. `--from` takes a
config.json of Hugging Face, its folder or the name of a published model; `--from-megatron` the flags of
pretrain_gpt.py, a script or a manifest of Kubernetes that starts it, which is read and not run; `--from-job` the files
of a job of another program. `--run -- bash run.sh 8B 1` runs the script in a copy of its folder, where torchrun,
python, srun and others are replaced by programs that record what would start. --from-verl, --from-nemo-rl,
--from-slime, --from-skyrl and --from-trl take the log of a run of reinforcement learning: its settings and the means of
its steady steps become a scenario with an `rl` section, and each number names its lines. --from can be combined with
any of these.
Settings that are unknown, not modelled, not understood, rejected by Megatron-LM or assumed are listed; values
that cannot be read are UNKNOWN until --set states them. Existing files with other contents are kept, unless --force
replaces them.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hybrid_des.errors import HybridDesError, Refusal, UsageError
from hybrid_des.interface.cli.arguments import Parser, add_out, as_path, count, seconds
from hybrid_des.interface.cli.output import output_width, say, show, show_result, status_line, write_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hybrid_des.interchange.frameworks.launch_line import Read
    from hybrid_des.interchange.frameworks.scenario_file import Imported
    from hybrid_des.interchange.launched import Outcome
    from hybrid_des.interchange.loops import Measured
    from hybrid_des.scenario.definition import Scenario

LOOPS = {"verl": "verl", "nemo-rl": "NeMo-RL", "slime": "slime", "skyrl": "SkyRL", "trl": "TRL"}
SHARE = "rl.rollout.efficiency.reached"
SAID = {  # of what was found, by the keys of --json
    "from_log": "from the log", "read": "read", "unknown": "unknown", "not_modelled": "not modelled",
    "not_understood": "not understood", "refused": "refused by Megatron-LM", "assumed": "assumed",
}  # fmt: skip
MOST_MINOR = 8  # settings that are named in one line, of those whose names speak of nothing that is simulated


def add_arguments(parser: Parser) -> None:
    """Add the name, what a scenario is made from, and a folder."""
    parser.add_argument(
        "name", metavar="NAME", nargs="?", help="a shipped scenario, such as a100_8x, or a new name; default: list all"
    )
    parser.add_argument(
        "--from", dest="model", metavar="MODEL", help="a model's config.json, its folder, or a published model's name"
    )
    parser.add_argument(
        "--from-megatron", dest="line", metavar="LINE", help="flags of Megatron-LM, or the path of a script or manifest"
    )
    parser.add_argument(
        "--run",
        action="store_true",
        help="run the command after -- in a copy of its folder, and read what it would launch",
    )
    parser.add_argument("--nth", metavar="N", type=count, help="with --run: read the Nth program that it would launch")
    parser.add_argument(
        "--limit", metavar="TIME", type=seconds, help="with --run: time limit of the script (default 60 s)"
    )
    parser.takes_command = True
    parser.add_argument(
        "--from-job", dest="job", action="append", metavar="FILE", type=as_path,
        help="a configuration or launch script of another program, such as torchtitan or DeepSpeed; several of one job",
    )  # fmt: skip
    parser.add_argument(
        "--tool", metavar="NAME", help="the program of --from-job or --run, where its keys do not identify it"
    )
    for name, title in LOOPS.items():
        parser.add_argument(
            f"--from-{name}", dest=_dest(name), action="append", metavar="LOG", type=as_path,
            help=f"the log of a run of {title}; after it, other files of the run, such as its script",
        )  # fmt: skip
    parser.add_argument(
        "--json", action="store_true", help="print the list, the written files, or what was found, as JSON"
    )
    parser.add_argument("--verbose", action="store_true", help="also list settings without effect")
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE", help="a value of the new scenario")
    add_out(parser, "write to this folder instead")
    parser.add_argument("--force", action="store_true", help="replace existing files, and name them")


def _dest(loop: str) -> str:
    return f"from_{loop.replace('-', '_')}"


def _logs(args: argparse.Namespace) -> dict[str, list[Path]]:
    """The logs that are given, by framework."""
    return {name: getattr(args, _dest(name)) for name in LOOPS if getattr(args, _dest(name))}


def run(args: argparse.Namespace) -> int:
    """Write the files, the scenario last."""
    logs = _logs(args)
    if sum((args.line is not None, bool(args.job), args.run)) > 1:
        raise UsageError("init: expected one of --from-megatron, --from-job, which reads scripts too, and --run")
    if len(logs) > 1 or (logs and (args.line is not None or args.job or args.run)):
        raise UsageError(f"init: expected --from-{next(iter(logs))} alone, or with --from MODEL")
    if args.run != (args.command is not None) or args.command == []:
        raise UsageError("init: expected --run and, after --, what runs the script: init mine --run -- bash run.sh")
    if args.nth is not None and not args.run:
        raise UsageError("init: --nth needs --run")
    if args.tool is not None and not args.job and not args.run:
        raise UsageError("init: --tool needs --from-job or --run")
    if logs or args.run or args.job or args.model is not None or args.line is not None:
        return _import(args)
    if args.set or (args.name is None and args.out is not None):
        where = "--from MODEL, --from-megatron LINE, --from-job FILE, or --run"
        raise UsageError(f"init: expected the NAME of a shipped scenario, {where}")
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
    """Write files by name; those that differ are replaced with --force only."""
    files = {(args.out or Path()) / name: text for name, text in texts.items()}
    replaced = [path for path, text in files.items() if _differs(path, text)]
    for path in replaced:
        if not args.force or not path.is_file():
            remedy = ", choose a folder with --out, or replace it with --force" if path.is_file() else ": it is no file"
            raise UsageError(f"{path}: exists and differs; move it away{remedy}")
    if args.out is not None:
        args.out.mkdir(parents=True, exist_ok=True)
    for path, text in files.items():
        write_file(path, text)
    for path in replaced:
        say(f"note: replaced {path}, which had other contents")
    return [*files]


def _differs(path: Path, text: str) -> bool:
    """Whether there is something else than a file with this text."""
    return path.exists() and not (path.is_file() and path.read_text(encoding="utf-8", errors="replace") == text)


def _import(args: argparse.Namespace) -> int:
    """Write a scenario from elsewhere, and say what it does not hold."""
    from hybrid_des.interchange.frameworks.scenario_file import scenario_file, within_limits, without_stated

    name, imported, measured = _read(args)
    name = name.removesuffix(".yaml")  # of a file that is named as it is to be written
    imported, scenario = within_limits(name, without_stated(imported, args.set), args.set)
    if scenario is not None:
        _refuse_too_large(scenario, quiet=args.json)
        if measured is not None:
            imported = _with_share(args, imported, scenario, measured)
    text, unknown = scenario_file(name, imported, args.set)
    (file,) = _write(args, {f"{name}.yaml": text})
    facts = {
        "from_log": imported.sources,
        "read": imported.read,
        "assumed": imported.assumed,
        "unknown": unknown,
        "not_modelled": imported.unmodelled,
        "not_understood": imported.unread,
        "refused": imported.refused,
        "without_effect": imported.idle,
    }
    if args.json:
        print(json.dumps({"file": str(file), **facts}, indent=2, ensure_ascii=False))
        return 0
    then = f"run it with hybrid-des {file}" if not unknown else "state what is UNKNOWN, then run it"
    show(f"{file}: {then}", verbatim=True)
    known = len(imported.unread) - imported.minor
    for key, what in SAID.items():
        for line in facts[key][:known] if key == "not_understood" else facts[key]:
            say(f"{what}: {line}")
    _say_listed(args, "not understood", imported.unread[known:], shown=MOST_MINOR)
    _say_listed(args, "without effect on a step", imported.idle, shown=0)
    return 0


def _say_listed(args: argparse.Namespace, what: str, lines: Sequence[str], *, shown: int) -> None:
    """Say lines in one, the first of them unless all are asked for."""
    first = lines if args.verbose else lines[:shown]
    left = len(lines) - len(first)
    more = [f"{left}{' more' if first else ''} (--verbose lists them)"] if left else []
    if lines:
        say(f"{what}: {', '.join([*first, *more])}")


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


def _with_share(args: argparse.Namespace, imported: Imported, scenario: Scenario, measured: Measured) -> Imported:
    """The same with the share of their speed that engines reach, from what the run of a log took."""
    from hybrid_des.scenario.overrides import overridden
    from hybrid_des.studies.rl.calibration import HIGHEST, LOWEST, calibrated, setting

    stated = [*overridden(args.set)]
    if any(path.startswith(SHARE.rpartition(".")[0]) for path in stated):
        return imported
    if "cluster.gpu" not in {*imported.values, *stated} and "cluster" not in stated:
        why = "state cluster.gpu with --set, of whose figures it is a share"
        return imported._replace(assumed=(*imported.assumed, f"{SHARE}: 1: {why}"))
    what = "a cycle" if measured.kind == "cycle" else measured.kind
    try:
        with status_line(args.json, "simulating the loop of the log"):
            share = calibrated(scenario, measured.kind, measured.seconds)
    except HybridDesError as error:  # whoever runs the scenario is told, too
        return imported._replace(assumed=(*imported.assumed, f"{SHARE}: 1: the loop cannot be simulated: {error}"))
    assert scenario.rl is not None
    key, exact = setting(scenario, scenario.rl.rollout[0], share.value or 1.0)  # a log has one kind of engines
    path, value = f"{SHARE.rpartition('.')[0]}.{key}", float(f"{exact:.3g}")
    if share.value is None:
        why = f"no value from {LOWEST:.2g} to {HIGHEST:.2g} makes {what} take {measured.seconds:.4g} s, as in the log"
        return imported._replace(assumed=(*imported.assumed, f"{path}: 1: {why}"))
    bound = "at least" if key == "reached" else "at most"
    more = (f"{path}: {value}: {bound}; with faster engines a cycle takes as long",) if share.is_least else ()
    return imported._replace(
        values={**imported.values, path: value},
        sources=(*imported.sources, f"{path} {value}: {what} takes {measured.seconds:.4g} s then"),
        assumed=(*imported.assumed, *more),
    )


def _read(args: argparse.Namespace) -> tuple[str, Imported, Measured | None]:
    """The name of the new scenario, what was found, and what the engines of a log took."""
    from hybrid_des.interchange.frameworks.megatron import FLAGS, read_launch
    from hybrid_des.interchange.frameworks.named_model import read_model, read_with_model
    from hybrid_des.interchange.jobs import read_job
    from hybrid_des.interchange.launched import job_of, launch_of

    model_name, model = read_model(args.model) if args.model is not None else ("", None)
    if logs := _logs(args):
        from hybrid_des.interchange.loops import read_loop

        ((loop, files),) = logs.items()
        args.set, stated, model = _of_job(args, model)
        return args.name or files[0].stem, *read_loop(files, loop, stated, model)
    if args.job:
        args.set, stated, model = _of_job(args, model)
        return args.name or args.job[0].stem, read_job(args.job, args.tool, stated, model), None
    if args.line is None and not args.run:
        assert model is not None
        return args.name or model_name, model, None
    if args.run:
        launch_name, outcome = _run(args)
        overrides, stated, other_model = _of_job(args, model)
        job = job_of(outcome, args.nth, args.tool, stated, other_model)
        if job is not None:
            args.set = overrides
            return args.name or launch_name, job, None
        label, read = outcome.command, launch_of(outcome, FLAGS, args.nth)
    else:
        launch_name, label, read = _read_text(args.line)
    is_file = label == args.line
    if model is None:
        return args.name or launch_name, read_launch(read, label, is_file=is_file, overrides=args.set), None
    return args.name or launch_name, read_with_model(read, label, model, args.model, args.set), None


def _read_text(line: str) -> tuple[str, str, Read]:
    """What to call a launch of Megatron-LM, where it comes from, and what it starts."""
    from hybrid_des.files import read_text
    from hybrid_des.interchange.frameworks.megatron import megatron_launch

    expected = "a launch line of Megatron-LM"
    if os.path.isfile(line):  # noqa: PTH113 (a line is longer than names may be, for which Path raises)
        file = Path(line)
        return file.stem, line, megatron_launch(read_text(file, expected), line, is_file=True, environment=os.environ)
    if "--" not in line:
        raise UsageError(f"{Path(line)}: no such file, nor flags such as --num-layers 32; expected {expected}")
    return "megatron", "--from-megatron", megatron_launch(line, "--from-megatron")


def _run(args: argparse.Namespace) -> tuple[str, Outcome]:
    """What to call a script, and what came of running it."""
    from hybrid_des.interchange.launched import LIMIT_S, prepared, remarks

    with prepared(args.command, _gpus_per_node(args.set)) as script:
        say(script.announcement)
        with status_line(args.json, "running the script"):
            outcome = script.run(args.limit or LIMIT_S)
    for remark in remarks(outcome):
        say(f"note: {remark}")
    return script.name, outcome


def _gpus_per_node(overrides: Sequence[str]) -> int:
    """How many GPUs a script is to find: those that are stated, or those of most machines."""
    from hybrid_des.interchange.launched import GPUS
    from hybrid_des.scenario.overrides import Change, changes_of

    changes = [one for one in changes_of(overrides) if isinstance(one, Change)]
    stated = [one.value for one in changes if [*one.path] == ["cluster", "gpus_per_node"]]
    return next((value for value in reversed(stated) if type(value) is int), GPUS)


def _of_job(args: argparse.Namespace, model: Imported | None) -> tuple[list[str], dict[str, Any], Imported | None]:
    """What is stated beside a job of another program, as text and by path, and its model; a published one is stated."""
    from hybrid_des.scenario.overrides import Change, changes_of

    overrides = [*args.set]
    if model is not None and "model" in model.values:
        overrides, model = [f"model={model.values['model']}", *overrides], None
    overrides = [re.sub("^model=", "model.base=", text) for text in overrides]  # stack and length are the job's
    changes = (change for change in changes_of(overrides) if isinstance(change, Change))
    return overrides, {".".join(change.path): change.value for change in changes}, model
