"""The golden patches: one per released coder, which must decode for ever.

`python -m tests.delta.golden_patches` writes them, for a new coder only; a patch that exists is never written
again.
"""

from __future__ import annotations

from pathlib import Path

from builder.delta import make_patch
from tests.delta.requantised import requantised
from tests.delta.test_guided import TAG, random_q, seeded_q
from tests.delta.tiny_containers import container, cq, fine_tuned, floats, nudged, raw

FOLDER = Path(__file__).parents[1] / "golden" / "patches"
REQUANTISED = ("predicted", "predicted_seeded", "narrowed")
"""Their targets are stored too: how codes are chosen for a patch may change, how it decodes may not."""


def pairs() -> dict[str, tuple[bytes, bytes]]:
    """Base and target of each golden patch; small, and the same on every machine."""
    old = [cq(6, 256, 4, seed=1), floats(1, 90, seed=2), cq(8, 128, 2, seed=3), cq(8, 128, 3, seed=4)]
    dropped = floats(2, 12, seed=5)
    mixed_base = container(TAG, [*old[:2], dropped, *old[2:], raw(b"a tokenizer's bytes")])
    mixed_target = container(TAG, [*(nudged(blob, 9, 0.1) for blob in old), raw(b"another's")])
    guided = fine_tuned(4, 64, random_q(1), strength=0.5, seed=1)
    seeded = fine_tuned(4, 64, seeded_q(3, 0), strength=0.5, seed=2)
    return {
        "unguided": (mixed_base, mixed_target),
        "guided": (container(TAG, [guided[0]]), container(TAG, [guided[1]])),
        "seeded": (container(TAG, [seeded[0]]), container(TAG, [seeded[1]])),
        **{name: _stored(name) for name in REQUANTISED},
    }


def _stored(name: str) -> tuple[bytes, bytes]:
    base, target = (FOLDER / f"{name}.{end}.cact" for end in ("base", "target"))
    return base.read_bytes(), target.read_bytes()


def main() -> None:
    """Write what is not there yet."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in REQUANTISED:
        if not (FOLDER / f"{name}.patch").exists():
            q = seeded_q(3, 0) if name == "predicted_seeded" else random_q(1)
            made = requantised(q, rows=64, trade=0.03 if name == "narrowed" else None)
            for end, data in zip(("base.cact", "target.cact", "patch"), made, strict=True):
                (FOLDER / f"{name}.{end}").write_bytes(data)
    for name, (base, target) in pairs().items():
        if not (FOLDER / f"{name}.patch").exists():
            (FOLDER / f"{name}.base.cact").write_bytes(base)
            (FOLDER / f"{name}.patch").write_bytes(make_patch(base, target))


if __name__ == "__main__":
    main()
