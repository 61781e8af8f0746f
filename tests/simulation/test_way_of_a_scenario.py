"""The way of a scenario through a run: which rooms it is handed to, from `run` on."""

import sys
from collections import Counter
from functools import cache
from pathlib import Path

from support.paths import PACKAGE, SCENARIOS
from support.tables import from_table

from hybrid_des import load, simulate
from hybrid_des.shortcuts.run import run

MOVES = 25


class Trip:
    """Follows an object through calls that have it as an argument; use as a context manager.

    Attributes:
        moves: the rooms entered, by a call or on return, in order.
        descents: room → number of calls into it from another room.
    """

    def __init__(self, traveller):
        self._traveller = traveller
        self._stays = []
        self.moves = []
        self.descents = Counter()

    def __enter__(self):
        sys.setprofile(self._event)
        return self

    def __exit__(self, *_):
        sys.setprofile(None)

    def _event(self, frame, event, _):
        if event == "call" and (room := room_of(frame.f_code.co_filename)) and self._carried(frame):
            if self._here() != room:
                self.moves.append(room)
                self.descents[room] += 1
            self._stays.append((frame, room))
        elif event == "return" and self._stays and self._stays[-1][0] is frame:
            _, room = self._stays.pop()
            if self._here() not in (room, None):
                self.moves.append(self._here())

    def _here(self):
        return self._stays[-1][1] if self._stays else None

    def _carried(self, frame):
        code = frame.f_code
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        return any(name != "self" and frame.f_locals.get(name) is self._traveller for name in names)


@cache
def room_of(name):
    """The folder of the package that a file is in; None outside the package."""
    file = Path(name)
    return file.relative_to(PACKAGE).parent.as_posix() if file.is_relative_to(PACKAGE) else None


@from_table
def test_a_scenario_goes_down_into_each_room_once(name, change):
    scenario = load(SCENARIOS / f"{name}.yaml", change)
    with Trip(scenario) as trip:
        run(scenario)
    assert trip.moves[0] == "shortcuts" and {"planning", "cost_model", "simulation"} < {*trip.moves}
    assert {room: times for room, times in trip.descents.items() if times > 1 and room != "simulation"} == {}
    assert len(trip.moves) - 1 <= MOVES


class Entries(Trip):
    """Notes which functions of a room are called from other rooms, with whatever arguments.

    Attributes:
        functions: their names, each once; without those that the room has handed out.
    """

    def __init__(self, room):
        super().__init__(None)
        self._room = room
        self.functions = set()

    def _event(self, frame, event, _):
        if event == "call" and (room := room_of(frame.f_code.co_filename)):
            handed_out = "<locals>" in frame.f_code.co_qualname
            if room == self._room != self._here() and not handed_out:
                self.functions.add(frame.f_code.co_qualname)
            self._stays.append((frame, room))
        elif event == "return" and self._stays and self._stays[-1][0] is frame:
            self._stays.pop()


@from_table
def test_planning_is_asked_to_plan_to_lower_and_to_describe(name, change):
    scenario = load(SCENARIOS / f"{name}.yaml", change)
    with Trip(scenario) as trip:
        simulate(scenario)
    assert trip.moves.count("planning") <= 3
    with Entries("planning") as entries:
        assert simulate(scenario).summary
    # the table of programs, and how far replay may be off, which are worked out when they are first read
    described = {"table_of", "_ops", "_messages", "TensorTraffic.delay"}
    looked_at = {"Program.distinct", "Program.events", "Block.every"}  # for what a folded run takes at once
    parts = ("ProgramTable.", "Worker.", "TrainingProgress.")  # which a run reads, and trains
    asked = {name for name in entries.functions if not name.startswith(parts)}
    assert asked <= {"parts_of", "Lowering.lower", "Reductions.buffers_of", *described, *looked_at}
