"""The engine's SHA-256 is hashlib's, for every length around a block and in any pieces."""

from __future__ import annotations

import hashlib

from hypothesis import given, settings
from hypothesis import strategies as st

from builder.runtime.engine import Engine

STATE_BYTES = 104


def _sha256(pieces: list[bytes]) -> bytes:
    engine = Engine().instance()
    state, digest = engine.reserve(STATE_BYTES), engine.reserve(32)
    engine.call("sg_sha256_init", state)
    for piece in pieces:
        engine.call("sg_sha256_update", state, engine.place(piece), len(piece))
    engine.call("sg_sha256_final", state, digest)
    return engine.read(digest, 32)


def test_every_length_up_to_three_blocks() -> None:
    data = bytes(range(256))
    for size in range(193):
        assert _sha256([data[:size]]) == hashlib.sha256(data[:size]).digest(), size


@settings(deadline=None, max_examples=30)
@given(st.lists(st.binary(max_size=200), max_size=8))
def test_any_pieces_give_the_hash_of_the_whole(pieces: list[bytes]) -> None:
    assert _sha256(pieces) == hashlib.sha256(b"".join(pieces)).digest()
