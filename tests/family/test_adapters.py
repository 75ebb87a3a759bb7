"""Adapters as files, and merging them."""

from __future__ import annotations

import re
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from needle.model import finetune
from safetensors.numpy import save_file

from builder.errors import FamilyError
from builder.family.adapter import Adapter, merge, read_adapter
from builder.family.checkpoint import Checkpoint, CheckpointConfig, read_checkpoint


def write(path: Path, tensors: dict[str, tuple[int, ...]], **metadata: str) -> Path:
    arrays = {name: np.ones(shape, np.float32) for name, shape in tensors.items()}
    save_file(arrays, path, metadata={"scale": "2.0", "languages": "null"} | metadata)
    return path


@pytest.mark.parametrize(
    ("tensors", "metadata", "sentence"),
    [
        ({"lora/k/A": (1, 2, 1), "lora/k/B": (1, 1, 2)}, {"scale": "null"}, "must be a number"),
        ({"lora/k/A": (1, 2, 1), "lora/k/B": (1, 1, 2)}, {"scale": "Infinity"}, "not JSON (Infinity"),
        ({"lora/k/A": (1, 2, 1), "lora/k/B": (1, 1, 2)}, {"seed": "{"}, "metadata seed: document: is not"),
        ({"lora/k/A": (1, 2, 1), "lora/k/B": (1, 1, 2)}, {"scale": "1" + "0" * 400}, "beyond every number"),
        ({"lora/k/A": (1, 2, 1), "lora/k/B": (1, 1, 2)}, {"scale": "[" * 100_000}, "nested too deeply"),
        ({"lora/\x1b[31mred\nbase: good/A": (1, 2, 1)}, {}, r"lora/\x1b[31mred\nbase: good must be"),
        ({"lora/k/A": (1, 2, 1), "lora/k/B": (1, 1, 2)}, {"languages": '["en"]'}, "audio (Whistle)"),
        ({"lora/k/A": (1, 2, 1), "lora/k/B": (1, 1, 2), "rows": (1,)}, {}, "audio (Whistle)"),
        ({"lora/k/A": (1, 2, 1)}, {}, "lora/k must be lora/KERNEL"),
        ({"k/A": (1, 2, 1), "k/B": (1, 1, 2)}, {}, "k must be lora/KERNEL"),
        ({"lora/k/A": (1,), "lora/k/B": (1,), "lora/k/C": (1,)}, {}, "belongs to no pair"),
        ({}, {}, "holds no tensors"),
    ],
)
def test_a_bad_adapter_is_refused_with_one_sentence(tmp_path, tensors, metadata, sentence):
    path = write(tmp_path / "a.safetensors", tensors, **metadata)
    with pytest.raises(FamilyError, match=re.escape(sentence)) as caught:
        read_adapter(path)
    assert caught.value.code == "bad_adapter"


@pytest.mark.parametrize(
    ("written", "read"), [("7", 7), ("null", 0), ("-1", 0), ("4294967296", 0), ('"x"', 0)]
)
def test_the_seed_of_an_adapter_is_read_where_it_is_one(tmp_path, written, read):
    tensors = {"lora/k/A": (1, 2, 1), "lora/k/B": (1, 1, 2)}
    assert read_adapter(write(tmp_path / "a.safetensors", tensors, seed=written)).seed == read


@pytest.mark.parametrize(
    ("tensors", "sentence"),
    [
        ({"lora/gone/A": (2, 3, 1), "lora/gone/B": (2, 1, 4)}, "adapts gone, which"),
        ({"lora/k/A": (2, 3, 1), "lora/k/B": (2, 1, 5)}, "must give the kernel's [2, 3, 4]"),
        ({"lora/k/A": (2, 3, 2), "lora/k/B": (2, 1, 4)}, "must give the kernel's [2, 3, 4]"),
        ({"lora/k/A": (3, 1), "lora/k/B": (1, 4)}, "must give the kernel's [2, 3, 4]"),
    ],
)
def test_an_adapter_for_another_checkpoint_is_refused(tmp_path, tensors, sentence):
    adapter = read_adapter(write(tmp_path / "a.safetensors", tensors))
    kernel = {"k": np.zeros((2, 3, 4), np.float32)}
    checkpoint = Checkpoint(tmp_path / "c.safetensors", CheckpointConfig(), kernel)
    with pytest.raises(FamilyError, match=re.escape(sentence)):
        merge(checkpoint, adapter)


def test_merging_adds_scale_times_the_product(upstream_files):
    checkpoint, adapter = read_checkpoint(upstream_files.checkpoint), read_adapter(upstream_files.adapter)
    merged = merge(checkpoint, adapter)
    assert len(merged) == 5
    for name, (a, b) in adapter.pairs.items():
        expected = checkpoint.tensors[name].astype(np.float64) + 2.0 * (
            a.astype(np.float64) @ b.astype(np.float64)
        )
        np.testing.assert_allclose(merged[name], expected, rtol=0, atol=1e-7)


SLOW = [pytest.param(width, marks=pytest.mark.slow) for width in (80, 576, 768)]


@pytest.mark.parametrize("width", [24, 64, 96, *SLOW])
def test_merging_is_upstreams_up_to_float_rounding(width):
    # On AVX2 machines not one bit differs at these widths; elsewhere XLA adds in another order.
    rng = np.random.default_rng(width)
    kernel, a, b = (
        rng.standard_normal(shape, np.float32) for shape in ((2, 64, width), (2, 64, 16), (2, 16, width))
    )
    checkpoint = Checkpoint(Path("c"), CheckpointConfig(), {"k": kernel})
    ours = merge(checkpoint, Adapter(Path("a"), 2.0, {"k": (a, b)}))["k"]
    lora = {("k",): {"A": jnp.asarray(a), "B": jnp.asarray(b)}}
    theirs = np.asarray(finetune.merge_lora({"k": jnp.asarray(kernel)}, lora, 2.0)["k"])
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)
    print(f"width {width}: {int((ours != theirs).sum())} of {ours.size} differ")
