"""`family check` finds what an export or a pack would refuse."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import save_file

from builder.cact.reader import read_container
from builder.family.check import check_family
from builder.family.family import load_family
from builder.family.safetensors_file import read_safetensors
from tests.family.upstream import TOKENIZER


def test_the_demo_family_has_no_problem(demo_family):
    assert [finding.problem for finding in check_family(demo_family.family)] == [None] * 6


@pytest.fixture
def check(demo_family, upstream_files, tmp_path):
    """check(keys of a specialist) -> code of its problem, next to the demo base."""
    shutil.copy(demo_family.folder / "base.cact", tmp_path / "base.cact")
    shutil.copy(upstream_files.checkpoint, tmp_path / "tiny.safetensors")
    shutil.copy(upstream_files.adapter, tmp_path / "tiny.lora.safetensors")
    demo = demo_family.family.path.parent

    def run(keys: str) -> str | None:
        text = f'[family]\nname="f"\ntitle="F"\ntokenizer="{demo}/tokenizer.model"\n'
        text += f'[base]\ncact="base.cact"\n[[specialists]]\nid="s"\nabout="x"\n{keys}\n'
        (tmp_path / "family.toml").write_text(text)
        base, specialist = check_family(load_family(tmp_path / "family.toml"))
        assert base.problem is None
        return specialist.problem and specialist.problem.code

    return run


def test_a_member_of_another_geometry_is_found(check):
    assert check('checkpoint="tiny.safetensors"\nadapter="tiny.lora.safetensors"') == "other_geometry"


def test_a_missing_file_is_found(check):
    assert check('checkpoint="gone.safetensors"') == "unreadable"
    assert check('cact="gone.cact"') == "unreadable"


def test_an_untrained_adapter_is_found(check, upstream_files, tmp_path):
    metadata, tensors = read_safetensors(upstream_files.adapter)
    zeros = {name: values * (not name.endswith("/B")) for name, values in tensors.items()}
    save_file(zeros, tmp_path / "zero.safetensors", metadata=metadata)
    assert check('checkpoint="tiny.safetensors"\nadapter="zero.safetensors"') == "empty_adapter"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"num_layers": 3}, "cact_bad_header"),
        ({"rope_theta": 1e300}, "cact_bad_header"),
        ({"rope_theta": -1}, "cact_bad_header"),
        ({"max_seq_len": 2**31}, "cact_bad_header"),
        ({"engram_orders": [2**31]}, "cact_bad_header"),
    ],
)
def test_a_config_that_no_header_can_hold_is_found(check, tmp_path, changes, code):
    metadata, tensors = read_safetensors(tmp_path / "tiny.safetensors")
    config = json.loads(metadata["config"]) | changes
    save_file(tensors, tmp_path / "bad.safetensors", metadata=metadata | {"config": json.dumps(config)})
    assert check('checkpoint="bad.safetensors"') == code


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("stack/final_norm/scale", np.nan),
        ("embedding/embedding", np.inf),
        ("embedding/embedding", 1e30),
        ("confidence_head/query", np.nan),
    ],
)
def test_a_weight_that_no_container_can_hold_is_found(check, tmp_path, name, value):
    metadata, tensors = read_safetensors(tmp_path / "tiny.safetensors")
    tensors[name].flat[0] = value
    save_file(tensors, tmp_path / "bad.safetensors", metadata=metadata)
    assert check('checkpoint="bad.safetensors"') == "cact_bad_value"


def test_a_head_that_no_container_can_hold_is_found(check, tmp_path):
    metadata, tensors = read_safetensors(tmp_path / "tiny.safetensors")
    tensors["confidence_head/query"] = np.ones((3, 7), np.float32)
    save_file(tensors, tmp_path / "bad.safetensors", metadata=metadata)
    assert check('checkpoint="bad.safetensors"') == "cact_bad_shape"


def test_a_tokenizer_of_more_pieces_than_rows_is_found(check, tmp_path):
    metadata, tensors = read_safetensors(tmp_path / "tiny.safetensors")
    tensors["embedding/embedding"] = tensors["embedding/embedding"][:500].copy()
    config = json.loads(metadata["config"]) | {"vocab_size": 500, "out_vocab": 0}
    save_file(tensors, tmp_path / "bad.safetensors", metadata=metadata | {"config": json.dumps(config)})
    assert check('checkpoint="bad.safetensors"') == "cact_bad_tokenizer"


@pytest.mark.parametrize("scale", ["1e30", "1e300"])
def test_an_adapter_that_makes_weights_too_large_is_to_blame_itself(upstream_files, tmp_path, scale):
    metadata, tensors = read_safetensors(upstream_files.adapter)
    save_file(tensors, tmp_path / "big.safetensors", metadata=metadata | {"scale": scale})
    text = f'[family]\nname="f"\ntitle="F"\ntokenizer="{TOKENIZER}"\n'
    text += f'[base]\ncheckpoint="{upstream_files.checkpoint}"\nadapter="big.safetensors"\n'
    (tmp_path / "family.toml").write_text(text)
    (base,) = check_family(load_family(tmp_path / "family.toml"))
    assert str(base.problem).startswith(f"{tmp_path}/big.safetensors: stack/layers/block/")


def test_another_tokenizer_is_found(check, demo_family, tmp_path):
    from builder.cact.tokenizer import pack_tokenizer, parse_tokenizer
    from builder.cact.writer import blobs_of, raw_blob, write_container

    base = read_container(demo_family.folder / "base.cact")
    tokenizer = parse_tokenizer(base.tokenizer_blob)
    changed = type(tokenizer)(**(vars(tokenizer) | {"add_dummy_prefix": True}))
    blobs = [*blobs_of(base)[:-1], raw_blob(pack_tokenizer(changed))]
    (tmp_path / "other.cact").write_bytes(write_container(base.header, blobs))
    assert check('cact="other.cact"') == "other_tokenizer"
