"""Shortcuts: what a run leaves out and must not change a figure by; nothing below imports from here."""
