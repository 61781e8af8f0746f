"""What runs have in common if one of them takes at once what the other one simulates by messages."""

from dataclasses import fields

from hybrid_des.simulation.outcome import Run


def totals(found: Run) -> dict[str, object]:
    """Messages and bytes by purpose, those over each link, and by how much computation was slowed."""
    counted = [field.name for field in fields(Run) if field.name.startswith(("messages", "bytes_"))]
    return {name: getattr(found, name) for name in [*counted, "carried", "slowed"]}
