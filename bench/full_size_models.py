"""Two full-size models with random weights, one of each generation, in the published geometries.

Owns: the material of the engine's speed rows. Generation 3 is written by upstream's exporter; generation 2 by
`builder.cact`, since upstream's exporter of that generation is not published any more, with weights that let
every part move the logits. The tokenizer is the demo's, filled up to the vocabulary: the official engine of
generation 2 loads a file only if each row of its embedding has a piece.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from builder.cact.header import Header
from builder.cact.layout import TAG_83, Kind
from builder.cact.order import Slot, model_slots
from builder.cact.quantise import quantise
from builder.cact.sentencepiece_model import read_sentencepiece
from builder.cact.tokenizer import Piece, PieceType, pack_tokenizer
from builder.cact.writer import Blob, cq_blob, half_blob, raw_blob, write_container

TOKENIZER_MODEL = Path(__file__).parents[1] / "examples" / "demo" / "tokenizer.model"
VOCAB_COUNT = 8192
WEIGHT_BITS = 4
GENERATION_2 = Header(
    **{"tag": TAG_83, "tensor_count": 1, "kv_window": 256, "kv_bits": 8, "vocab_count": VOCAB_COUNT},
    **{"out_vocab_count": 0, "d_model": 512, "head_count": 8, "kv_head_count": 4, "layer_count": 27},
    **{"qk_head_dim": 64, "v_head_dim": 64, "max_seq_len": 2048, "hada_n": 512, "lane_count": 4},
    **{
        "sliding_window": 0,
        "global_mask": 0,
        "qkv_conv_taps": 0,
        "engram_slots": 8192,
        "engram_sub_dim": 128,
    },
    **{"engram_table_count": 4, "engram_conv_taps": 4, "engram_dilation": 3},
    **{"engram_seed_heads": 0, "orders": (2, 3), "sites": (2, 15), "rope_theta": 1e5},
)
"""45 M weights; the geometry that tag ...82 leaves unsaid."""
SCALE_AND_MEAN = {
    **{"d1": (0.3, 1.0), "d2": (0.3, 1.0), "d3": (0.3, 1.0), "attn_gate": (1.0, 0.0)},
    **{"taps": (0.5, 0.0), "mhc_a": (0.5, 0.5), "mhc_b": (1.0, 0.0), "final_norm": (1.0, -1.0)},
}
"""By part of a binary16 tensor's name; the norms' scales have neither."""
OTHERS = (0.3, 0.0)


def write_models(folder: Path) -> list[Path]:
    """Write both files into `folder`, or keep what is there. Needs about 2 GB."""
    folder.mkdir(parents=True, exist_ok=True)
    writers = {"generation_2.cact": write_generation_2, "generation_3.cact": write_generation_3}
    for name, write in writers.items():
        if not (folder / name).exists():
            write(folder / name)
    return [folder / name for name in writers]


def full_tokenizer() -> bytes:
    """The demo's pieces, and as many more as the vocabulary has rows; no text contains those."""
    tokenizer = read_sentencepiece(TOKENIZER_MODEL)
    more = range(len(tokenizer.pieces), VOCAB_COUNT)
    fillers = tuple(Piece(f"\ue000{number}\ue000", -1e6, PieceType.NORMAL) for number in more)
    return pack_tokenizer(replace(tokenizer, pieces=tokenizer.pieces + fillers))


def write_generation_2(path: Path) -> None:
    rng = np.random.default_rng(2)
    blobs = [_random_blob(slot, rng) for slot in model_slots(GENERATION_2)]
    path.write_bytes(write_container(GENERATION_2, [*blobs, raw_blob(full_tokenizer())]))


def _random_blob(slot: Slot, rng: np.random.Generator) -> Blob:
    name, noise = slot.name.split(".")[-1], rng.standard_normal(slot.shape, np.float32)
    if slot.kind is Kind.CQ:
        scale = {"embedding": 2 * GENERATION_2.d_model**-0.5, "tables": 1.0}.get(name, slot.shape[1] ** -0.5)
        return cq_blob(*quantise(noise * np.float32(scale), WEIGHT_BITS), WEIGHT_BITS, slot.shape[1])
    if name == "mhc_b_res":
        return half_blob(noise + 2 * np.eye(GENERATION_2.lane_count))
    scale, mean = next((shape for part, shape in SCALE_AND_MEAN.items() if part in name), OTHERS)
    return half_blob(scale * noise + mean)


def write_generation_3(path: Path) -> None:
    import jax
    import jax.numpy as jnp
    from needle.model.architecture import SimpleAttentionNetwork, TransformerConfig
    from needle.model.export import write_export

    config = TransformerConfig(dtype="float32", vocab_size=VOCAB_COUNT, max_seq_len=8192, kv_window=256)
    tokens = jnp.zeros((1, 8), jnp.int32)
    params = jax.jit(SimpleAttentionNetwork(config).init)(jax.random.PRNGKey(0), tokens)["params"]
    write_export(params, config, str(path), tokenizer=full_tokenizer())
