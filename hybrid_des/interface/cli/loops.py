"""What commands do with a file with `rl`: those not named here either simulate the loop, or simulate no step at all."""

from __future__ import annotations

import argparse
from contextlib import suppress
from pathlib import Path

from hybrid_des.errors import HybridDesError, UsageError

OF_THE_STEP = ("costs", "export", "figure", "live")  # take the training step alone
REFUSED = {  # commands whose figures would be of the step alone, and what to do instead
    "compare": "explain FILE --what-if rl.ahead=1 simulates a change of the loop",
    "spread": "a sweep of seed repeats the loop, such as --set 'sweep=[{seed: [1, 2, 3]}]'",
    "goodput": "expected a file without rl",
}


def loop_notes(command: str, args: argparse.Namespace) -> list[str]:
    """What to say of a command's file with `rl`.

    Raises:
        UsageError: the command has no use for it.
    """
    alone = command in OF_THE_STEP or bool(command == "explain" and args.memory)
    if not alone and command not in REFUSED:
        return []
    files = [getattr(args, name, None) for name in ("file", "other", "a", "b")]
    with_loops = [file for file in files if isinstance(file, str) and _has_loop(file, args)]
    if not with_loops:
        return []
    from hybrid_des.scenario.loops import ALONE

    if not alone:
        raise UsageError(f"{with_loops[0]}: rl: {command} takes training steps, not a loop; {REFUSED[command]}")
    return [f"{with_loops[0]}: {ALONE}"]


def _has_loop(file: str, args: argparse.Namespace) -> bool:
    from hybrid_des.scenario.loading import read_scenario
    from hybrid_des.scenario.loops import has_loop
    from hybrid_des.scenario.shipped import located

    with suppress(HybridDesError):  # the command says what is wrong
        return located(Path(file)).is_file() and has_loop(read_scenario(file, args.set))
    return False
