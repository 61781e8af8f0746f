"""Errors: their messages and how they travel."""

import copy
import pickle
from importlib import metadata

import pytest
from support.paths import ROOT

from hybrid_des.engine.recorder import TimeRangeError
from hybrid_des.errors import CircularOrderError, HybridDesError, OptionRefusal, ScenarioError, installing
from hybrid_des.workload.models.kinds.registration import ModelRefusal


@pytest.mark.parametrize(
    "error",
    [
        HybridDesError("a"),
        ScenarioError(["a.yaml:1: b", "a.yaml:2: c"]),
        ScenarioError([]),
        CircularOrderError("a\nb" * 30),
        TimeRangeError(),
        OptionRefusal("links", "a", 1, 2),
        ModelRefusal("model.width", "a"),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize(
    "sent", [lambda error: pickle.loads(pickle.dumps(error)), copy.copy], ids=["pickled", "copied"]
)
def test_an_error_stays_the_same_on_its_way(error, sent):
    other = sent(error)
    assert (type(other), str(other), vars(other)) == (type(error), str(error), vars(error))


ORIGINS = {  # direct_url.json (PEP 610) → what adds the extra `tune` to such an installation
    None: "pip install 'hybrid-des[tune]'",
    '{"url": "file:///a%20b", "dir_info": {"editable": true}}': "pip install -e '/a b[tune]'",
    '{"url": "file:///a", "dir_info": {}}': "pip install '/a[tune]'",
    '{"url": "file:///a/b.whl", "archive_info": {}}': "pip install 'hybrid-des[tune] @ file:///a/b.whl'",
    '{"url": "https://x.org/h.git", "vcs_info": {"vcs": "git", "commit_id": "1a"}}':
        "pip install 'hybrid-des[tune] @ git+https://x.org/h.git@1a'",
}  # fmt: skip


@pytest.mark.parametrize("origin", ORIGINS)
def test_a_hint_is_true_for_how_it_was_installed(origin, monkeypatch):
    class Installed:
        def read_text(self, name):
            assert name == "direct_url.json"
            return origin

    monkeypatch.setattr(metadata, "distribution", lambda name: Installed())
    assert installing("tune") == ORIGINS[origin]


def test_a_hint_outside_an_installation_names_the_folder(monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    assert installing("tune") == f"pip install '{ROOT}[tune]'"
