"""The header of a `.cact` file: words in, a `Header` out, and back.

Owns: rules 1 to 4 of docs/formats/cact.md (tag, length, word limits, relations between words).
Does not know: the directory, tensors, files on disk.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from builder.cact import layout
from builder.cact.rules import broken, cut_off
from builder.errors import ContainerError


@dataclass(frozen=True)
class Header:
    """What the header says, in one vocabulary; what a tag cannot say has the value that means "off"."""

    tag: int
    tensor_count: int
    kv_window: int
    kv_bits: int
    vocab_count: int
    out_vocab_count: int
    """Rows of the embedding that get a logit, as stored; 0 means all (see `logit_count`)."""
    d_model: int
    head_count: int
    kv_head_count: int
    layer_count: int
    qk_head_dim: int
    v_head_dim: int
    max_seq_len: int
    hada_n: int
    lane_count: int
    sliding_window: int
    global_mask: int
    qkv_conv_taps: int
    engram_slots: int
    engram_sub_dim: int
    engram_table_count: int
    engram_conv_taps: int
    engram_dilation: int
    engram_seed_heads: int
    orders: tuple[int, ...]
    sites: tuple[int, ...]
    rope_theta: float

    @property
    def generation(self) -> int:
        """2 or 3."""
        return layout.GENERATIONS[self.tag]

    @property
    def logit_count(self) -> int:
        """Logits per position."""
        return self.out_vocab_count or self.vocab_count

    @property
    def global_layers(self) -> tuple[int, ...]:
        """Layers with full attention; the others see `sliding_window` positions (if it is not 0)."""
        return tuple(layer for layer in range(self.layer_count) if self.global_mask >> layer & 1)

    @property
    def engram_heads(self) -> int:
        """Engram tables per n-gram order."""
        return self.engram_table_count // len(self.orders)

    @property
    def size_bytes(self) -> int:
        """Bytes of the header itself; the codebooks follow."""
        return layout.HEADER_STRUCTS[self.tag].size


def parse_header(data: memoryview, subject: str) -> Header:
    """Read and check the header at the start of `data`.

    Raises `ContainerError`: cact_truncated, cact_bad_tag, cact_bad_header.
    """
    if len(data) < 4:
        raise cut_off(1, subject, "header.tag", byte_count=len(data), needed=4)
    tag = int.from_bytes(data[:4], "little")
    if tag not in layout.GENERATIONS:
        raise broken(
            2,
            "cact_bad_tag",
            subject,
            "header.tag",
            found=f"0x{tag:08x}",
            allowed="0x05e12a82, 0x05e12a83 or 0x05e12a84",
            offset=0,
            next_step="this is not a Needle 2 or 3 archive",
        )
    packed = layout.HEADER_STRUCTS[tag]
    if len(data) < packed.size:
        raise cut_off(1, subject, "header", byte_count=len(data), needed=packed.size)
    words: dict[str, int | float] = dict(layout.TAG_82_GEOMETRY) if tag == layout.TAG_82 else {}
    words |= zip(layout.HEADER_FIELDS[tag], packed.unpack_from(data), strict=True)
    _check_limits(words, tag, subject)
    _check_relations(words, tag, subject)
    return _header_of(words)


def pack_header(header: Header) -> bytes:
    """The header's bytes; a tag-82 header leaves out its geometry, which must be the fixed one.

    Raises `ContainerError` (cact_bad_header) for a value beyond its limits; `parse_header` checks the rest.
    """
    words = _words_of(header)
    if header.tag == layout.TAG_82:
        for name, value in layout.TAG_82_GEOMETRY.items():
            if words[name] != value:
                raise broken(
                    2,
                    "cact_bad_header",
                    "header",
                    name,
                    found=words[name],
                    allowed=f"{value}, since tag 0x05e12a82 fixes the geometry",
                )
    _check_limits(words, header.tag, "container")
    return layout.HEADER_STRUCTS[header.tag].pack(*(words[name] for name in layout.HEADER_FIELDS[header.tag]))


def _check_limits(words: dict[str, int | float], tag: int, subject: str) -> None:
    for name in layout.HEADER_FIELDS[tag]:
        value = words[name]
        if name == "rope_theta":
            if not 0 < value <= layout.F32_MAX:
                raise _bad_word(3, words, name, "a finite f32 above 0", subject)
            continue
        low, high = layout.WORD_LIMITS.get(name, (0, 0xFFFFFFFF))
        if not low <= value <= high:
            raise _bad_word(3, words, name, str(low) if low == high else f"{low} to {high}", subject)


def _check_relations(words: dict[str, int | float], tag: int, subject: str) -> None:
    w = {name: int(value) for name, value in words.items()}
    rotary = "qk_head_dim" if tag == layout.TAG_84 else "head_dim"
    power = 1 << (w["d_model"] - 1).bit_length()
    order_allowed = [layout.ORDER_LIMITS if i < w["order_count"] else (0, 0) for i in range(4)]
    relations = (
        ("kv_head_count", w["head_count"] % w["kv_head_count"] == 0, f"a divisor of {w['head_count']} heads"),
        (rotary, w[rotary] % 2 == 0, "even, since RoPE turns pairs"),
        ("hada_n", w["hada_n"] == power, f"{power}, the least power of two that holds d_model"),
        ("out_vocab_count", w.get("out_vocab_count", 0) <= w["vocab_count"], f"at most {w['vocab_count']}"),
        (
            "engram_table_count",
            w["engram_table_count"] % w["order_count"] == 0,
            f"a multiple of {w['order_count']} orders",
        ),
        *(
            (f"orders[{i}]", low <= w[f"orders[{i}]"] <= high, f"{low} to {high}")
            for i, (low, high) in enumerate(order_allowed)
        ),
        *_site_relations(w),
    )
    for name, holds, allowed in relations:
        if not holds:
            raise _bad_word(4, words, name, allowed, subject)


def _site_relations(w: dict[str, int]) -> Iterator[tuple[str, bool, str]]:
    capacity = sum(name.startswith("sites[") for name in w)
    yield "site_count", w["site_count"] <= capacity, f"at most {capacity}"
    least = 0
    for i in range(capacity):
        site = w[f"sites[{i}]"]
        if i < w["site_count"]:
            yield f"sites[{i}]", least <= site < w["layer_count"], f"{least} to {w['layer_count'] - 1}"
            least = site + 1
        else:
            yield f"sites[{i}]", site == 0, "0 after the last site"


def _bad_word(
    rule: int, words: dict[str, int | float], name: str, allowed: str, subject: str
) -> ContainerError:
    fields = layout.HEADER_FIELDS[int(words["tag"])]
    offset = 4 * fields.index(name) if name in fields else None
    field = f"header.{name}"
    return broken(rule, "cact_bad_header", subject, field, found=words[name], allowed=allowed, offset=offset)


def _header_of(words: dict[str, int | float]) -> Header:
    w = {name: int(value) for name, value in words.items() if name != "rope_theta"}
    return Header(
        tag=w["tag"],
        tensor_count=w["tensor_count"],
        kv_window=w["kv_window"],
        kv_bits=w["kv_bits"],
        vocab_count=w["vocab_count"],
        out_vocab_count=w.get("out_vocab_count", 0),
        d_model=w["d_model"],
        head_count=w["head_count"],
        kv_head_count=w["kv_head_count"],
        layer_count=w["layer_count"],
        qk_head_dim=w["qk_head_dim"] if "qk_head_dim" in w else w["head_dim"],
        v_head_dim=w["v_head_dim"] if "v_head_dim" in w else w["head_dim"],
        max_seq_len=w["max_seq_len"],
        hada_n=w["hada_n"],
        lane_count=w["lane_count"],
        sliding_window=w.get("sliding_window", 0),
        global_mask=w.get("global_mask_low", 0) | w.get("global_mask_high", 0) << 32,
        qkv_conv_taps=w.get("qkv_conv_taps", 0),
        engram_slots=w["engram_slots"],
        engram_sub_dim=w["engram_sub_dim"],
        engram_table_count=w["engram_table_count"],
        engram_conv_taps=w["engram_conv_taps"],
        engram_dilation=w["engram_dilation"],
        engram_seed_heads=w.get("engram_seed_heads", 0),
        orders=tuple(w[f"orders[{i}]"] for i in range(w["order_count"])),
        sites=tuple(w[f"sites[{i}]"] for i in range(w["site_count"])),
        rope_theta=float(words["rope_theta"]),
    )


def _words_of(header: Header) -> dict[str, int | float]:
    words: dict[str, int | float] = {
        name: value for name, value in vars(header).items() if not isinstance(value, tuple)
    }
    words |= {
        "codebook_count": len(layout.CODEBOOKS),
        "head_dim": header.qk_head_dim,
        "global_mask_low": header.global_mask & 0xFFFFFFFF,
        "global_mask_high": header.global_mask >> 32,
        "order_count": len(header.orders),
        "site_count": len(header.sites),
    }
    words |= {f"orders[{i}]": header.orders[i] if i < len(header.orders) else 0 for i in range(4)}
    words |= {f"sites[{i}]": header.sites[i] if i < len(header.sites) else 0 for i in range(16)}
    return words
