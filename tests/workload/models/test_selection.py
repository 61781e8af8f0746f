"""Attention to selected and to compressed keys, and residual streams: counts, messages and times."""

import csv
from collections import defaultdict
from fractions import Fraction
from statistics import median

import pytest
from support.counting import counted
from support.paths import SHARED
from support.tables import from_table

from hybrid_des import costs, load
from hybrid_des.cost_model.basis import CostBasis
from hybrid_des.cost_model.costing import layer_parts
from hybrid_des.cost_model.update import matrices_of
from hybrid_des.errors import ScenarioError
from hybrid_des.scenario.sections.optimizer import Muon
from hybrid_des.workload.models.amounts import Parameters
from hybrid_des.workload.models.catalogue import expanded, model
from hybrid_des.workload.models.kinds.registration import ModelRefusal
from hybrid_des.workload.models.operations import Attention, Gemm, Scores
from hybrid_des.workload.optimizers import Matrix

MODULES = SHARED / "models" / "sparse_modules.csv"
BASE = {"layers": 4, "hidden": 64, "heads": 4, "ffn": 128, "vocab": 96, "sequence": 64}
LATENT = {"query": 24, "key_value": 16, "nope": 8, "rope": 8, "value": 8}
INDEXER = {"heads": 2, "size": 8, "top": 16}
DENSE = {**BASE, "latent": LATENT}
SPARSE = {**DENSE, "indexer": INDEXER}
SIZES = {"size": 32, "rope": 8, "query": 16, "out_groups": 4, "out_rank": 8, "window": 8}
WINDOW = {**BASE, "mixer": "compressed", "compressed": SIZES}
WHOLE = {**BASE, "mixer": "compressed", "compressed": {**SIZES, "ratio": 8}}
CHOSEN = {**SIZES, "ratio": 4, "overlap": True, "indexer": {**INDEXER, "top": 4}}
SELECTED = {**BASE, "mixer": "compressed", "compressed": CHOSEN}


def scenario(values, **sections):
    cluster = {"gpu": "h100", "gpus_per_node": 8}
    return {"cluster": cluster, "model": values, "schedule": {"kind": "1f1b", "microbatches": 4}} | sections


def block(values):
    return model(values).layers[1]


def flop_of(values, kind):
    return sum(one.flop for one in block(values).operations if isinstance(one, kind))


def seconds(values, name, **sections):
    """Forward, input and weight seconds of an operation of a block."""
    found = load(scenario(values, **sections))
    return next(took for one, took in layer_parts(CostBasis.of(found))[1].operations if one.name == name)


def test_an_indexer_has_its_products_scores_and_kept_bytes():
    """DeepSeek-V3.2: q·n·d + h·d + 2d + h·n parameters; 2·(s/2)·n·d FLOP of scores per token."""
    dense, sparse = block(DENSE), block(SPARSE)
    products = 24 * 16 + 64 * 8 + 64 * 2
    assert sparse.parameters + Parameters(replicated=-products - 16) == dense.parameters
    assert flop_of(SPARSE, Gemm) - flop_of(DENSE, Gemm) == 2 * products
    assert flop_of(SPARSE, Scores) == 64 * 16
    assert (sparse.kept.copied, dense.kept.copied) == (2 * (16 + 8) + 4 * 16, 0)
    assert sparse.kept.total - sparse.kept.copied == dense.kept.total
    reused = {**DENSE, "indexer": {**INDEXER, "reused": True}}
    assert block(reused).parameters == dense.parameters and flop_of(reused, Scores) == 0
    assert flop_of(reused, Attention) == flop_of(SPARSE, Attention)


def test_selected_keys_have_the_absorbed_form():
    """2·K·a·(2·kv + rope) over K = top − top²/(2s) keys; where all keys are met, the plain form."""
    assert flop_of(SPARSE, Attention) == 2 * (16 - Fraction(16**2, 2 * 64)) * 4 * (2 * 16 + 8)
    for top in (64, 100):
        assert flop_of({**DENSE, "indexer": {**INDEXER, "top": top}}, Attention) == flop_of(DENSE, Attention)


@pytest.mark.parametrize(("sequence", "fewer"), [(4096, False), (12000, False), (14000, True), (65536, True)])
def test_selecting_keys_pays_for_long_samples_only(sequence, fewer):
    """A key takes 2·(2·512 + 64) FLOP per head of DeepSeek-V3.2 instead of 2·(192 + 128), so above 13,000 tokens."""
    own = {**expanded({"base": "deepseek-v3.2"}), "sequence": sequence}
    without = {key: value for key, value in own.items() if key != "indexer"}
    assert (flop_of(own, Attention) < flop_of(without, Attention)) is fewer


def test_only_the_plain_form_takes_the_rate_of_latent_attention():
    half, whole = ({"efficiency": {"latent": share}} for share in (0.5, 1))
    assert seconds(SPARSE, "attention", **half) == seconds(SPARSE, "attention", **whole)
    short = {**DENSE, "indexer": {**INDEXER, "top": 64, "reused": True}}
    assert seconds(short, "attention", **half) == seconds(DENSE, "attention", **half)
    assert seconds(short, "attention", **half)[0] == pytest.approx(2 * seconds(short, "attention", **whole)[0])


def test_scores_take_the_precision_of_other_products():
    bf16, fp8 = (
        seconds(SPARSE, "indexer scores", precision=each, efficiency={"gemm": 0.5}) for each in ("bf16", "fp8")
    )
    assert bf16 == (pytest.approx(64 * 1024 / (0.5 * 989e12)), 2 * bf16.forward, 0)
    assert bf16.forward == pytest.approx(fp8.forward * 1979 / 989)


@pytest.mark.parametrize("values", [SPARSE, WINDOW, WHOLE, SELECTED])
def test_documents_have_their_own_keys(values):
    """Documents of 16 tokens cost what samples of a model of 16 tokens cost."""
    own, short = model(values), model({**values, "sequence": 16})
    operations = [one for one in own.layers[1].operations if isinstance(one, Attention | Scores)]
    expected = sum(one.flop for one in short.layers[1].operations if isinstance(one, Attention | Scores))
    assert own.flop_of(operations, {16: 4}) == 64 * expected < own.flop_of(operations, {64: 1})
    packed = load(scenario(values, data={"lengths": {"kind": "fixed", "length": 16}}))
    alone = load(scenario({**values, "sequence": 16}))
    for name in {one.name for one in operations}:
        both = [next(took.forward for one, took in counted(each, 1).operations if one.name == name)
                for each in (packed, alone)]  # fmt: skip
        assert both[0] == pytest.approx(both[1])


def exchanged(values, axis, **parallel):
    layer = counted(load(scenario(values, parallel=parallel)), 1)
    return [[(one.does, one.size) for one in way if one.axis == axis] for way in (layer.forward, layer.backward)]


def test_tensor_ranks_gather_what_an_indexer_reads():
    """The input of the block and the vectors of queries, of 2 bytes, in the forward only."""
    added = ("all-gather", 2 * 64 * (64 + 24))
    sparse, dense = (exchanged(each, "tensor", tensor=2, sequence=True) for each in (SPARSE, DENSE))
    assert sparse == [[added, *dense[0]], dense[1]]
    assert exchanged(SPARSE, "tensor", tensor=2) == exchanged(DENSE, "tensor", tensor=2)
    reused = {**DENSE, "indexer": {**INDEXER, "reused": True}}
    assert exchanged(reused, "tensor", tensor=2, sequence=True) == dense


@pytest.mark.parametrize(
    ("values", "elements"),
    [(SPARSE, 16 + 8 + 8), (WINDOW, 32), (WHOLE, 32 + 32 // 8), (SELECTED, 32 + (32 + 8) // 4)],
)
@pytest.mark.parametrize("tensor", [1, 2])
def test_context_ranks_gather_keys_only(values, elements, tensor):
    """s·(kv + rope + d_i) elements, or those of a key and compressed ones, whatever the heads of a rank."""
    own = {"context": 2, "context_method": "all-gather", "tensor": tensor, "sequence": tensor > 1}
    size = 2 * 64 * elements
    assert exchanged(values, "context", **own) == [[("all-gather", size)], [("reduce-scatter", size)]]


def test_compressed_keys_have_their_products():
    """h·q + q + q·a·d + h·d + d + a·d·r + G·r·h + a, and compressed 2·h·S·d + R·S·d + d.

    With an indexer 4·h·d_i + 2R·d_i + d_i + q·n·d_i + h·n besides.
    """
    own = 64 * 16 + 16 + 16 * 4 * 32 + 64 * 32 + 32 + 4 * 32 * 8 + 4 * 8 * 64 + 4
    rest = 3 * 64 * 128 + 2 * 64
    more = 2 * 64 * 32 + 8 * 32 + 32
    chosen = 2 * 64 * 2 * 32 + 4 * 2 * 32 + 32 + 4 * 64 * 8 + 2 * 4 * 8 + 8 + 16 * 16 + 64 * 2
    totals = [block(each).parameters.total - rest for each in (WINDOW, WHOLE, SELECTED)]
    assert totals == [own, own + more, own + chosen]
    groups = next(one for one in block(WINDOW).operations if one.name == "groups of results")
    assert (groups.count, groups.k, groups.n) == (4, 32, 8)
    products = 64 * 16 + 16 * 4 * 32 + 64 * 32 + 4 * 32 * 8 + 4 * 8 * 64
    assert flop_of(WINDOW, Gemm) == 2 * (products + 3 * 64 * 128)


@pytest.mark.parametrize("tensor", [1, 2])
def test_muon_orthogonalises_the_groups_of_results_as_one_matrix(tensor):
    """The ranks' blocks of matrices are the weights of all products; those of the groups stand below each other."""
    gemms = [one for one in block(WINDOW).operations if isinstance(one, Gemm)]
    matrices = matrices_of(block(WINDOW), Muon(), lambda gemm: 1, tensor=tensor, of_expert=1)
    assert sum(one.whole[0] * one.whole[1] for one in matrices) == sum(one.count * one.n * one.k for one in gemms)
    assert Matrix((4 * 8, 32), (4 * 8 // tensor, 32)) in matrices


def test_compressed_keys_have_their_cores_and_scores():
    """K = w − w²/(2s), + s/(2R), or + top − top²/(2s/R) of the s/R compressed keys; values are keys."""
    near = 8 - Fraction(8**2, 2 * 64)
    for values, keys in ((WINDOW, near), (WHOLE, near + 4), (SELECTED, near + 4 - Fraction(4**2, 2 * 16))):
        assert flop_of(values, Attention) == 2 * keys * 4 * 64
    assert flop_of(SELECTED, Scores) == 2 * Fraction(64, 2 * 4) * 2 * 8 and not flop_of(WHOLE, Scores)


def test_queries_of_heads_are_normed_once_more():
    """transformers, models/deepseek_v4, q_b_norm: passes over the queries, which are kept before and after it."""
    again, plain = (block({**WINDOW, "heads": heads}) for heads in (4, 8))
    passes = next(one for one in again.operations if one.name == "head norm")
    assert (passes.forward, passes.backward) == (2 * 2 * 4 * 32, 3 * 2 * 4 * 32)
    more = plain.kept.tensor - again.kept.tensor  # of four heads: queries twice, and results
    assert more == 3 * 2 * 4 * 32


def test_products_without_converted_operands_stay_in_16_bits():
    """Megatron-LM multiplies groups of results and compressed keys outside of its contexts of few bits."""
    names = ("groups of results", "compressed keys", "indexer compressed keys", "queries up")
    wide = {**SELECTED, "quantised": False}
    both = [[seconds(each, name, precision="fp8") for name in names] for each in (SELECTED, wide)]
    assert [one == other for one, other in zip(*both, strict=True)] == [True, True, True, False]


@pytest.mark.parametrize(("values", "size"), [(SPARSE, 16 + 8), (SELECTED, 32)])
def test_an_indexer_learns_from_scores_of_selected_keys(values, size):
    """The backward has 2·K·a·d FLOP more, K of the selected keys only; not if the indexer is another layer's."""
    core = next(one for one in block(values).operations if isinstance(one, Attention))
    keys = Fraction(64, core.ratio or 1)
    assert core.taught.flop == 2 * (core.top - Fraction(core.top**2) / (2 * keys)) * 4 * size
    reused = {**DENSE, "indexer": {**INDEXER, "reused": True}}
    own, other = (seconds(each, "attention") for each in (SPARSE, reused))
    assert own.forward == other.forward and own.input > other.input
    assert all(next(one for one in block(each).operations if isinstance(one, Attention)).taught is None
               for each in (reused, WINDOW, WHOLE))  # fmt: skip


def test_gradients_of_streams_are_added_in_one_pass():
    """Megatron-LM, BroadcastTensorFused: three are read and their sum is written, for each half."""
    sums = [one for one in block({**BASE, "streams": 4}).operations if one.name == "mhc sums"]
    assert [(one.forward, one.backward) for one in sums] == [(0, 2 * 4 * 4 * 64)] * 2


def test_streams_widen_what_stages_send_and_halves_keep():
    """DeepSeek-V4: n·h·(n² + 2n) + n² + 2n + 3 parameters per half; messages of 2·n·h per token."""
    one, many = model(BASE), model({**BASE, "streams": 4})
    assert many.layers[1].parameters.total - one.layers[1].parameters.total == 2 * (256 * 24 + 27)
    assert many.layers[-1].parameters.total - one.layers[-1].parameters.total == 4 * 64 * 4 + 4 + 1
    assert many.layers[1].kept.sequence - one.layers[1].kept.sequence == 2 * 2 * 256
    both = [scenario(each, parallel={"pipeline": 4}) for each in (BASE, {**BASE, "streams": 4})]
    sent = [costs(each)["message_bytes"].tolist()[:3] for each in both]
    assert sent == [[2 * 64 * 64] * 3, [4 * 2 * 64 * 64] * 3]
    full = [counted(load({**each, "recompute": "full"}), 1).kept for each in both]
    assert full == [2 * 64 * 64, 4 * 2 * 64 * 64]
    assert exchanged({**BASE, "streams": 4}, "tensor", tensor=2) == exchanged(BASE, "tensor", tensor=2)
    again = load({**both[1], "recompute": ["mhc"]})
    assert counted(again, 1).kept == 64 * one.layers[1].kept.total
    with pytest.raises(ScenarioError, match="recompute: this model has no mhc"):
        load({**both[0], "recompute": ["mhc"]})


def test_streams_take_rates_of_their_own():
    """Pre reads n·h and writes h elements, post reads (n + 1)·h and writes n·h; a share of the H100's 3.35 TB/s."""
    values = {**BASE, "streams": 4}
    rates = {"efficiency": {"mhc_pre": 0.25, "mhc_post": 0.5}}
    pre, post = (seconds(values, name, **rates) for name in ("mhc pre", "mhc post"))
    assert pre == (pytest.approx(64 * 2 * 5 * 64 / (0.25 * 3.35e12)), pytest.approx(pre.forward * 9 / 5), 0)
    assert post == (pytest.approx(64 * 2 * 9 * 64 / (0.5 * 3.35e12)), pytest.approx(post.forward * 14 / 9), 0)
    with pytest.raises(ScenarioError, match=r"efficiency\.mhc_post: is required: what its kernel reaches"):
        load(scenario(values, cluster={"gpu": "a100-80gb"}, efficiency={"mhc_pre": 0.25}))


@from_table
def test_selections_that_do_not_fit_are_refused(changed, said):
    with pytest.raises(ModelRefusal) as error:
        model({**BASE, **changed})
    assert str(error.value) == said


@from_table
def test_ranks_that_cannot_share_a_selection_are_refused(changed, parallel, said):
    with pytest.raises(ScenarioError) as error:
        load(scenario({**BASE, **changed}, cluster={"gpu": "h100", "nodes": 4}, parallel=parallel))
    assert said in str(error.value)


NAMES = {"DeepSeek-V3.2": "deepseek-v3.2", "GLM-5": "glm-5", "DeepSeek-V4-Flash-FP8": "deepseek-v4-flash",
         "DeepSeek-V4-Pro": "deepseek-v4-pro", "DeepSeek-V4-Pro-FP8": "deepseek-v4-pro"}  # fmt: skip
KINDS = {"dsa": "moe", "dsv4_csa": "c", "dsv4_hca": "h", "dsv4_flash_csa": "c", "dsv4_flash_hca": "h"}


@pytest.mark.slow
@pytest.mark.skipif(not MODULES.is_file(), reason="the measured modules are not part of the project")
def test_forwards_of_sparse_attention_take_as_long_as_measured():
    """Whole modules of NVIDIA's aiconfigurator in 8 bits; the widest of published medians of an estimate is 28 %."""
    errors = defaultdict(list)
    with MODULES.open(newline="") as file:
        for row in csv.DictReader(file):
            own = {**expanded({"base": NAMES[row["model"]]}), "sequence": int(row["sequence"])}
            kind = {**own["kinds"][KINDS[row["module"]]], "experts": "none", "ffn": "none"}
            values = {key: each for key, each in own.items() if key not in ("streams", "predictions", "experts")}
            values |= {"layers": 1, "kinds": {"a": kind}, "pattern": "a", "ffn": 1}
            precision = "fp8-blockwise" if row["gpu"] == "h200" else "mxfp8"
            found = load(scenario(values, cluster={"gpu": row["gpu"], "gpus_per_node": 1}, precision=precision))
            operations = layer_parts(CostBasis.of(found))[1].operations
            apart = ("norms", "head norm")  # of queries, with their rotation: one pass in these modules
            took = sum(each.forward for one, each in operations if not one.name.startswith(apart))
            errors[row["module"], row["model"]].append(1e3 * took / float(row["measured_ms"]) - 1)
    medians = {key: median(each) for key, each in errors.items()}
    assert max(map(abs, medians.values())) < 0.285, medians
    assert sorted(map(abs, medians.values()))[len(medians) // 2] < 0.15
