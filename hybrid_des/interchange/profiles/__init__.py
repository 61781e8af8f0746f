"""Readers and writers of profiles."""
