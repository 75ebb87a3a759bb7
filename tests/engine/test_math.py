"""The engine's own exp, log, sine and cosine against numpy's extended precision."""

from __future__ import annotations

import math

import numpy as np
import pytest

from builder.runtime.host import Instance

pytestmark = pytest.mark.slow


def _apply(probe: Instance, name: str, x: np.ndarray, outputs: int = 1) -> np.ndarray:
    source = probe.place(x.tobytes())
    target = probe.reserve(x.nbytes * outputs)
    probe.call(name, source, target, len(x))
    return np.frombuffer(probe.read(target, x.nbytes * outputs), x.dtype).reshape(len(x), outputs).squeeze()


def _ulps(found: np.ndarray, exact: np.ndarray) -> float:
    return float(np.max(np.abs(found - exact) / np.spacing(np.abs(exact.astype(found.dtype)))))


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(5)


def test_exp_of_floats_is_within_one_ulp(probe, rng):
    x = np.concatenate([rng.uniform(-86.9, 88, 200_000), rng.standard_normal(100_000)]).astype("<f4")
    assert _ulps(_apply(probe, "probe_expf", x), np.exp(x.astype(np.float64))) < 1.0


def test_exp_of_floats_is_bounded_at_both_ends(probe):
    x = np.array([-1e30, -100, -87.01, 0, 88.1, 1e30, -np.inf, np.inf], "<f4")
    found = _apply(probe, "probe_expf", x)
    assert found[:4].tolist() == [0, 0, 0, 1]
    assert found[6] == 0
    assert np.all(found[[4, 5, 7]] == _apply(probe, "probe_expf", np.array([88, 88], "<f4"))[0])


def test_exp_of_doubles_is_within_two_ulps(probe, rng):
    x = rng.uniform(-700, 709, 100_000)
    assert _ulps(_apply(probe, "probe_exp", x), np.exp(x.astype(np.longdouble))) < 2.0


def test_log_of_doubles_is_within_two_ulps(probe, rng):
    x = np.exp(rng.uniform(-80, 80, 100_000))
    assert _ulps(_apply(probe, "probe_log", x), np.log(x.astype(np.longdouble))) < 2.0


def test_sine_and_cosine_are_right_up_to_the_longest_context(probe, rng):
    x = np.concatenate([rng.uniform(0, 2**20, 50_000), np.arange(20_000) * (math.pi / 2), [0.0, 2.0**20]])
    found = _apply(probe, "probe_sincos", x, outputs=2)
    assert np.abs(found[:, 0] - np.vectorize(math.sin)(x)).max() < 3e-16
    assert np.abs(found[:, 1] - np.vectorize(math.cos)(x)).max() < 3e-16
