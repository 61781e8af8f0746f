"""The reference names what a scenario may say."""

import json
import re

from support.paths import PACKAGE, SCENARIOS

REFERENCE = (SCENARIOS / "REFERENCE.md").read_text(encoding="utf-8")
EXAMPLE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def keys_in(schema):
    """The keys of all mappings that a JSON schema describes, at any depth."""
    if isinstance(schema, list):
        return {key for part in schema for key in keys_in(part)}
    if not isinstance(schema, dict):
        return set()
    return {*schema.get("properties", ()), *keys_in(list(schema.values()))}


def missing(keys, text):
    """Keys that no example and nothing between backticks names."""
    code = [*EXAMPLE.findall(text), *re.findall(r"`[^`]+`", EXAMPLE.sub("", text))]
    return sorted(keys - set(re.findall(r"\w+", "\n".join(code))))


def test_the_reference_names_every_key_of_a_scenario():
    keys = keys_in(json.loads((PACKAGE / "scenario" / "scenario.schema.json").read_text(encoding="utf-8")))
    assert len(keys) > 200
    assert missing(keys, REFERENCE) == []


def test_a_key_in_prose_alone_counts_as_missing():
    assert missing({"told", "shown", "alone"}, "`told` alone\n```yaml\nshown: 1\n```\n") == ["alone"]
