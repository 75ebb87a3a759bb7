from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from builder.experts import AnchorDeltas, ExpertPackage, TransformersCausalLM
from tests.cli.conftest import Run, run
from tests.experts.tiny_models import package_for

__all__ = ["run"]  # the fixture


@pytest.fixture
def small(model: TransformersCausalLM, tmp_path: Path) -> ExpertPackage:
    mode = AnchorDeltas(deltas_max=1)
    package = package_for(
        model, "small", ("a:0", "b:0"), seed=1, kind="low_rank_delta", layers=(2,), mode=mode
    )
    return package.save(tmp_path / "small")


def test_show_lists_experts_in_candidate_order_and_one_tensor_per_line(
    run: Run, small: ExpertPackage
) -> None:
    code, out, err = run("experts", "show", small.package_directory)
    assert code == 0
    assert out.splitlines() == [
        "name      small",
        f"identity  {small.identity}",
        "mode      anchor_plus_deltas deltas_max=1 combination=unit",
        "features  identity, width 16",
        "expert    layer 2 candidate 1  a:0  low_rank_delta  p2-0",
        "expert    layer 2 candidate 2  b:0  low_rank_delta  p2-1",
        "tensor    payloads/p2-0/down.weight  float32  2x16",
        "tensor    payloads/p2-0/up.weight  float32  16x2",
        "tensor    payloads/p2-1/down.weight  float32  2x16",
        "tensor    payloads/p2-1/up.weight  float32  16x2",
        "tensor    routers/layers.2.experts.a:0.bias  float32  scalar",
        "tensor    routers/layers.2.experts.a:0.weight  float32  16",
        "tensor    routers/layers.2.experts.b:0.bias  float32  scalar",
        "tensor    routers/layers.2.experts.b:0.weight  float32  16",
    ]
    assert err == "show: 8 tensors, 0 mismatches\n"


def test_show_as_json_is_one_document(run: Run, small: ExpertPackage) -> None:
    code, out, _ = run("experts", "show", small.package_directory, "--json")
    assert code == 0
    document = json.loads(out)
    assert document["identity"] == small.identity
    assert document["layers"]["2"][1] == {
        "candidate": 2,
        "expert": "b:0",
        "payload": "p2-1",
        "kind": "low_rank_delta",
    }


def test_verify_prints_the_identity_and_refuses_another(run: Run, small: ExpertPackage) -> None:
    directory = small.package_directory
    size = 4 * (2 * (2 * 16 + 16 * 2) + 2 * (16 + 1))  # two deltas of rank 2, two heads
    line = f"{directory}  {size} B  {small.identity}\n"
    assert run("experts", "verify", directory) == (0, line, "verify: 8 tensors, 0 mismatches\n")
    assert run("experts", "verify", directory, "--identity", small.identity)[0] == 0
    code, out, err = run("experts", "verify", directory, "--identity", "0" * 64)
    assert (code, out) == (1, "")
    assert err == f"experts: {directory}: identity: is {small.identity}, must be {'0' * 64}\n"


def test_a_broken_package_gives_one_sentence_and_no_traceback(run: Run, small: ExpertPackage) -> None:
    (small.package_directory / "payloads" / "p2-0.safetensors").write_bytes(b"no")
    for action in ("show", "verify"):
        code, out, err = run("experts", action, small.package_directory)
        assert (code, out) == (1, "")
        assert err.startswith("experts: ")
        assert err.count("\n") == 1
    assert run("experts", "show", small.package_directory / "nowhere")[0] == 1
    assert run("experts")[0] == 2
    assert run("experts", "paint", small.package_directory)[0] == 2


def test_help_does_not_import_torch(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('torch was imported')")
    done = subprocess.run(
        [sys.executable, "-m", "builder", "experts", "--help"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "list what is in an expert package" in done.stdout


def test_without_torch_the_command_says_what_to_install(tmp_path: Path, small: ExpertPackage) -> None:
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError('No module named torch', name='torch')")
    done = subprocess.run(
        [sys.executable, "-m", "builder", "experts", "show", str(small.package_directory)],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    step = "install it with: pip install 'saguaro[experts]'"
    assert done.stderr == f"experts: the experts library needs an optional part; {step}\n"
