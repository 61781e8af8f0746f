"""What tells replicas apart is named, and a fold that ignored it would have been wrong."""

from dataclasses import replace

import numpy as np
import pytest
import yaml
from support.foldings import differences, run_of
from support.paths import TESTS
from support.scenarios import merged

from hybrid_des.collectives import codecs
from hybrid_des.collectives.buffer import Buffer
from hybrid_des.collectives.group import ProcessGroup
from hybrid_des.errors import DeadlockError
from hybrid_des.folding.folded_routes import FoldedRoutes
from hybrid_des.folding.folded_transport import LineageLink
from hybrid_des.folding.images import check_images
from hybrid_des.folding.refusals import FoldRefusal
from hybrid_des.folding.symmetry import Fold, FoldedAxis
from hybrid_des.layout import Layout
from hybrid_des.planning.planner import parts_of
from hybrid_des.scenario import sizes
from hybrid_des.scenario.loading import scenario_from
from hybrid_des.shortcuts import folds
from hybrid_des.shortcuts.folds import Replicas
from hybrid_des.shortcuts.run import run

GIVEN = yaml.safe_load((TESTS / "folding" / "refusals.yaml").read_text(encoding="utf-8"))
SIXTEEN, LEAVES, TIE, CASES = (GIVEN[of] for of in ("base", "leaves", "tie", "cases"))


@pytest.mark.parametrize("name", CASES)
def test_what_tells_replicas_apart_is_named(name):
    case = CASES[name]
    with pytest.raises(FoldRefusal, match=f"^fold: {case['keep']}: {case['said']}$"):
        run_of(merged(SIXTEEN, case["changes"]), case["keep"])


@pytest.mark.parametrize("name", [*CASES, "tie"])
def test_a_fold_that_ignored_it_would_be_wrong(name, monkeypatch):
    case = {"keep": 1, "changes": TIE} if name == "tie" else CASES[name]
    values = merged(SIXTEEN, case["changes"])
    whole = run_of(values, "off")
    monkeypatch.setattr(folds, "check", lambda *_: None)
    monkeypatch.setattr(Replicas, "differ", "")
    monkeypatch.setattr(LineageLink, "meet", lambda *_: None)
    monkeypatch.setattr(FoldedRoutes, "_blockwise", (False,))
    monkeypatch.setattr(FoldedRoutes, "_by_images", blindly)
    try:
        run = run_of(values, case["keep"])
    except DeadlockError:
        return  # some wait for members with another role, which are not there
    assert differences(run, whole)


def test_groups_are_asked_once_by_runs_of_the_same_parts(monkeypatch):
    asked, ask = [], folds.check_images
    monkeypatch.setattr(folds, "check_images", lambda *given, **more: (asked.extend(given[1]), ask(*given, **more)))
    scenario = scenario_from({**merged(SIXTEEN, CASES["size"]["changes"]), "fold": 8})
    parts, times = parts_of(scenario), []
    for same in (parts, parts, None):
        with pytest.raises(FoldRefusal, match="the 16 pieces of 9,601 gradients differ in size"):
            run(scenario, parts=same)
        times.append(len(asked))
    assert 0 < times[0] == times[1] < times[2]


def blindly(courses, route, sender, receiver):
    """Take links for images of each other whatever they are."""
    fold, known = courses._fold, courses.known
    found = []
    for hop, first in enumerate(route.links):
        for element in fold.elements():
            links = courses._fabric.route(fold.move(sender, element), fold.move(receiver, element)).links
            known.setdefault(links[min(hop, len(links) - 1)], (first, element))
        found.append(known[first])
    return found


def test_a_tie_that_differs_between_replicas_is_named():
    said = r"fold: 1: messages of ranks \d+ and \d+ reach link \S+ at the same time, and which comes first differs"
    with pytest.raises(FoldRefusal, match=said):
        run_of(merged(SIXTEEN, TIE), 1)


def test_a_fold_of_numerics_would_train_other_weights(monkeypatch):
    pairs = {"gradients": {"algorithm": "recursive-doubling"}, "numerics": {"layers": 2}}
    values = merged(SIXTEEN, {"cluster": {"nodes": 1}, "parallel": {"data": 4}, **pairs})
    whole = run_of(values, "off")
    assert run_of(values, "auto").run.fold is None
    monkeypatch.setattr(sizes, "FOLDED_FROM", 2)
    assert run_of(values, "auto").run.unfolded == "with `numerics` every replica trains on its own samples"
    monkeypatch.setattr(Replicas, "differ", "")
    run = run_of(values, "auto")
    assert run.run.fold is not None
    assert run.summary["loss"] != whole.summary["loss"]


def test_stages_with_the_same_groups_are_looked_at_once(monkeypatch):
    """Both stages of a pipeline rank have its members; with other sizes of buckets, a stage is looked at by itself."""
    asked, ask = [], folds.check_images
    monkeypatch.setattr(folds, "check_images", lambda *given, **more: (asked.extend(given[1]), ask(*given, **more)))
    chunks = {"schedule": {"kind": "interleaved-1f1b", "chunks": 2, "microbatches": 4}}
    scenario = scenario_from(merged(merged(SIXTEEN, {"parallel": {"pipeline": 2, "data": 8}}), chunks))
    reductions, layout = parts_of(scenario).reductions, scenario.parallel.layout
    fold, nodes = Fold(layout, [FoldedAxis("data", 4)]), folds._nodes(scenario, layout.ranks)
    assert folds._difference(fold, reductions, nodes) == ""
    assert [group.stage for group, _ in asked] == [0, 1]
    assert len(reductions.processes) == 2 * len(asked)
    processes, group = reductions.processes[-1]
    reductions.processes[-1] = processes, replace(group, buckets=[group.buckets[0]._replace(elements=9601)])
    assert "9,601 gradients differ in size" in folds._difference(fold, reductions, nodes)
    assert [group.stage for group, _ in asked[2:]] == [0, 1, 3]


@pytest.mark.parametrize("differs", range(4))
def test_a_group_that_differs_is_named_whichever_it_is(differs):
    """Members of all groups are moved together, and groups that are seated alike are asked about once."""
    layout, fp32 = Layout({"tensor": 4, "data": 4}, ("tensor", "data")), codecs.find("fp32").build()
    groups = [ProcessGroup("ring", 0, range(tensor, 16, 4), (0,) * 4) for tensor in range(4)]
    even, odd = [Buffer(9600, fp32)], [Buffer(9601, fp32)]
    fold, nodes = Fold(layout, [FoldedAxis("data", 1)]), np.arange(16)
    check_images(fold, [(group, even) for group in groups], None, nodes=nodes, groups={})
    asked = [(group, odd if number == differs else even) for number, group in enumerate(groups)]
    with pytest.raises(
        FoldRefusal, match=rf"^ranks {differs} and {differs + 4}: the 4 pieces of 9,601 gradients differ"
    ):
        check_images(fold, asked, None, nodes=nodes, groups={})


def test_groups_are_asked_about_again_where_members_share_a_node():
    """Tensor ranks 0 and 1 take the same seats in the groups of 2 and 3, but two members of the last share a node."""
    layout, fp32 = Layout({"tensor": 4, "data": 4}, ("tensor", "data")), codecs.find("fp32").build()
    groups = [ProcessGroup("double-binary-tree", 0, range(tensor, 16, 4), (0,) * 4) for tensor in range(4)]
    fold, buffers = Fold(layout, [FoldedAxis("tensor", 2)]), [Buffer(9600, fp32)]
    given = fold, [(group, buffers) for group in groups], None
    by_first = {(0, 0, group.ranks[0]): group for group in groups}
    nodes = np.arange(16)
    check_images(*given, nodes=nodes, groups=by_first)
    nodes[7] = nodes[3]
    with pytest.raises(FoldRefusal, match=r"^ranks 1 and 3: the members of double-binary-tree do not all do the same"):
        check_images(*given, nodes=nodes, groups=by_first)
