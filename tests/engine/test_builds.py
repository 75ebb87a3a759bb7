"""Other builds of the same sources: equal logits bit for bit, and nothing that the sanitizers find."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.runtime.engine import NUMERICS, Engine
from builder.runtime.status import STATUS_CODES
from tests.engine.damage import damaged
from tests.engine.generation_2 import HEADER, write_generation_2
from tests.engine.heads_of_generation_2 import with_heads
from tests.engine.test_container import python_verdict
from tests.parity.random_models import GEOMETRIES

HERE = Path(__file__).parent
IDS = [(i * i * 7 + 3 * i + 1) for i in range(70)]
"""What driver.c appends, before the remainder by the number of logits."""


def digest(engine: Engine, path: Path, numerics: str = "exact") -> str:
    """SHA-256 of the logits after IDS and of what the heads say, as driver.c prints it."""
    model = engine.open(path.read_bytes(), numerics=numerics)
    session = model.session(80, model.info.heads)
    session.append([token_id % model.info.logit_count for token_id in IDS])
    said = (session.head(name).tobytes() for name in model.info.heads)
    return hashlib.sha256(session.logits().tobytes() + b"".join(said)).hexdigest()


def drive(program: Path, numerics: str, paths: list[Path]) -> list[tuple[str, str]]:
    """(code, hash or field) of each file; fails where a sanitizer stops the program."""
    done = subprocess.run([program, numerics, *paths], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = [line.split(" ", 1) for line in done.stdout.splitlines()]
    return [(STATUS_CODES[int(status)], rest) for status, rest in lines]


@pytest.fixture(scope="module")
def native(build, gcc, tmp_path_factory) -> Path:
    output = tmp_path_factory.mktemp("native") / "driver"
    return build.compile_native(output, [HERE / "driver.c"], sanitize=False)


@pytest.fixture(scope="module")
def sanitized_driver(sanitized, tmp_path_factory) -> Path:
    return sanitized(tmp_path_factory.mktemp("sanitized") / "driver", [HERE / "driver.c"])


@pytest.mark.slow
def test_plain_c_simd_relaxed_and_native_builds_give_the_same_logits(
    engine, relaxed_wasm, build, native, random_files, tmp_path
):
    scalar = Engine(build.compile_wasm(tmp_path / "scalar.wasm", scalar=True).read_bytes())
    relaxed = Engine(relaxed_wasm)
    paths = [*(random_files[name] for name in GEOMETRIES), tmp_path / "generation_2.cact"]
    paths[-1].write_bytes(with_heads(write_generation_2(HEADER, seed=31), seed=5))
    for numerics in NUMERICS:
        expected = [("ok", digest(engine, path, numerics)) for path in paths]
        for build_of_it in (scalar, relaxed):
            assert [("ok", digest(build_of_it, path, numerics)) for path in paths] == expected
        assert drive(native, numerics, paths) == expected


@pytest.mark.slow
@settings(deadline=None, max_examples=8)
@given(st.data())
def test_the_sanitizers_find_nothing_in_damaged_files(sanitized_driver, tiny, tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("damaged")
    broken = data.draw(st.lists(damaged(tiny), min_size=40, max_size=40))
    paths = [folder / f"{i}.cact" for i in range(len(broken))]
    for path, content in zip(paths, broken, strict=True):
        path.write_bytes(content)
    found = [code for code, _ in drive(sanitized_driver, data.draw(st.sampled_from(NUMERICS)), paths)]
    assert found == [python_verdict(content) for content in broken]


@pytest.mark.slow
@pytest.mark.parametrize("numerics", NUMERICS)
def test_the_sanitizers_find_nothing_in_a_whole_model(sanitized_driver, engine, random_files, numerics):
    path = random_files["mixed_bits"]
    assert drive(sanitized_driver, numerics, [path]) == [("ok", digest(engine, path, numerics))]
