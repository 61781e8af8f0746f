"""Small models on H100s whose steps are broken down."""

from support.scenarios import merged

MODEL = {"base": "llama3.1-8b", "layers": 4}


def of_model(model=None, **sections):
    """Four micro-batches of a small model on H100s."""
    base = {"model": model or MODEL, "cluster": {"gpu": "h100"}, "schedule": {"kind": "1f1b", "microbatches": 4}}
    return merged(base, sections)
