"""How far the engine's logits are from the official engine's, on the random 45 M file of generation 2.

    SAGUARO_OFFICIAL_WASM=needle.wasm python -m bench.official_distance DIR

Owns: the comparison that the official interface does not offer (official_logits.mjs says where the logits
come from). DIR is that of `bench.engine --full-size`. The numerics of both differ in what docs/numerics.md
lists, so the distance says how alike they are, not which is right: `exact` is the yardstick for that.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.full_size_models import write_models
from builder.cact.layout import TAG_82
from builder.cact.reader import read_container
from builder.cact.writer import blobs_of, write_container
from builder.runtime.engine import NUMERICS, Engine

SCRIPT = Path(__file__).with_name("official_logits.mjs")
PROMPTS = (
    "turn on the lamp in the kitchen",
    "what is the weather of tomorrow in the town where my sister lives",
    "remind me to water the saguaro every second week, please",
    "play the song that we heard in the car yesterday and then dim the lights",
)


def official_logits(wasm: Path, model: Path, prompt: str) -> tuple[list[int], NDArray[np.float64]]:
    node = Path(sys.executable).with_name("node")
    command = [
        str(node),
        str(SCRIPT),
        str(wasm.with_name("needle2-runtime.js")),
        str(wasm),
        str(model),
        prompt,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    answer = json.loads(done.stdout.splitlines()[-1])
    return answer["ids"], np.array(answer["logits"])


def main() -> int:
    official = os.environ.get("SAGUARO_OFFICIAL_WASM")
    if len(sys.argv) != 2 or not official:
        print(__doc__, file=sys.stderr)
        return 2
    path, _ = write_models(Path(sys.argv[1]))
    container = read_container(path)
    models = {name: Engine().open(path.read_bytes(), name=path.name, numerics=name) for name in NUMERICS}
    rows: dict[str, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        older = Path(folder) / "older_tag.cact"  # the only one that it reads
        header = dataclasses.replace(container.header, tag=TAG_82)
        older.write_bytes(write_container(header, blobs_of(container)))
        for prompt in PROMPTS:
            ids, found = official_logits(Path(official), older, prompt)
            ours = {}
            for name, model in models.items():
                session = model.session(len(ids))
                session.append(ids)
                ours[name] = session.logits().astype(np.float64)
            for label, a, b in (
                ("official to exact", found, ours["exact"]),
                ("fast to exact", ours["fast"], ours["exact"]),
                ("fast to official", ours["fast"], found),
            ):
                cosine = float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))
                rows.setdefault(label, []).append((cosine, float(np.linalg.norm(a - b) / np.linalg.norm(b))))
    for label, pairs in rows.items():
        cosine, distance = np.mean(pairs, axis=0)
        print(f"{label:20} cosine {cosine:.6f}, root mean square of the difference {100 * distance:.2f} %")
    return 0


if __name__ == "__main__":
    sys.exit(main())
