"""Checkpoints as files: what is read, what is refused."""

from __future__ import annotations

import json
import os
import re
import struct
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from needle.model import run
from safetensors.numpy import save_file

from builder.errors import FamilyError
from builder.family.checkpoint import read_checkpoint
from builder.family.export import CheckpointExporter
from builder.family.safetensors_file import read_safetensors
from builder.family.settings import FamilyTable
from tests.family import upstream


def write(path: Path, fields: object = None, **metadata: str) -> Path:
    metadata = {"format_version": "2", "config": json.dumps(fields or {})} | metadata
    save_file({"embedding/embedding": np.ones((4, 8), np.float32)}, path, metadata=metadata)
    return path


@pytest.mark.parametrize(
    ("config", "metadata", "sentence"),
    [
        ({}, {"format_version": "1"}, "format_version is '1', must be '2'"),
        ({}, {"config": "{"}, "config: document: is not JSON"),
        ({}, {"config": "[" * 100_000}, "config: document: is nested too deeply"),
        ({}, {"config": "[]"}, "config must be a JSON object"),
        ({"attn_dim": 512}, {}, "a Needle 2 checkpoint"),
        ({"d_model": -1}, {}, "config.d_model"),
        ({"num_layers": 65}, {}, "config.num_layers"),
        ({"engram_orders": []}, {}, "engram_orders is empty"),
        ({"d_model": 4}, {}, "too small for its heads"),
    ],
)
def test_a_bad_checkpoint_is_refused_with_one_sentence(tmp_path, config, metadata, sentence):
    path = write(tmp_path / "c.safetensors", config, **metadata)
    with pytest.raises(FamilyError, match=re.escape(sentence)) as caught:
        read_checkpoint(path)
    assert caught.value.code == "bad_checkpoint"


def test_training_tensors_are_left_out_as_upstream_leaves_them(tmp_path):
    tensors = {"mtp_0/kernel": np.ones(2, np.float32), "embedding/embedding": np.ones(2, np.float32)}
    save_file(tensors, tmp_path / "c.safetensors", metadata={"format_version": "2"})
    assert set(read_checkpoint(tmp_path / "c.safetensors").tensors) == {"embedding/embedding"}


def test_a_pickle_is_never_opened(tmp_path):
    (tmp_path / "c.pkl").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    with pytest.raises(FamilyError, match="pickled files can run code"):
        read_checkpoint(tmp_path / "c.pkl")


@pytest.mark.parametrize("data", [b"", b"12345678", b"\xff" * 64, b"\x02\0\0\0\0\0\0\0{}x"])
def test_bytes_that_are_no_safetensors_are_refused(tmp_path, data):
    (tmp_path / "c.safetensors").write_bytes(data)
    with pytest.raises(FamilyError) as caught:
        read_checkpoint(tmp_path / "c.safetensors")
    assert caught.value.code in {"bad_safetensors", "bad_checkpoint"}


def test_half_precision_is_widened_exactly(tmp_path):
    values = np.array([0.0, -0.0, 1.0, 3.1415926, 1e-7, 65504.0, -(2.0**-24)], np.float32)
    stored = {"F16": values.astype(np.float16), "BF16": values.astype(ml_dtypes.bfloat16)}
    span = 2 * len(values)
    header = {
        name: {"dtype": name, "shape": [len(values)], "data_offsets": [at, at + span]}
        for name, at in (("F16", 0), ("BF16", span))
    }
    text = json.dumps(header).encode()
    data = struct.pack("<Q", len(text)) + text + stored["F16"].tobytes() + stored["BF16"].tobytes()
    (tmp_path / "t.safetensors").write_bytes(data)
    _, tensors = read_safetensors(tmp_path / "t.safetensors")
    for name, array in stored.items():
        assert tensors[name].tobytes() == array.astype(np.float32).tobytes()


def test_a_type_that_is_no_weight_is_refused(tmp_path):
    save_file({"x": np.ones(3, np.int32)}, tmp_path / "t.safetensors")
    with pytest.raises(FamilyError, match="tensor x has type I32"):
        read_safetensors(tmp_path / "t.safetensors")


@pytest.mark.parametrize(
    ("name", "shape", "sentence"),
    [
        ("embedding/embedding", (7, 128), r"gives embedding the shape \[7, 128\], must be \[1024, 128\]"),
        ("stack/layers/block/ZCRMSNorm_0/scale", (4, 128), "must have 5 entries on axis 0"),
        ("stack/layers/block/self_attn/q_proj/kernel", (5, 128), "must have 3 axes"),
        ("stack/mhc_phi_res", (5, 512), "must have 3 axes"),
        ("engrams_0/embedding", (128,), "must have 3 axes"),
        ("confidence_head/gain", (5, 4), "must have 6 entries on axis 0"),
        ("stack/final_norm/scale", None, "has no tensor stack/final_norm/scale"),
    ],
)
def test_a_tensor_of_the_wrong_shape_is_named(
    upstream_files, tokenizer_blob, tmp_path, name, shape, sentence
):
    metadata, tensors = read_safetensors(upstream_files.checkpoint)
    tensors[name] = np.zeros(shape or 1, np.float32)
    if shape is None:
        del tensors[name]
    save_file(tensors, tmp_path / "c.safetensors", metadata=metadata)
    checkpoint = read_checkpoint(tmp_path / "c.safetensors")
    exporter = CheckpointExporter(checkpoint, FamilyTable(name="tiny", title="Tiny"), tokenizer_blob)
    with pytest.raises(FamilyError, match=sentence):
        exporter.check()


def test_a_weight_that_fp16_cannot_hold_is_refused_by_name(upstream_files, export, tmp_path):
    metadata, tensors = read_safetensors(upstream_files.checkpoint)
    tensors["stack/final_norm/scale"][3] = 7e4
    save_file(tensors, tmp_path / "c.safetensors", metadata=metadata)
    with pytest.raises(FamilyError, match=r"final_norm/scale: has a value of 70000, must be") as caught:
        export(tmp_path / "c.safetensors")
    assert caught.value.code == "cact_bad_value"


@pytest.mark.parametrize("shape", [[1] * 70, [0, 2**62], [0, 2**63 + 5]])
def test_a_shape_that_no_array_has_is_refused(tmp_path, shape):
    span = 0 if 0 in shape else 4
    text = json.dumps({"x": {"dtype": "F32", "shape": shape, "data_offsets": [0, span]}}).encode()
    (tmp_path / "t.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(span))
    with pytest.raises(FamilyError, match=r"tensor x has the shape .* which no array has"):
        read_safetensors(tmp_path / "t.safetensors")


@pytest.mark.parametrize("name", ["pipe.safetensors", "nul\0.safetensors"])
def test_what_is_no_file_is_refused_unopened(tmp_path, name):
    os.mkfifo(tmp_path / "pipe.safetensors")
    with pytest.raises(FamilyError, match="cannot be read") as caught:
        read_safetensors(tmp_path / name)
    assert caught.value.code == "unreadable"


def test_of_many_unused_tensors_five_are_named(upstream_files, export, tmp_path):
    metadata, tensors = read_safetensors(upstream_files.checkpoint)
    tensors |= {f"extra/{i}": np.zeros(1, np.float32) for i in range(8)}
    save_file(tensors, tmp_path / "c.safetensors", metadata=metadata)
    with pytest.raises(FamilyError, match=r"no use for extra/0, .*, extra/4 and 3 more; a field"):
        export(tmp_path / "c.safetensors")


def test_upstream_loads_what_we_call_a_checkpoint(upstream_files):
    params, config = run.load_checkpoint(str(upstream_files.checkpoint))
    ours = read_checkpoint(upstream_files.checkpoint)
    assert ours.config.num_layers == config.num_layers
    assert np.array_equal(params["embedding"]["embedding"], ours.tensors["embedding/embedding"])
    assert upstream.TOKENIZER.exists()
