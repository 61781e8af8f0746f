"""Published models, each from a config.json of its own: parameters as published, or refused by the setting."""

import pytest
from support import published_models
from support.published_models import MODELS, READ, REFUSED, actives, counted, imported

from hybrid_des.errors import UsageError


@pytest.mark.parametrize("name", READ)
def test_parameters_are_those_that_were_published(name):
    assert counted(name).parameters == pytest.approx(MODELS[name]["total"], rel=0.005)


@pytest.mark.parametrize("name", [name for name in READ if "counted" in MODELS[name]])
def test_a_count_that_is_off_has_its_reason_listed(name):
    one = imported(name)
    listed = [*one.unread, *(line for line in one.assumed if line.startswith("model.bias"))]
    assert counted(name).parameters == MODELS[name]["total"] or listed


@pytest.mark.parametrize("name", [name for name in READ if "active" in MODELS[name]])
def test_a_token_passes_as_many_parameters_as_published(name):
    """Publishers round up or down, and leave out the matrices at both ends, or one of them."""
    stated = MODELS[name]["active"]
    digits = len(str(stated).partition(".")[2])
    assert any(abs(one / 10**9 - stated) < 10**-digits for one in actives(counted(name)))


@pytest.mark.parametrize("name", REFUSED)
def test_layers_that_cannot_be_described_are_refused_by_their_setting(name):
    with pytest.raises(UsageError) as caught:
        imported(name)
    assert f"{MODELS[name]['refused']}: " in str(caught.value)


def test_families_of_published_models_are_known():
    unknown = [name for name in READ if any("as in Llama" in line for line in imported(name).assumed)]
    assert unknown == []


def test_the_page_lists_every_model_as_it_is_read():
    told = "run: PYTHONPATH=tests python -m support.published_models"
    assert published_models.PAGE.read_text(encoding="utf-8") == published_models.page(), told
