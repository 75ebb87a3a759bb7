"""Progress of making a patch: what is counted, and that nothing else changes by it."""

from __future__ import annotations

import shutil
import struct
from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import given, settings

from builder.cli import main
from builder.delta import make_patch
from builder.errors import ContainerError, SaguaroError
from builder.runtime.host import Instance, packaged_module
from builder.runtime.status import DONE
from tests.delta.golden_patches import FOLDER
from tests.delta.terminal import seen, stderr_on_a_terminal
from tests.delta.tiny_containers import container, cq, floats, nudged, pairs, raw

TAG = 0x05E12A84
CONTAINER = FOLDER.parent / "tiny84.cact"


def counted(base: bytes, target: bytes) -> tuple[bytes, list[int]]:
    """The patch, and the counts that were told while it was made."""
    told: list[tuple[int, int]] = []
    patch = make_patch(base, target, effort=0, progress=lambda *counts: told.append(counts))
    assert {total for _, total in told} == {len(target)}
    return patch, [done for done, _ in told]


@settings(deadline=None, max_examples=30)
@given(pairs())
def test_counts_never_fall_and_end_at_the_target_size(pair: tuple[bytes, bytes]) -> None:
    patch, counts = counted(*pair)
    assert counts == sorted(counts)
    assert counts[-1] == len(pair[1])
    assert patch == make_patch(*pair, effort=0)


def test_each_changed_tensor_is_counted_when_it_is_written() -> None:
    old = [cq(8, 256, 4, seed) for seed in range(3)]
    base = container(TAG, old)
    target = container(TAG, [nudged(blob, 1, 0.3) for blob in old])
    places = [struct.unpack_from("<QQ", target, 196 + 4 * 28 + 44 * index + 20) for index in range(3)]
    ends = [offset + byte_count for offset, byte_count in places]
    assert sorted(set(counted(base, target)[1])) == [0, *ends]


@pytest.mark.parametrize("name", ["equal", "nothing in common"])
def test_a_target_that_is_one_run_counts_in_the_end(name: str) -> None:
    base = container(TAG, [floats(1, 90, seed=1)])
    target = base if name == "equal" else container(0x05E12A82, [raw(bytes(range(256)) * 4)])
    counts = counted(base, target)[1]
    assert counts[0] == 0 if name == "equal" else counts[0] < len(target)
    assert counts[-1] == len(target)


@pytest.mark.parametrize("is_refused", [False, True])
def test_a_maker_that_is_done_or_was_refused_makes_no_more_steps(is_refused: bool) -> None:
    base = container(TAG, [floats(1, 9, seed=1)])
    target = bytes(len(base)) if is_refused else base
    engine = Instance(*packaged_module("maker.wasm"))
    sizes = len(base), len(target)
    size, bound = engine.call("sg_patch_maker_size", *sizes), engine.call("sg_patch_bound", *sizes)
    maker, options, out = engine.reserve(size), engine.reserve(16), engine.reserve(bound)
    inputs = (engine.place(base), sizes[0], engine.place(target), sizes[1])
    with pytest.raises(ContainerError) if is_refused else nullcontext():
        engine.check("patch", "sg_patch_begin", maker, size, options, *inputs, out, bound)
        while engine.check("patch", "sg_patch_step", maker) != DONE:
            pass
    with pytest.raises(SaguaroError) as caught:
        engine.check("patch", "sg_patch_step", maker)
    assert caught.value.code == "bad_state"


def test_a_terminal_sees_a_bar_that_is_gone_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(CONTAINER, "base.cact")
    words = ["delta", "make", "base.cact", "base.cact", "--out"]
    with stderr_on_a_terminal(monkeypatch) as written:
        assert main([*words, "a.patch"]) == 0
    size = CONTAINER.stat().st_size / 1000
    assert f"{size:.1f}/{size:.1f} kB" in written[0]
    (line,) = seen(written[0])
    assert line.startswith("delta: made a patch of ")
    out = capsys.readouterr().out
    assert main([*words, "b.patch"]) == 0
    assert capsys.readouterr() == (out.replace("a.patch", "b.patch"), line + "\n")
    assert Path("a.patch").read_bytes() == Path("b.patch").read_bytes()
