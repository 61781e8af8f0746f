"""Mailboxes: messages in the order of sending, to receivers in the order of asking, early or late."""

from hypothesis import given
from hypothesis import strategies as st

from hybrid_des.cluster.mailbox import Mailbox, Message
from hybrid_des.engine.clock import Environment

GAPS = st.lists(st.integers(0, 3), min_size=1, max_size=8)


@given(sent=GAPS, asked=GAPS)
def test_receivers_are_served_in_the_order_of_asking(sent, asked):
    """The n-th to ask gets the n-th message, when both are there; messages take 2 ps."""
    env = Environment()
    mailbox = Mailbox(env)
    found = []

    def send():
        for number, gap in enumerate(sent):
            yield env.timeout(gap)
            mailbox.put(Message(number), 0, env.now + 2)

    def receive(number):
        message = yield mailbox.receive()
        found.append((number, message.size, env.now))

    def ask():
        for number, gap in enumerate(asked):
            yield env.timeout(gap)
            env.process(receive(number))

    env.process(send())
    env.process(ask())
    env.run()
    there = [sum(sent[: number + 1]) + 2 for number in range(len(sent))]
    here = [sum(asked[: number + 1]) for number in range(len(asked))]
    both = [max(times) for times in zip(there, here, strict=False)]
    assert sorted(found) == [(number, number, at) for number, at in enumerate(both)]
    assert mailbox.unread() == max(len(sent) - len(asked), 0)


def test_a_process_can_wait_for_messages_of_two_mailboxes():
    """The two events are told apart, though neither has a callback yet."""
    env = Environment()
    one, other = Mailbox(env), Mailbox(env)
    waits = [one.receive(), other.receive()]
    assert waits[0] != waits[1]
    assert len({*waits}) == 2
    both = env.all_of(waits)
    one.put(Message(1), 0, 5)
    other.put(Message(2), 0, 9)
    env.run(until=both)
    assert env.now == 9
    assert [both.value[wait].size for wait in waits] == [1, 2]
