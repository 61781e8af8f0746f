"""Published models of `tests/interchange/published_models.yaml`, and the page that lists them.

Run as a script, it writes the page.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from hybrid_des.interchange.frameworks.hugging_face import read_hugging_face
from hybrid_des.interchange.frameworks.scenario_file import Imported
from hybrid_des.scenario.composition import nested
from hybrid_des.workload.models.catalogue import model
from hybrid_des.workload.models.layer import Model
from support.paths import ROOT, TESTS

PAGE = ROOT / "docs/reference/models.md"
FILE = TESTS / "interchange/published_models.yaml"
MODELS = {entry["name"]: entry for entry in yaml.safe_load(FILE.read_text(encoding="utf-8"))}
READ = [name for name, entry in MODELS.items() if "total" in entry]
REFUSED = [name for name, entry in MODELS.items() if "refused" in entry]
HEAD = """# Models from their config.json

This page lists published models that `hybrid-des init --from config.json` reads. The tests read each of them from its
own settings, which are in [published_models.yaml](../../tests/interchange/published_models.yaml).
`tests/support/published_models.py` writes this page.

- *Published* is the number of parameters of the named class of transformers 5.24, built from the same settings, with
  the biases of routers; or the number that the named source states. Prediction modules and vision towers are not
  included.
- *Difference* is the simulator's count relative to it. Parameters that it does not count are mostly biases of
  queries, keys and values and additional norms; `init` lists them as "not understood".
- *Active* parameters are in billions, as rounded by the publisher. They are counted here in three ways, all of which
  publishers use: all parameters, without the embedding, and without the matrix of the logits too.

| model | model_type | published | difference | active, published | active, counted | class or source; of active |
|---|---|---|---|---|---|---|
"""
REFUSALS = """
These models are refused, because their layers cannot be described yet; the setting is the one that defines them:

| model | model_type | setting |
|---|---|---|
"""


def imported(name: str) -> Imported:
    """What is read of a model's configuration.

    Raises:
        UsageError: its layers cannot be described.
    """
    return read_hugging_face(json.dumps(MODELS[name]["config"]), "config.json")


def counted(name: str) -> Model:
    """The model that is read, without its prediction modules."""
    values = nested(imported(name).values)["model"]
    options = {"base": values} if isinstance(values, str) else values
    if options.get("kind", "transformer") == "transformer":
        options = {**({} if "base" in options else {"sequence": 2048}), **options, "predictions": 0}
    return model(options)


def page() -> str:
    """The page of the documentation."""
    return HEAD + "".join(map(_row, READ)) + REFUSALS + "".join(map(_refusal, REFUSED))


def _row(name: str) -> str:
    entry, own = MODELS[name], counted(name)
    off = own.parameters / entry["total"] - 1
    active = ("", "")
    if stated := entry.get("active"):
        active = (str(stated), " / ".join(f"{one / 10**9:.2f}" for one in actives(own)))
    cells = (name, _kind(entry), f"{entry['total']:,}", f"{off:+.4%}" if off else "0", *active, _source(entry))
    return f"| {' | '.join(cells)} |\n"


def _refusal(name: str) -> str:
    return f"| {name} | {_kind(MODELS[name])} | {MODELS[name]['refused']} |\n"


def actives(own: Model) -> Iterator[int]:
    """Parameters that a token passes: all, those without the embedding, and those without the matrices at both ends."""
    embedding = own.layers[0].parameters.total
    for matrices in range(3):
        yield own.active - matrices * embedding


def _kind(entry: Mapping[str, Any]) -> str:
    return str(entry["config"]["model_type"])


def _source(entry: Mapping[str, Any]) -> str:
    of_total = str(entry.get("counted") or entry["source"])
    of_active = entry.get("active_source", of_total)
    return of_total if of_active == of_total else f"{of_total}; {of_active}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
