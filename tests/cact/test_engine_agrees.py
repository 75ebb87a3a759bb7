"""The engine enforces the same law: for every file, the same code as the Python reader."""

from __future__ import annotations

import random

import pytest

from builder.cact.reader import read_container
from builder.errors import SaguaroError
from builder.runtime.engine import Engine
from tests.cact.hostile import GEN_2, GEN_3, WIDTHS, hostile_files

FILES = hostile_files()


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine()


def code_of(read, data: bytes) -> str:
    try:
        read(data)
    except SaguaroError as error:
        return error.code
    return "taken"


@pytest.mark.parametrize("hostile", FILES, ids=lambda hostile: hostile.name.replace(" ", "_"))
def test_the_engine_gives_the_same_code(engine, hostile):
    assert code_of(engine.open, hostile.data) == hostile.code


def test_the_engine_takes_what_we_take(engine):
    assert code_of(engine.open, GEN_3) == "taken"
    # The container is valid; running generation 2 is another question.
    assert code_of(engine.open, GEN_2) in {"taken", "cact_unsupported"}


@pytest.mark.slow
@pytest.mark.parametrize("data", [GEN_3, WIDTHS], ids=["gen_3", "widths"])
def test_random_damage_gives_the_same_code(engine, data):
    rng = random.Random(5)
    end = read_container(data).records[0].offset_bytes
    for _ in range(60):
        damaged = bytearray(data)
        at = rng.randrange(end if rng.random() < 0.7 else len(data))
        damaged[at] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, damaged[at] ^ 1 << rng.randrange(8)])
        ours = code_of(read_container, bytes(damaged))
        assert code_of(engine.open, bytes(damaged)) == ours, f"byte {at} is {damaged[at]}"
