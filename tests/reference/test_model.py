from __future__ import annotations

import copy
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.errors import UsageError
from builder.reference.heads import open_head
from builder.reference.model import NeedleModel

LENGTH = 60
"""Longer than the sliding window (24) and than every other memory of the model."""


@pytest.fixture(scope="module")
def network(random_container):
    return NeedleModel(random_container)


@pytest.fixture(scope="module")
def ids():
    return torch.randint(1, 1024, (1, LENGTH), generator=torch.Generator().manual_seed(3))


@pytest.fixture(scope="module")
def full(network, ids):
    with torch.inference_mode():
        return network(ids)


@pytest.mark.slow
@settings(deadline=None, max_examples=10)
@given(st.lists(st.integers(1, LENGTH - 1), max_size=5))
def test_tokens_that_come_in_parts_give_the_logits_of_the_whole(network, ids, full, cuts):
    bounds = [0, *sorted(set(cuts)), LENGTH]
    past, rows = network.empty_past(), []
    with torch.inference_mode():
        for start, stop in pairwise(bounds):
            streams, past = network.extend(ids[:, start:stop], past)
            rows.append(network.readout(streams))
    torch.testing.assert_close(torch.cat(rows, dim=1), full, rtol=0, atol=2e-5)
    assert past.position == LENGTH


def test_a_later_token_does_not_change_earlier_logits(network, ids, full):
    changed = ids.clone()
    changed[0, -1] = 5
    with torch.inference_mode():
        torch.testing.assert_close(network(changed)[:, :-1], full[:, :-1], rtol=0, atol=0)


def test_an_old_memory_can_be_continued_again(network, ids, full):
    with torch.inference_mode():
        _, past = network.extend(ids[:, :40], network.empty_past())
        network.extend(ids[:, 5:25], past)
        streams, _ = network.extend(ids[:, 40:], past)
        torch.testing.assert_close(network.readout(streams), full[:, 40:], rtol=0, atol=2e-5)


def test_sequences_of_a_batch_do_not_disturb_each_other(network, ids, full):
    with torch.inference_mode():
        both = network(torch.cat([ids.flip(1), ids]))
    torch.testing.assert_close(both[1:], full, rtol=0, atol=2e-5)


def test_an_mlp_can_be_swapped_and_only_its_own_output_counts(network, ids, full):
    class Nothing(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert x.shape == (1, LENGTH, network.header.d_model)
            return torch.zeros_like(x)

    changed = copy.deepcopy(network)
    changed.layers[2].mlp = Nothing()
    silenced = copy.deepcopy(network)
    silenced.layers[2].mlp.d4.data.zero_()
    with torch.inference_mode():
        torch.testing.assert_close(changed(ids), silenced(ids), rtol=0, atol=0)
        assert not torch.allclose(changed(ids), full, atol=1e-2)


def test_gradients_reach_every_parameter(network):
    trained = copy.deepcopy(network)
    trained(torch.arange(1, 40)[None]).square().mean().backward()
    dead = [name for name, parameter in trained.named_parameters() if not parameter.grad.abs().sum() > 0]
    assert dead == []


def test_a_head_that_is_not_there_is_refused_with_those_that_are(random_container):
    with pytest.raises(UsageError, match="heads: embedding, confidence, router"):
        open_head(random_container, "contrastive")
