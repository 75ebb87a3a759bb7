"""Small containers of every tag with random contents, and the golden files of this room.

`python -m tests.cact.samples` writes the golden files again (tests/golden/README.md).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from builder.cact import layout
from builder.cact.codes import Codes, Halves
from builder.cact.header import Header
from builder.cact.layout import GROUP, Kind
from builder.cact.order import Slot, model_slots
from builder.cact.writer import Blob, cq_blob, half_blob, raw_blob, single_blob, write_container

GOLDEN = Path(__file__).parents[1] / "golden"

TINY_HEADER = Header(
    tag=layout.TAG_84,
    tensor_count=0,
    kv_window=32,
    kv_bits=8,
    vocab_count=24,
    out_vocab_count=22,
    d_model=8,
    head_count=2,
    kv_head_count=1,
    layer_count=2,
    qk_head_dim=2,
    v_head_dim=4,
    max_seq_len=64,
    hada_n=8,
    lane_count=2,
    sliding_window=16,
    global_mask=0b10,
    qkv_conv_taps=3,
    engram_slots=5,
    engram_sub_dim=4,
    engram_table_count=2,
    engram_conv_taps=4,
    engram_dilation=3,
    engram_seed_heads=0,
    orders=(2, 3),
    sites=(1,),
    rope_theta=10000.0,
)
GEN_2 = {"sliding_window": 0, "global_mask": 0, "qkv_conv_taps": 0, "out_vocab_count": 0}
TINY_83_HEADER = Header(
    **(vars(TINY_HEADER) | GEN_2 | {"tag": layout.TAG_83, "qk_head_dim": 4, "v_head_dim": 4})
)
PUBLISHED_82_HEADER = Header(
    tag=layout.TAG_82,
    tensor_count=0,
    kv_window=256,
    kv_bits=8,
    **{"vocab_count": 8192, "out_vocab_count": 0, "d_model": 512, "head_count": 8, "kv_head_count": 4},
    **{"layer_count": 27, "qk_head_dim": 64, "v_head_dim": 64, "max_seq_len": 2048, "hada_n": 512},
    **{"lane_count": 4, "sliding_window": 0, "global_mask": 0, "qkv_conv_taps": 0, "engram_slots": 8192},
    **{"engram_sub_dim": 128, "engram_table_count": 4, "engram_conv_taps": 4, "engram_dilation": 3},
    **{"engram_seed_heads": 0, "orders": (2, 3), "sites": (2, 15), "rope_theta": 1e5},
)
"""The published generation-2 model, which tag 82 bakes in."""

TINY_PIECES = (
    *(("<pad>", 2), ("</s>", 2), ("<s>", 2), ("<unk>", 1), ("<|im_start|>", 3), ("<|im_end|>", 3)),
    *(("ab", 0), ("a", 0), ("b", 0), ("é", 0), ("▁", 0), ("▁a", 0)),
)
"""(text, type) of a tokenizer without byte fallback."""


def tiny_tokenizer() -> bytes:
    """The blob of `TINY_PIECES`, packed by hand; scores fall with the id."""
    blob = struct.pack("<5IBBH", len(TINY_PIECES), 0, 1, 2, 3, 0, 0, 0)
    for index, (text, kind) in enumerate(TINY_PIECES):
        utf8 = text.encode()
        blob += struct.pack("<fBH", float(-index), kind, len(utf8)) + utf8
    return blob


def random_codes(rng: np.random.Generator, rows: int, columns: int, bits: int) -> tuple[Codes, Halves]:
    """Codes of a width and positive norms, for (rows, columns) weights."""
    width = layout.padded(columns)
    allowed = [0, 1, 3] if bits == layout.TERNARY_BITS else range(1 << bits)
    codes = rng.choice(np.array(allowed, np.uint8), (rows, width))
    norms = rng.uniform(0.05, 2.0, (rows, width // GROUP)).astype(np.float16)
    return codes, norms


def random_blob(rng: np.random.Generator, slot: Slot, bits: int) -> Blob:
    """Contents that the rules allow in this slot."""
    if slot.kind is Kind.CQ:
        return cq_blob(*random_codes(rng, *slot.shape, bits), bits, slot.shape[1])
    if slot.kind is Kind.FP32:
        return single_blob(rng.permutation(slot.shape[0]))
    return half_blob(rng.standard_normal(slot.shape))


def head_slots(header: Header, codes: tuple[int, ...]) -> Iterator[tuple[Kind, tuple[int, ...]]]:
    """(kind, shape) of each head tensor, written down here a second time and without the reader's order."""
    d, rows, probes, queries = header.d_model, header.layer_count + 1, 2, 3
    for code in codes:
        if header.generation == 2:
            outputs = {1: 6, 2: 1}[code]
            yield from [(Kind.FP16, (probes, d)), (Kind.FP16, (outputs, probes * d)), (Kind.FP16, (outputs,))]
            continue
        outputs = {1: 6, 2: 1, 3: 3}[code]
        yield Kind.CQ, (rows * probes, d)
        yield Kind.FP16, (rows, probes)
        yield Kind.CQ, (queries, d)
        yield Kind.FP16, (queries, rows, probes)
        yield Kind.CQ, (outputs, queries * d)
        yield Kind.FP16, (outputs,)
        if code == 3:
            yield Kind.FP16, (3,)


def random_container(
    header: Header = TINY_HEADER,
    *,
    seed: int = 0,
    bits: Callable[[str], int] = lambda name: 4,
    heads: tuple[int, ...] = (),
    tokenizer: bytes | None = None,
) -> bytes:
    """A valid file; `bits(name)` is each CQ tensor's width, `heads` are codes of the manifest."""
    rng = np.random.default_rng(seed)
    blobs = [random_blob(rng, slot, bits(slot.name)) for slot in model_slots(header)]
    if heads:
        blobs.append(half_blob(heads))
    for kind, shape in head_slots(header, heads):
        blobs.append(random_blob(rng, Slot("head", kind, shape), bits("heads")))
    if tokenizer is not None:
        blobs.append(raw_blob(tokenizer))
    return write_container(header, blobs)


def every_width(name: str) -> int:
    """A width for each tensor such that all five occur in a tiny file."""
    return (1, 2, 3, 4, 5)[sum(name.encode()) % 5]


def published_width(name: str) -> int:
    """The published generation-3 archive's map: 4 bits for embedding, hyper-connections and heads, else 2."""
    return 4 if name.startswith(("embedding", "mhc_", "heads")) else 2


def upstream_tiny(path: Path) -> Path:
    """The geometry of `TINY_HEADER` with random weights and all heads, written by upstream's exporter."""
    os.environ |= {
        "NEEDLE_TELEMETRY": "0",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "JAX_PLATFORMS": "cpu",
    }
    from needle.model.architecture import TransformerConfig
    from needle.model.export import write_export

    from tests.family.upstream import random_params

    config = TransformerConfig(
        **{
            "vocab_size": 24,
            "out_vocab": 22,
            "d_model": 8,
            "num_heads": 2,
            "num_kv_heads": 1,
            "num_layers": 2,
        },
        **{"qk_head_dim": 2, "v_head_dim": 4, "max_seq_len": 64, "mhc_lanes": 2, "sliding_window": 16},
        **{"global_layers": (1,), "engram_slots": 5, "engram_layers": (1,), "rope_theta": 10000.0},
        **{"embedding_dim": 4, "dtype": "float32"},
    )
    write_export(random_params(config, seed=0), config, str(path), tokenizer=tiny_tokenizer(), kv_window=32)
    return path


def golden_files() -> dict[str, Callable[[], bytes]]:
    """File name -> maker of the files that are not upstream's."""
    tokenizer = tiny_tokenizer()
    return {
        "tiny83.cact": lambda: random_container(TINY_83_HEADER, heads=(1, 2), tokenizer=tokenizer),
        "tiny84_widths.cact": lambda: random_container(bits=every_width, heads=(2,), tokenizer=tokenizer),
    }


if __name__ == "__main__":
    upstream_tiny(GOLDEN / "tiny84.cact")
    for name, make in golden_files().items():
        (GOLDEN / name).write_bytes(make())
