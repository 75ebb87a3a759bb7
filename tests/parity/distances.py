"""How far apart the programs are: `python -m tests.parity.distances` prints the table of docs/reference.md.

Each figure is the root mean square of the difference over that of the logits, over all positions of some
prompts and their greedy answers. Upstream's `quant=True` stands there for information; docs/reference.md
says why it is no target.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from builder.cact.reader import read_container
from builder.family.export import export_family
from builder.family.family import load_family
from builder.reference.generation import generate
from builder.reference.prompts import render_prompt
from builder.reference.session import ReferenceModel
from builder.runtime.engine import Engine
from builder.runtime.interface import Model, Sampling
from tests.conftest import DEMO
from tests.engine.generation_2 import HEADER, write_generation_2
from tests.parity.compare import distance
from tests.parity.golden_generation_2 import IDS
from tests.parity.oracle_jax import JaxOracle
from tests.parity.random_models import GEOMETRIES, PUBLISHED, write_random_model
from tests.parity.recording import dispatch_family
from tests.parity.test_random_parity import prompts

QUERIES = (
    "hello",
    "turn on the bedroom light",
    "set a timer for 10 minutes for the pasta",
    "play Bach",
    "book gym Friday 9:00",
)
ANSWER_TOKENS = 30
HEADINGS = ("model", "positions", "reference - JAX", "engine - reference", "JAX quant - JAX", "same argmax")


def main() -> None:
    """Print one line per model."""
    torch.set_num_threads(1)
    print("| " + " | ".join(HEADINGS) + " |")
    print("|---" * len(HEADINGS) + "|")
    with tempfile.TemporaryDirectory() as folder:
        for name, path, split, sequences in _models(Path(folder)):
            print("| " + " | ".join(_row(name, path, split, sequences)) + " |", flush=True)


def _models(folder: Path) -> Iterator[tuple[str, Path, bool, list[list[int]]]]:
    """Name, file, whether its permutations are split, and ids to compare."""
    family = load_family(DEMO / "family.toml")
    export_family(family, folder)
    dispatch = dispatch_family(family)
    for member in (dispatch.base, dispatch.router, *dispatch.specialists):
        path = folder / f"{member.id}.cact"
        model = ReferenceModel(read_container(path))
        encoded = [model.encode(render_prompt(member.prompt, [query], 0)) for query in QUERIES]
        sequences = [_answered(model, [model.info.bos_id, *ids]) for ids in encoded]
        yield f"demo {member.id}", path, False, sequences
    for seed, (name, geometry) in enumerate({**GEOMETRIES, "published": PUBLISHED}.items()):
        path = write_random_model(folder / f"random-{name}.cact", geometry, seed)
        model = ReferenceModel(read_container(path))
        sequences = [_answered(model, ids) for _, ids in prompts(model)]
        yield f"random {name}", path, name == "split_permutations", sequences
    path = folder / "generation-2.cact"
    path.write_bytes(write_generation_2(HEADER, seed=22))
    yield "random generation 2", path, False, [IDS]


def _answered(model: Model, prompt: list[int]) -> list[int]:
    return [*prompt, *generate(model, prompt, ANSWER_TOKENS, Sampling()).token_ids]


def _row(name: str, path: Path, split: bool, sequences: list[list[int]]) -> tuple[str, ...]:
    network = ReferenceModel(read_container(path)).network
    with torch.inference_mode():
        reference = np.concatenate([network(torch.tensor([ids]))[0].numpy() for ids in sequences])
    engine = np.concatenate([_engine_logits(path, ids) for ids in sequences])
    if network.header.generation == 2:  # upstream's answers are kept in tests/golden/generation_2.json
        return name, str(len(engine)), "", f"{distance(engine, reference):.1e}", "", ""
    exact, quant = (
        np.concatenate([oracle.logits(ids) for ids in sequences])
        for oracle in (JaxOracle(path, quant=on, split_permutations=split) for on in (False, True))
    )
    same = (quant.argmax(-1) == exact.argmax(-1)).mean()
    figures = (distance(reference, exact), distance(engine, reference), distance(quant, exact))
    return name, str(len(exact)), *(f"{figure:.1e}" for figure in figures), f"{same:.1%}"


def _engine_logits(path: Path, ids: Sequence[int]) -> np.ndarray:
    session = Engine().open(path.read_bytes()).session(len(ids))
    rows = []
    for token_id in ids:
        session.append([token_id])
        rows.append(session.logits())
    return np.stack(rows)


if __name__ == "__main__":
    main()
