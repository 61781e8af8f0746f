"""The machine: GPUs, links, topologies that wire them, how messages share links, and measured link times."""
