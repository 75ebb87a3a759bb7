"""Exports equal what upstream's exporter writes from the same files, run live on random tiny models."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from needle.model import architecture, run
from safetensors.numpy import save_file

from builder.cact.reader import Container, read_container
from builder.cact.writer import blobs_of, cq_blob, write_container
from builder.errors import FamilyError
from builder.family.adapter import merge, read_adapter
from builder.family.checkpoint import read_checkpoint
from builder.family.ladder import kept_layers
from builder.family.parameters import Parameters
from builder.family.safetensors_file import read_safetensors
from tests.family import upstream
from tests.family.ties import prove_equal_up_to_ties


def differing(ours: bytes, theirs, checkpoint_path, adapter_path=None, layers=None) -> int:
    """Ties between our export and upstream's file; anything else fails."""
    if ours == theirs.read_bytes():
        return 0
    checkpoint = read_checkpoint(checkpoint_path)
    replaced = merge(checkpoint, read_adapter(adapter_path)) if adapter_path else {}
    parameters = Parameters(checkpoint, replaced, kept_layers(checkpoint, layers))
    container = read_container(ours)

    def weights(name: str) -> np.ndarray:
        if name.startswith("heads."):
            _, head, field = name.split(".")
            return dict(parameters.head(head))[field]
        return parameters.array(name)

    count = prove_equal_up_to_ties(container, read_container(theirs), weights)
    print(f"{theirs.name}: {count} ties")
    return count


def test_a_base_with_all_three_heads_equals_upstreams(upstream_files, export, tmp_path):
    theirs = upstream.build(upstream_files.checkpoint, tmp_path / "base.cact")
    ours = export(upstream_files.checkpoint)
    assert differing(ours, theirs, upstream_files.checkpoint) <= 2
    assert read_container(ours).head_names == ("embedding", "confidence", "router")


@pytest.mark.slow
def test_a_member_with_an_adapter_loses_the_confidence_head_as_upstreams_does(
    upstream_files, export, tmp_path
):
    checkpoint, adapter = upstream_files.checkpoint, upstream_files.adapter
    theirs = upstream.build(checkpoint, tmp_path / "tuned.cact", adapter=adapter)
    ours = export(checkpoint, adapter)
    assert differing(ours, theirs, checkpoint, adapter) <= 2
    assert read_container(ours).head_names == ("embedding", "router")


@pytest.mark.slow
def test_heads_keep_leaves_the_confidence_head_where_the_base_has_it(upstream_files, export):
    base = read_container(export(upstream_files.checkpoint))
    tuned = read_container(export(upstream_files.checkpoint, upstream_files.adapter, heads="keep"))
    assert tuned.records == base.records
    dropped = read_container(export(upstream_files.checkpoint, upstream_files.adapter))
    assert dropped.head_names == ("embedding", "router")
    for name in ("probes", "query", "proj", "bias"):
        assert tuned.raw(f"heads.confidence.{name}") == base.raw(f"heads.confidence.{name}")


@pytest.mark.slow
@pytest.mark.parametrize("layers", [2, 4])
@pytest.mark.parametrize("tuned", [False, True])
def test_a_depth_rung_equals_upstreams(upstream_files, export, tmp_path, layers, tuned):
    checkpoint, adapter = upstream_files.checkpoint, upstream_files.adapter if tuned else None
    theirs = upstream.build(checkpoint, tmp_path / "rung.cact", adapter=adapter, layers=layers)
    ours = export(checkpoint, adapter, layers=layers)
    assert differing(ours, theirs, checkpoint, adapter, layers) <= 2
    assert read_container(ours).header.layer_count == layers


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"d_model": 96, "num_heads": 3, "num_kv_heads": 1, "engram_heads": 2},
        {"out_vocab": 1000, "sliding_window": 0, "global_layers": (), "qkv_conv_taps": 0},
        {"engram_orders": (2, 3, 4), "engram_seed_heads": 3, "mhc_lanes": 2, "kv_window": 200},
        {"d_model": 256, "max_seq_len": 8192, "kv_bits": 4, "engram_layers": ()},
    ],
    ids=["padded", "plain", "orders", "long"],
)
def test_other_geometries_equal_upstreams(export, tmp_path, changes):
    checkpoint = upstream.write_checkpoint(
        tmp_path / "c.safetensors",
        seed=3,
        num_layers=2,
        **({"engram_layers": (0,), "global_layers": (1,)} | changes),
    )
    theirs = upstream.build(checkpoint, tmp_path / "theirs.cact")
    assert differing(export(checkpoint), theirs, checkpoint) <= 2


@pytest.mark.slow
def test_a_carried_ladder_order_decides_which_blocks_stay(export, tmp_path):
    # Of the engrams at layers 1 and 3 the second stays.
    checkpoint = upstream.write_checkpoint(tmp_path / "c.safetensors", ladder_order=(4, 0, 3, 1, 2))
    theirs = upstream.build(checkpoint, tmp_path / "theirs.cact", layers=3)
    assert differing(export(checkpoint, layers=3), theirs, checkpoint, layers=3) <= 2


@pytest.mark.slow
def test_a_width_ladder_keeps_the_split_permutations_that_it_was_trained_with(export, tmp_path):
    # `needle build` forgets them (finetune.rung clears ladder_widths); upstream's model and exporter do not.
    checkpoint = upstream.write_checkpoint(tmp_path / "c.safetensors", num_layers=4, ladder_widths=(64,))
    params, config = run.load_checkpoint(str(checkpoint))
    theirs = upstream.write(params, config, tmp_path / "theirs.cact")
    assert differing(export(checkpoint), theirs, checkpoint) <= 2


PARTIAL = (
    "qk_head_dim",
    "v_head_dim",
    "sliding_window",
    "global_layers",
    "qkv_conv_taps",
    "dtype",
    "kv_bits",
)


@pytest.mark.slow
def test_a_partial_config_is_filled_as_upstream_fills_it(export, tmp_path):
    # 32 = d_model / heads is what absent head sizes stand for, so the tensors still fit; the taps do not.
    path = tmp_path / "c.safetensors"
    checkpoint = upstream.write_checkpoint(path, qk_head_dim=32, v_head_dim=32, drop=PARTIAL)
    theirs = upstream.build(checkpoint, tmp_path / "theirs.cact")
    ours = export(checkpoint, unused_tensors="drop")
    assert differing(ours, theirs, checkpoint) <= 2
    header = read_container(ours).header
    assert (header.qkv_conv_taps, header.sliding_window, header.global_layers) == (0, 0, ())


def test_a_partial_config_that_switches_tensors_off_is_refused_unless_asked_for(
    upstream_files, export, tmp_path
):
    metadata, tensors = read_safetensors(upstream_files.checkpoint)
    config = {name: value for name, value in json.loads(metadata["config"]).items() if name not in PARTIAL}
    save_file(tensors, tmp_path / "c.safetensors", metadata | {"config": json.dumps(config)})
    with pytest.raises(FamilyError, match=r"k_taps, .*q_taps, .*v_taps; .*unused_tensors") as caught:
        export(tmp_path / "c.safetensors")
    assert caught.value.code == "unused_tensors"


@pytest.mark.slow
def test_a_rank_sixteen_adapter_equals_upstreams(upstream_files, export, tmp_path):
    checkpoint = upstream_files.checkpoint
    adapter = upstream.write_adapter(tmp_path / "a.safetensors", checkpoint, rank=16, seed=9)
    theirs = upstream.build(checkpoint, tmp_path / "theirs.cact", adapter=adapter)
    assert differing(export(checkpoint, adapter), theirs, checkpoint, adapter) <= 2


@pytest.fixture(scope="module")
def container(upstream_files, export) -> Container:
    return read_container(export(upstream_files.checkpoint, layers=2))


class TestTheTieProof:
    """The proof must be able to fail."""

    @pytest.fixture
    def weights(self, upstream_files):
        checkpoint = read_checkpoint(upstream_files.checkpoint)
        return Parameters(checkpoint, {}, kept_layers(checkpoint, 2)).array

    def changed(self, container: Container, name: str, codes: np.ndarray, norms: np.ndarray) -> Container:
        record = container.record(name)
        blobs = blobs_of(container)
        blobs[record.index] = cq_blob(codes, norms, record.bits, record.shape[1])
        return read_container(write_container(container.header, blobs))

    def test_it_rejects_a_code_that_moved_without_a_tie(self, container, weights):
        codes, norms = container.codes("layers.0.q_proj"), container.norms("layers.0.q_proj")
        codes[3, 5] ^= 1
        other = self.changed(container, "layers.0.q_proj", codes, norms)
        with pytest.raises(AssertionError, match=r"no tie|no neighbours"):
            prove_equal_up_to_ties(other, container, weights)

    def test_it_rejects_a_norm_that_moved_without_a_tie(self, container, weights):
        codes, norms = container.codes("layers.0.q_proj"), container.norms("layers.0.q_proj").copy()
        norms[3, 0] = np.nextafter(norms[3, 0], np.float16(10))
        other = self.changed(container, "layers.0.q_proj", codes, norms)
        with pytest.raises(AssertionError, match="no tie"):
            prove_equal_up_to_ties(other, container, weights)

    def test_it_rejects_another_header(self, container, weights):
        header = dataclasses.replace(container.header, kv_window=7)
        other = read_container(write_container(header, blobs_of(container)))
        with pytest.raises(AssertionError):
            prove_equal_up_to_ties(other, container, weights)

    def test_it_counts_a_real_tie(self, container):
        name = "layers.0.q_proj"
        codes, norms = container.codes(name), container.norms(name)
        weights = container.tensor(name)
        # A unit vector with one rotated value exactly between two levels is a tie by construction.
        from builder.cact.codes import hadamard, levels
        from builder.cact.layout import CODEBOOKS

        values = levels(4, CODEBOOKS).astype(np.float64)
        rotated = np.full(128, np.sqrt((1 - ((values[7] + values[8]) / 2) ** 2) / 127))
        rotated[0] = (values[7] + values[8]) / 2
        weights[0, :128] = rotated @ hadamard().astype(np.float64)
        codes[0, 0] = 7
        one = self.changed(container, name, codes, norms)
        codes[0, 0] = 8
        two = self.changed(container, name, codes, norms)
        assert prove_equal_up_to_ties(one, two, lambda _: weights) == 1


def test_the_config_model_names_only_fields_that_upstream_has():
    fields = architecture.TransformerConfig.__dataclass_fields__
    from builder.family.checkpoint import CheckpointConfig

    assert set(CheckpointConfig.model_fields) <= set(fields)
    for name, field in CheckpointConfig.model_fields.items():
        saved = architecture.TransformerConfig.from_saved({})
        assert getattr(saved, name) == field.default, name
