"""Measured times of collectives and links: nccl-tests output read, checked and fitted."""
