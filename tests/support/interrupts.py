"""Ctrl-C as in a terminal, also where the tests run in the background."""

import signal


def heed_interrupts():
    """Handle SIGINT as in the foreground, and give the handler before.

    A shell starts background jobs with SIGINT ignored; Python leaves it so, and hands it on to its children.
    """
    return signal.signal(signal.SIGINT, signal.default_int_handler)
