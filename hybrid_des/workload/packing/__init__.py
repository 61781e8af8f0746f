"""Packers of documents into micro-batches, one per file: a registered function from lengths to micro-batches."""
