"""The worker's own modules in node, on the real engine, against the same engine in wasmtime."""

from __future__ import annotations

import json
import subprocess
from importlib import resources
from pathlib import Path

import pytest

from builder.reference.generation import Generation, generate
from builder.runtime.engine import Engine
from builder.runtime.interface import Sampling
from tests.parity.recording import logits_sha256
from tests.web.test_javascript import FOLDER, NODE

GOLDEN = FOLDER.parent / "golden"
FIXED, PROMPT = "abba", "abba" + "cab" * 21
"""The prompt is longer than the KV window of 32."""
ROOM_TOKENS = 12
SEEDS = {"tiny83": 9, "tiny84": 0}
"""Draws that come to an end after a few tokens."""


def in_worker(path: Path, seed: int, fixed: str) -> dict:
    sampling = {"temperature": 1.5, "top_p": 1, "top_k": 0, "seed": seed}
    request = {
        "fixed": fixed,
        "prompts": [PROMPT],
        "tools": "",
        "maxNewTokens": ROOM_TOKENS,
        "sampling": sampling,
    }
    wasm = resources.files("builder.runtime").joinpath("engine.wasm")
    command = [NODE, "worker_model.mjs", str(wasm), path, json.dumps(request | {"trace": True})]
    done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def in_python(path: Path, seed: int, fixed: str) -> Generation:
    model = Engine().open(path.read_bytes())
    pinned = 1 + len(model.encode(fixed))
    ids = [model.info.bos_id, *model.encode(PROMPT)]
    sampling = Sampling(temperature=1.5, random_state=seed)
    return generate(model, ids, ROOM_TOKENS, sampling, pinned=pinned, keep_logits=True)


@pytest.mark.parametrize("name", SEEDS)
def test_a_worker_pins_and_judges_as_python_does(name: str):
    path, seed = GOLDEN / f"{name}.cact", SEEDS[name]
    ours, theirs = in_python(path, seed, FIXED), in_worker(path, seed, FIXED)
    assert ours.stop_reason == theirs["stopReason"] == "stop"
    assert len(ours.token_ids) > 3
    assert theirs["tokenIds"] == ours.token_ids
    assert theirs["logitsSha256"] == [logits_sha256(row) for row in ours.logits]
    assert theirs["confidence"] == ours.confidence
    unpinned = in_python(path, seed, "")
    assert (logits_sha256(unpinned.logits[0]) == theirs["logitsSha256"][0]) == (name == "tiny84")
