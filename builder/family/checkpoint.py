"""Upstream's training checkpoints (generation 3): tensors and configuration.

Owns: which checkpoints are read, what an incomplete configuration means. Does not know: containers, adapters.
Source: `needle.model.run.load_checkpoint` and `TransformerConfig.from_saved` of cactus-needle 3.2.8.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from builder.errors import FamilyError, plain_name
from builder.family.safetensors_file import Floats, read_safetensors
from builder.files import load_json

FORMAT_VERSION = "2"
IGNORED_PREFIX = "mtp_"
"""Tensors of the multi-token training loss; upstream drops them when it loads a checkpoint."""

Count = Annotated[int, Field(ge=1, le=1 << 31)]
Size = Annotated[int, Field(ge=0, le=1 << 31)]


class CheckpointConfig(BaseModel):
    """The fields of `config` that shape the container, with the value that an absent field stands for.

    Upstream fills some absent fields with "off" (0 or empty) and others with its present defaults; so do we.
    A file whose config leaves out `qkv_conv_taps` is therefore a model without taps, whatever it holds.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    vocab_size: Count = 16384
    d_model: Count = 768
    num_heads: Count = 12
    num_kv_heads: Count = 2
    num_layers: Annotated[int, Field(ge=1, le=64)] = 20
    max_seq_len: Count = 4096
    rope_theta: float = 100000.0
    engram_orders: tuple[Count, ...] = (2, 3)
    engram_heads: Size = 0
    engram_slots: Count = 18432
    engram_layers: tuple[Size, ...] = (3, 7, 11, 15, 19)
    mhc_lanes: Count = 4
    kv_window: Size = 0
    kv_bits: Size = 8
    # Absent means off, which is not upstream's default for a new model.
    qk_head_dim: Size = 0
    v_head_dim: Size = 0
    sliding_window: Size = 0
    global_layers: tuple[Annotated[int, Field(ge=0, le=63)], ...] = ()
    ladder_widths: tuple[Size, ...] = ()
    ladder_order: tuple[Size, ...] = ()
    engram_seed_heads: Size = 0
    qkv_conv_taps: Size = 0
    out_vocab: Size = 0

    @model_validator(mode="after")
    def _divides(self) -> CheckpointConfig:
        if not self.engram_orders:
            raise ValueError("engram_orders is empty, must name one order at least")
        if self.d_model < self.num_heads or self.d_model < len(self.engram_orders) * self.engram_heads:
            raise ValueError(f"d_model is {self.d_model}, too small for its heads")
        return self


@dataclass(frozen=True)
class Checkpoint:
    """An upstream checkpoint in memory."""

    path: Path
    config: CheckpointConfig
    tensors: dict[str, Floats]
    """By upstream's names, such as `stack/layers/block/self_attn/q_proj/kernel` (L, in, out)."""


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint. Raises `FamilyError` (unreadable, bad_safetensors, bad_checkpoint)."""
    metadata, tensors = read_safetensors(path)
    version = metadata.get("format_version")
    if version != FORMAT_VERSION:
        found = plain_name(repr(version))
        raise _bad(
            path, f"format_version is {found}, must be {FORMAT_VERSION!r}; it is no Needle 3 checkpoint"
        )
    text = metadata.get("config") or "{}"
    saved = load_json(text.encode(), f"{path}: config", error=FamilyError, code="bad_checkpoint")
    if not isinstance(saved, dict):
        raise _bad(path, "config must be a JSON object")
    if "attn_dim" in saved and "qk_head_dim" not in saved:
        raise _bad(
            path, "config has attn_dim and no qk_head_dim: a Needle 2 checkpoint, which is not exported"
        )
    try:
        config = CheckpointConfig.model_validate(saved)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(("config", *(str(part) for part in first["loc"])))
        raise _bad(path, f"{plain_name(where)}: {first['msg'].removeprefix('Value error, ')}") from None
    kept = {name: values for name, values in tensors.items() if not name.startswith(IGNORED_PREFIX)}
    return Checkpoint(path, config, kept)


def _bad(path: Path, reason: str) -> FamilyError:
    return FamilyError(f"{path}: {reason}", code="bad_checkpoint")
