"""The canonical order of tensors: which record comes next, its name, kind and shape.

Owns: rule 7 of docs/formats/cact.md. The directory stores no names; a tensor is what its place says.
Does not know: the bytes of tensors, files. The head manifest decides what follows it; it is read through
`Directory`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from builder.cact.header import Header
from builder.cact.layout import HEAD_DIMENSION_MAX, Kind

CONDITION_COUNT = 8
"""Conditions of the generation-3 MLP: columns of `cond_v`, rows of `cond_u`."""
HEAD_NAMES = {2: {1: "contrastive", 2: "confidence"}, 3: {1: "embedding", 2: "confidence", 3: "router"}}
"""Head codes of the manifest, by generation."""
HEAD_OUTPUTS = {"confidence": 1, "router": 3}
"""Outputs of a head where the format fixes them."""
CALIBRATION_COUNT = 3


@dataclass(frozen=True)
class Slot:
    """A place in the order and what must stand there."""

    name: str
    kind: Kind
    shape: tuple[int, ...]


class Directory(Protocol):
    """The records, as far as the order has to look ahead of itself."""

    def kind(self, index: int) -> int:
        """The dtype byte of a record; 0 past the end."""

    def shape(self, index: int) -> tuple[int, ...]:
        """All four shape words of a record; zeros past the end."""

    def manifest(self, index: int) -> tuple[int, ...]:
        """The head codes in the (already checked) record `index`."""


def canonical_order(header: Header, directory: Directory) -> Iterator[Slot]:
    """Every slot of the file in order; one may be taken only when all before it were checked."""
    index = 0
    for slot in model_slots(header):
        yield slot
        index += 1
    if directory.kind(index) in (Kind.FP16, Kind.CQ):
        count = min(max(directory.shape(index)[0], 1), len(HEAD_NAMES[header.generation]))
        yield Slot("heads.manifest", Kind.FP16, (count,))
        codes = directory.manifest(index)
        index += 1
        for code in codes:
            for slot in _head_slots(header, HEAD_NAMES[header.generation][code], directory, index):
                yield slot
                index += 1
    if directory.kind(index):
        yield Slot("tokenizer", Kind.RAW, ())


def model_slots(header: Header) -> Iterator[Slot]:
    """The slots that follow from the header alone: embedding to final_norm."""
    d = header.d_model
    yield Slot("embedding", Kind.CQ, (header.vocab_count, d))
    for layer in range(header.layer_count):
        for slot in _layer_slots(header):
            yield Slot(f"layers.{layer}.{slot.name}", slot.kind, slot.shape)
    yield from _hyper_connection_slots(header)
    if header.generation == 3:
        yield Slot("hada_p1", Kind.FP32, (header.hada_n,))
        yield Slot("hada_p2", Kind.FP32, (header.hada_n,))
    columns = header.engram_table_count * header.engram_sub_dim
    for site in range(len(header.sites)):
        rows = header.engram_table_count * header.engram_slots
        yield Slot(f"engrams.{site}.tables", Kind.CQ, (rows, header.engram_sub_dim))
        yield Slot(f"engrams.{site}.key_proj", Kind.CQ, (d, columns))
        yield Slot(f"engrams.{site}.value_proj", Kind.CQ, (d, columns))
        yield Slot(f"engrams.{site}.taps", Kind.FP16, (header.engram_conv_taps, d))
    yield Slot("final_norm", Kind.FP16, (d,))


def hada_blocks(hada_n: int) -> tuple[int, int]:
    """The Monarch MLP's block sizes (a, b) with a * b = hada_n; a is the smaller where they differ."""
    a = 1 << ((hada_n - 1).bit_length() // 2)
    return a, hada_n // a


def _layer_slots(header: Header) -> Iterator[Slot]:
    d = header.d_model
    q = header.head_count * header.qk_head_dim
    k = header.kv_head_count * header.qk_head_dim
    v = header.kv_head_count * header.v_head_dim
    out = header.head_count * header.v_head_dim
    yield Slot("norm_in", Kind.FP16, (d,))
    yield Slot("q_proj", Kind.CQ, (q, d))
    yield Slot("k_proj", Kind.CQ, (k, d))
    yield Slot("v_proj", Kind.CQ, (v, d))
    if header.qkv_conv_taps:
        yield Slot("q_taps", Kind.FP16, (header.qkv_conv_taps, q))
        yield Slot("k_taps", Kind.FP16, (header.qkv_conv_taps, k))
        yield Slot("v_taps", Kind.FP16, (header.qkv_conv_taps, v))
    yield Slot("q_norm", Kind.FP16, (header.qk_head_dim,))
    yield Slot("k_norm", Kind.FP16, (header.qk_head_dim,))
    yield Slot("gate_proj", Kind.CQ, (out, d))
    yield Slot("out_proj", Kind.CQ, (d, out))
    yield Slot("post_attn_norm", Kind.FP16, (d,))
    yield Slot("attn_gate", Kind.FP16, (1,))
    yield Slot("pre_hada_norm", Kind.FP16, (d,))
    yield from _mlp_slots(header)


def _mlp_slots(header: Header) -> Iterator[Slot]:
    n = header.hada_n
    if header.generation == 2:
        for name in ("d1", "d2", "d3"):
            yield Slot(name, Kind.FP16, (n,))
        return
    for name in ("d1", "d2", "b2", "d3", "d4"):
        yield Slot(name, Kind.FP16, (n,))
    a, b = hada_blocks(n)
    for step in (1, 2, 3):
        yield Slot(f"w{step}a", Kind.FP16, (a, a))
        yield Slot(f"w{step}b", Kind.FP16, (b, b))
    yield Slot("cond_v", Kind.FP16, (header.d_model, CONDITION_COUNT))
    yield Slot("cond_u", Kind.FP16, (CONDITION_COUNT, n))


def _hyper_connection_slots(header: Header) -> Iterator[Slot]:
    layers, lanes = header.layer_count, header.lane_count
    for name in ("mhc_a_pre", "mhc_a_post", "mhc_a_res"):
        yield Slot(name, Kind.FP16, (layers,))
    for name in ("mhc_b_pre", "mhc_b_post"):
        yield Slot(name, Kind.FP16, (layers, lanes))
    yield Slot("mhc_b_res", Kind.FP16, (layers, lanes, lanes))
    columns = lanes * header.d_model
    for name in ("mhc_phi_pre", "mhc_phi_post"):
        yield Slot(name, Kind.CQ, (layers * lanes, columns))
    yield Slot("mhc_phi_res", Kind.CQ, (layers * lanes * lanes, columns))


def _head_slots(header: Header, head: str, directory: Directory, index: int) -> Iterator[Slot]:
    """A head's slots. Probe, query and output counts come from the records; everything else must fit them."""
    d, rows = header.d_model, header.layer_count + 1
    name = f"heads.{head}"
    if header.generation == 2:
        probes = _free(directory.shape(index)[0])
        outputs = HEAD_OUTPUTS.get(head) or _free(directory.shape(index + 1)[0])
        yield Slot(f"{name}.probes", Kind.FP16, (probes, d))
        yield Slot(f"{name}.proj", Kind.FP16, (outputs, probes * d))
        yield Slot(f"{name}.bias", Kind.FP16, (outputs,))
        return
    packed = directory.kind(index) == Kind.CQ
    matrix = Kind.CQ if packed else Kind.FP16
    probes = _free(directory.shape(index)[0] // rows if packed else directory.shape(index)[1])
    queries = _free(directory.shape(index + 2)[0])
    outputs = HEAD_OUTPUTS.get(head) or _free(directory.shape(index + 4)[0])
    yield Slot(f"{name}.probes", matrix, (rows * probes, d) if packed else (rows, probes, d))
    yield Slot(f"{name}.gain", Kind.FP16, (rows, probes))
    yield Slot(f"{name}.query", matrix, (queries, d))
    yield Slot(f"{name}.row_bias", Kind.FP16, (queries, rows, probes))
    yield Slot(f"{name}.proj", matrix, (outputs, queries * d))
    yield Slot(f"{name}.bias", Kind.FP16, (outputs,))
    if head == "router":
        yield Slot(f"{name}.calibration", Kind.FP16, (CALIBRATION_COUNT,))


def _free(size: int) -> int:
    """A size that the record decides, held within the limit (a size beyond it then fails the shape rule)."""
    return min(max(size, 1), HEAD_DIMENSION_MAX)
