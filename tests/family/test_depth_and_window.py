"""The depth ladder and the KV window are upstream's."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from needle.model import architecture

from builder.cact.ladder import bisection_order
from builder.cact.reader import read_container
from builder.errors import FamilyError
from builder.family.checkpoint import Checkpoint, CheckpointConfig
from builder.family.geometry import header_of
from builder.family.ladder import kept_layers


def test_the_bisection_order_is_upstreams_at_every_depth():
    for count in range(1, 65):
        assert bisection_order(count) == architecture.ladder_order(count)


@given(
    st.integers(2, 24).flatmap(
        lambda count: st.tuples(st.just(count), st.integers(2, count), st.permutations(range(count)))
    )
)
@settings(deadline=None, max_examples=50)
def test_the_kept_blocks_are_upstreams(drawn):
    count, depth, order = drawn
    for ladder in ((), tuple(order)):
        config = CheckpointConfig(num_layers=count, ladder_order=ladder)
        theirs = architecture.TransformerConfig(num_layers=count, ladder_order=ladder)
        ours = kept_layers(Checkpoint(Path("c"), config, {}), depth)
        assert ours == architecture.ladder_layer_indices(theirs, depth)


@pytest.mark.parametrize(("depth", "order"), [(7, ()), (3, (0, 0, 1, 2, 3, 4))])
def test_an_impossible_depth_is_refused(depth, order):
    config = CheckpointConfig(num_layers=6, ladder_order=order)
    with pytest.raises(FamilyError, match=r"layers is 7|ladder_order"):
        kept_layers(Checkpoint(Path("c"), config, {}), depth)


@pytest.mark.slow
@given(
    st.fixed_dictionaries(
        {
            "d_model": st.sampled_from([64, 256, 768]),
            "num_kv_heads": st.sampled_from([1, 2, 4, 12]),
            "num_heads": st.just(12),
            "num_layers": st.integers(1, 24),
            "qk_head_dim": st.sampled_from([0, 32, 48]),
            "v_head_dim": st.sampled_from([0, 64, 80]),
            "sliding_window": st.sampled_from([0, 128, 1024, 100_000]),
            "max_seq_len": st.sampled_from([100, 2048, 8192, 131072]),
            "kv_window": st.sampled_from([0, 17, 256, 100_000]),
            "engram_layers": st.sampled_from([(), (0,), (0, 3, 7)]),
            "global_layers": st.sampled_from([(), (0,), (0, 2, 5)]),
        }
    )
)
@settings(deadline=None, max_examples=200)
def test_the_kv_window_is_upstreams(fields):
    config = CheckpointConfig(**fields)
    header = header_of(config, range(config.num_layers), kv_window=None, kv_bits=None)
    expected = architecture.effective_kv_window(architecture.TransformerConfig(**fields))
    assert header.kv_window == expected


def test_the_window_and_width_of_the_cache_can_be_set(upstream_files, export):
    header = read_container(export(upstream_files.checkpoint, layers=2, kv_window=77, kv_bits=4)).header
    assert (header.kv_window, header.kv_bits) == (77, 4)
