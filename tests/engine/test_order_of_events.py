"""Our environment beside SimPy's: the same programs, the same order of events."""

import random

import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st
from support.campaigns import TIMES

from hybrid_des.engine.clock import LAST, Environment

DELAY = st.integers(0, 4)  # few values, so that events often happen at the same time
NUMBER = st.integers(0, 3)
NAMES = (
    *("timeout", "any", "all", "put", "get", "fill", "drain", "use", "queue", "preempt"),
    *("signal", "wait", "spawn", "join", "interrupt", "refuse", "fail"),
)
INSTRUCTIONS = st.tuples(st.sampled_from(NAMES), DELAY, NUMBER)
PROGRAMS = st.lists(st.lists(INSTRUCTIONS, max_size=6), min_size=1, max_size=5)
RUNS = st.lists(st.sampled_from(["step", "until", "event"]), max_size=5)


class World:
    """Processes that carry out programs in one environment, and a log of what they meet."""

    def __init__(self, env, programs):
        self.env = env
        self.log = []
        self.store = simpy.Store(env, capacity=2)
        self.container = simpy.Container(env, capacity=5, init=2)
        self.resource = simpy.Resource(env)
        self.priority = simpy.PriorityResource(env)
        self.preemptive = simpy.PreemptiveResource(env)
        self.signals = [env.event() for _ in range(4)]
        self.processes = []
        for program in programs:
            self.begin(program)

    def begin(self, program):
        number = len(self.processes)
        self.processes.append(None)
        self.processes[number] = self.env.process(self.process(number, program))

    def process(self, number, program):
        for place, (name, delay, other) in enumerate(program):
            self.note("asks", number, name)
            try:
                yield from getattr(self, name)(number, delay, other, program[place + 1 :])
                self.note("goes on", number, name)
            except simpy.Interrupt as interrupt:
                cause = interrupt.cause
                self.note("interrupted", number, cause if isinstance(cause, int) else type(cause).__name__)
        return number

    def note(self, *what):
        self.log.append((self.env.now, *what))

    def timeout(self, number, delay, other, rest):
        self.note((yield self.env.timeout(delay, (number, delay))))

    def any(self, number, delay, other, rest):
        met = yield self.env.timeout(delay, "a") | self.env.timeout(other, "b") | self.signals[other]
        self.note(list(met.values()))

    def all(self, number, delay, other, rest):
        met = yield self.env.all_of([self.env.timeout(delay, "a"), self.env.timeout(other, "b")])
        self.note(list(met.values()))

    def put(self, number, delay, other, rest):
        yield self.store.put((number, other))

    def get(self, number, delay, other, rest):
        self.note((yield self.store.get()))

    def fill(self, number, delay, other, rest):
        yield self.container.put(other + 1)

    def drain(self, number, delay, other, rest):
        yield self.container.get(other + 1)

    def use(self, number, delay, other, rest):
        with self.resource.request() as turn:
            yield turn
            self.note("turn", number)
            yield self.env.timeout(delay)

    def queue(self, number, delay, other, rest):
        with self.priority.request(priority=other) as turn:
            yield turn
            self.note("turn", number)
            yield self.env.timeout(delay)

    def preempt(self, number, delay, other, rest):
        with self.preemptive.request(priority=other) as turn:
            yield turn
            yield self.env.timeout(delay)

    def signal(self, number, delay, other, rest):
        signal, self.signals[other] = self.signals[other], self.env.event()
        signal.succeed(number)
        yield self.env.timeout(delay)

    def wait(self, number, delay, other, rest):
        self.note((yield self.signals[other]))

    def spawn(self, number, delay, other, rest):
        if len(self.processes) < 12:
            self.begin(rest)
        yield self.env.timeout(delay)

    def join(self, number, delay, other, rest):
        target = self.processes[other % len(self.processes)]
        if target is not self.env.active_process:
            self.note((yield target))

    def interrupt(self, number, delay, other, rest):
        target = self.processes[other % len(self.processes)]
        if target is not self.env.active_process and target.is_alive:
            target.interrupt(number)
        yield self.env.timeout(delay)

    def refuse(self, number, delay, other, rest):
        """An event that fails, whose failure is handled."""
        try:
            yield self.env.event().fail(KeyError(number))
        except KeyError as error:
            self.note("handles", error.args)

    def fail(self, number, delay, other, rest):
        """An exception that is handled only if another process joins this one; otherwise it ends the run."""
        yield self.env.timeout(delay)
        raise LookupError(number)


def carry_out(env, programs, runs):
    """Run the programs piece by piece, then to the end; the log."""
    world = World(env, programs)
    for run in [*runs, *["end"] * 12]:
        world.note("next event", env.peek())
        try:
            if run == "step":
                env.step()
            elif run == "until":
                env.run(until=env.now + 2)
            elif run == "event":
                world.note(env.run(until=env.timeout(1, "value")))
            else:
                env.run()
        except (LookupError, simpy.core.EmptySchedule, simpy.core.StopSimulation) as error:
            world.note("ends", type(error).__name__, error.args)
    return world.log


@settings(max_examples=100 * TIMES)
@given(PROGRAMS, RUNS)
def test_events_happen_in_simpys_order(programs, runs):
    assert carry_out(Environment(), programs, runs) == carry_out(simpy.Environment(), programs, runs)


def test_long_programs_reach_every_instruction_in_simpys_order():
    draw = random.Random(7)
    done, interrupted = set(), 0
    for _ in range(60):
        programs = [
            [(draw.choice(NAMES), draw.randrange(5), draw.randrange(4)) for _ in range(8)]
            for _ in range(draw.randint(2, 8))
        ]
        log = carry_out(Environment(), programs, ["until", "step"])
        assert log == carry_out(simpy.Environment(), programs, ["until", "step"])
        done |= {entry[3] for entry in log if entry[1] == "goes on"}
        interrupted += sum(entry[1] == "interrupted" for entry in log)
        done |= {"fail" for entry in log if entry[1:3] == ("ends", "LookupError")}
    assert done == set(NAMES)
    assert interrupted > 10


@pytest.mark.parametrize("environment", [Environment, simpy.Environment])
def test_an_environment_may_begin_at_another_time(environment):
    env = environment(10)
    assert (env.now, env.peek()) == (10, float("inf"))
    assert env.run(until=env.timeout(5, "value")) == "value"
    assert env.now == 15


@pytest.mark.parametrize("environment", [Environment, simpy.Environment])
def test_a_run_until_what_never_happens_is_an_error(environment):
    env = environment()
    with pytest.raises(RuntimeError, match='"until" event was not triggered'):
        env.run(until=env.event())
    with pytest.raises(ValueError, match="must be greater than the current simulation time"):
        env.run(until=0)
    with pytest.raises(simpy.core.EmptySchedule):
        env.step()


@pytest.mark.parametrize("environment", [Environment, simpy.Environment])
def test_a_run_until_a_past_event_gives_its_value(environment):
    env = environment()
    event = env.timeout(1, "value")
    env.run()
    assert env.run(until=event) == "value"


@pytest.mark.parametrize("environment", [Environment, simpy.Environment])
def test_callbacks_behind_the_end_of_a_run_follow_later(environment):
    env = environment()
    event, log = env.timeout(3), []
    env.run(until=1)
    event.callbacks.append(lambda event: log.append("first"))
    until = env.timeout(2)
    event.callbacks.append(simpy.core.StopSimulation.callback)
    event.callbacks.append(lambda event: log.append("second"))
    until.callbacks.append(lambda event: log.append("later"))
    env.run()
    assert log == ["first"]
    env.run()
    assert log == ["first", "second", "later"]


def test_times_are_whole():
    env = Environment()
    env.timeout(2.0)
    for refused in (0.5, 1e-9):
        with pytest.raises(ValueError, match="whole picoseconds"):
            env.timeout(refused)
        with pytest.raises(ValueError, match="whole picoseconds"):
            env.run(until=1 + refused)
    with pytest.raises(ValueError, match="Negative delay"):
        env.timeout(-1)
    env.run()
    assert env.now == 2
    assert type(env.now) is int


def test_numbers_of_numpy_do_not_spread_into_the_clock():
    import numpy

    env = Environment()
    env.timeout(numpy.int64(2**62))
    env.run()
    assert env.now == 2**62
    assert type(env.now) is int


def test_the_last_priority_waits_for_later_bookings():
    env, log = Environment(), []
    for name, priority in (("last", LAST), ("normal", 1), ("urgent", 0)):
        event = env.event()
        event.callbacks.append(lambda event, name=name: log.append(name))
        event._ok, event._value = True, None
        env.schedule(event, priority)
    env.run()
    assert log == ["urgent", "normal", "last"]
    with pytest.raises(ValueError, match="priority 7"):
        env.schedule(env.event(), 7)


def test_processed_events_are_counted():
    env = Environment()
    for delay in (1, 1, 2):
        env.timeout(delay)
    counts = []
    while env.peek() < float("inf"):
        env.step()
        counts.append(env.events)
    assert counts == [1, 2, 3]
