"""From a checkpoint's configuration to a container's header.

Owns: head sizes, engram geometry and the KV window that upstream derives. Does not know: tensors.
Source: `needle.model.export._geometry`, `needle.model.architecture.kv_budget_window` of cactus-needle 3.2.8.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from builder.cact import layout
from builder.cact.header import Header
from builder.family.checkpoint import CheckpointConfig

ENGRAM_SUB_DIM = 128
"""Width of an engram row that upstream aims at when it chooses the number of tables."""
ENGRAM_CONV_TAPS = 4
KV_BUDGET_BYTES = 11 * 1024 * 1024 + 512 * 1024
KV_GROUP = 32
"""Positions and values of the cache are counted in groups of this size."""
KV_WINDOW_MIN = 160


def header_of(
    config: CheckpointConfig, layers: Sequence[int], *, kv_window: int | None, kv_bits: int | None
) -> Header:
    """The header of the model with the blocks `layers`; `tensor_count` is for the writer to set."""
    whole = len(layers) == config.num_layers
    place = {layer: index for index, layer in enumerate(layers)}
    # Upstream keeps global layers beyond the depth in an uncut model; readers ignore them.
    global_layers = [
        layer if whole else place[layer] for layer in config.global_layers if whole or layer in place
    ]
    sites = tuple(
        layer if whole else place[layer] for layer in config.engram_layers if whole or layer in place
    )
    heads = config.engram_heads or max(1, config.d_model // (len(config.engram_orders) * ENGRAM_SUB_DIM))
    header = Header(
        tag=layout.TAG_84,
        tensor_count=0,
        kv_window=0,
        kv_bits=kv_bits or config.kv_bits or 8,
        vocab_count=config.vocab_size,
        out_vocab_count=config.out_vocab,
        d_model=config.d_model,
        head_count=config.num_heads,
        kv_head_count=config.num_kv_heads,
        layer_count=len(layers),
        qk_head_dim=config.qk_head_dim or config.d_model // config.num_heads,
        v_head_dim=config.v_head_dim or config.d_model // config.num_heads,
        max_seq_len=config.max_seq_len,
        hada_n=1 << (config.d_model - 1).bit_length(),
        lane_count=config.mhc_lanes,
        sliding_window=config.sliding_window,
        global_mask=sum(1 << layer for layer in set(global_layers)),
        qkv_conv_taps=config.qkv_conv_taps,
        engram_slots=config.engram_slots,
        engram_sub_dim=config.d_model // (len(config.engram_orders) * heads),
        engram_table_count=len(config.engram_orders) * heads,
        engram_conv_taps=ENGRAM_CONV_TAPS,
        engram_dilation=max(config.engram_orders),
        engram_seed_heads=config.engram_seed_heads,
        orders=config.engram_orders,
        sites=sites,
        rope_theta=config.rope_theta,
    )
    if kv_window is None:
        kv_window = kv_budget_window(header, len(global_layers))
        if config.kv_window:
            kv_window = min(kv_window, config.kv_window)
    return dataclasses.replace(header, kv_window=kv_window)


def kv_budget_window(header: Header, global_count: int) -> int:
    """How many positions of int8 keys, values and engram rows upstream's budget of 11.5 MiB holds."""
    per_layer = _cache_bytes(header.kv_head_count * header.qk_head_dim)
    per_layer += _cache_bytes(header.kv_head_count * header.v_head_dim)
    engrams = len(header.sites) * _cache_bytes(header.d_model)
    if not header.sliding_window:
        window = KV_BUDGET_BYTES // (header.layer_count * per_layer + engrams) // KV_GROUP * KV_GROUP
        return max(KV_WINDOW_MIN, min(window, header.max_seq_len))
    local = min(header.sliding_window, header.max_seq_len)
    fixed = ((header.layer_count - global_count) * per_layer + engrams) * local
    if not global_count:
        return header.max_seq_len if fixed <= KV_BUDGET_BYTES else max(KV_WINDOW_MIN, local)
    window = (KV_BUDGET_BYTES - fixed) // (global_count * per_layer) // KV_GROUP * KV_GROUP
    return max(KV_WINDOW_MIN, min(window, header.max_seq_len))


def _cache_bytes(values: int) -> int:
    """One position's int8 values with a four-byte scale per group."""
    return values + values // KV_GROUP * 4
