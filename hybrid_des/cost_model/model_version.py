"""The version of what is modelled and of its constants, as every summary states it."""

MODEL_VERSION = 13
"""Goes up by one when the figures of an unchanged scenario change; `CHANGELOG.md` has a line for each."""
