"""Networks on images: convolutions as products, and shapes that do not fit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tables import from_table

from hybrid_des.errors import UsageError
from hybrid_des.workload.models.catalogue import model
from hybrid_des.workload.models.kinds.registration import ModelRefusal, make_model
from hybrid_des.workload.models.operations import Gemm


def products(layer):
    return [one for one in layer.operations if isinstance(one, Gemm)]


def test_a_bottleneck_strides_in_its_middle():
    """The first block of 128 channels in ResNet-50: 56 → 28 pixels a side, 256 → 512 channels."""
    layer = next(layer for layer in model("resnet-50").layers if layer.name == "bottleneck 2.1")
    shapes = [(one.rows, one.n, one.k) for one in products(layer)]
    assert shapes == [(56**2, 128, 256), (28**2, 128, 9 * 128), (28**2, 512, 128), (28**2, 512, 256)]
    assert [one.reads for one in products(layer)] == [256 * 56**2, 128 * 56**2, 128 * 28**2, 256 * 28**2]
    assert layer.output == 2 * 512 * 28**2


def test_a_bottleneck_keeps_inputs_of_convolutions_and_norms():
    layer = next(layer for layer in model("resnet-50").layers if layer.name == "bottleneck 2.2")
    narrow, wide = 128 * 28**2, 512 * 28**2
    assert layer.kept.total == 2 * ((wide + narrow) + 2 * narrow + (narrow + wide))


def test_a_convolution_reads_its_image_once():
    first = products(model("vgg-16").layers[0])[0]
    assert (first.rows, first.n, first.k, first.reads) == (224**2, 64, 27, 3 * 224**2)


@given(st.lists(st.integers(1, 3), min_size=1, max_size=4))
def test_residual_networks_are_the_sum_of_their_layers(blocks):
    own = make_model("resnet", {"blocks": blocks})
    assert len(own.layers) == sum(blocks) + 2
    assert own.flop == 2 * sum(one.rows * one.n * one.k for layer in own.layers for one in products(layer))
    weights = sum(one.n * one.k for layer in own.layers for one in products(layer))
    norms = sum(2 * one.n for layer in own.layers[:-1] for one in products(layer))
    assert own.parameters == weights + norms + 1000


def test_a_patch_is_a_token():
    own = model("vit-b-16")
    assert own.tokens == 1 + 14**2
    assert products(own.layers[0])[0].flop * own.tokens == 2 * 14**2 * 768 * 768
    assert not any(layer.parameters.tied for layer in own.layers)


@from_table
def test_shapes_that_do_not_fit_are_refused(values, said):
    with pytest.raises(ModelRefusal) as error:
        model(values)
    assert str(error.value) == said


@from_table
def test_a_list_of_blocks_is_checked(blocks, said):
    with pytest.raises(UsageError) as error:
        make_model("resnet", {"blocks": blocks})
    assert str(error.value) == said
