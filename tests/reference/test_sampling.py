from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.errors import UsageError
from builder.reference.sampling import draw, log_softmax, pcg32
from builder.runtime.interface import Sampling

LOGITS = np.array([1.0, 3.0, 2.0, 3.0, -1.0, 0.5], np.float32)
PROBABILITIES = np.exp(LOGITS.astype(np.float64)) / np.exp(LOGITS.astype(np.float64)).sum()
ALL = set(range(6))
DRAWS = 4000


def draws(count=DRAWS, logits=LOGITS, **options):
    sampling = Sampling(**{"temperature": 1.0, "random_state": 42, **options})
    return [draw(logits, sampling) for _ in range(count)]


def test_greedy_takes_the_largest_logit_and_the_lower_of_equals():
    sampling = Sampling(random_state=5)
    assert draw(LOGITS, sampling) == 1
    assert sampling.random_state == 5


def test_pcg32_gives_the_numbers_of_its_authors():
    # pcg32-demo of the PCG reference (https://www.pcg-random.org): seed 42, sequence 54, round 1.
    increment = (54 << 1) | 1
    state = (increment + 42) * 6364136223846793005 + increment
    numbers = []
    for _ in range(6):
        # Theirs outputs from the state before its step, ours after its own: step back with our increment.
        old, state = state % 2**64, state * 6364136223846793005 + increment
        before = (old - 1442695040888963407) * pow(6364136223846793005, -1, 2**64) % 2**64
        numbers.append(pcg32(before)[1])
        assert pcg32(before)[0] == old
    assert numbers == [0xA15C02B7, 0x7B47F409, 0xBA1D3330, 0x83D2F293, 0xBFA4784B, 0xCBED606E]


def test_draws_follow_the_probabilities():
    counts = np.bincount(draws(), minlength=6)
    np.testing.assert_allclose(counts / DRAWS, PROBABILITIES, atol=4 * np.sqrt(0.25 / DRAWS))


def test_temperature_flattens_the_distribution():
    counts = np.bincount(draws(temperature=1000.0), minlength=6)
    np.testing.assert_allclose(counts / DRAWS, np.full(6, 1 / 6), atol=4 * np.sqrt(0.25 / DRAWS))


def test_a_seed_is_reproducible_and_another_seed_differs():
    assert draws(50) == draws(50)
    assert draws(50) != draws(50, random_state=43)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("top_k", "allowed"), [(1, {1}), (2, {1, 3}), (3, {1, 2, 3}), (6, set(range(6))), (99, set(range(6)))]
)
def test_top_k_keeps_the_likeliest(top_k, allowed):
    assert set(draws(top_k=top_k)) == allowed


def test_among_equal_logits_the_lower_ids_are_kept():
    every_other = (np.arange(500) % 2 == 0).astype(np.float32)
    assert set(draws(200, logits=every_other, top_k=3)) == {0, 2, 4}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("top_p", "allowed"), [(1e-6, {1}), (0.37, {1}), (0.39, {1, 3}), (0.9, {1, 2, 3}), (1.0, set(range(6)))]
)
def test_top_p_keeps_the_shortest_prefix_that_holds_the_mass(top_p, allowed):
    assert set(draws(top_p=top_p)) == allowed


@pytest.mark.parametrize(
    "bad",
    [
        *({"temperature": value} for value in (-0.1, 1.1e6, float("nan"), float("inf"))),
        *({"top_p": value} for value in (0.0, 1.01, float("nan"))),
        *({"top_k": value} for value in (-1, 1 << 32)),
        *({"random_state": value} for value in (-1, 1 << 64)),
    ],
)
def test_a_parameter_out_of_its_range_is_refused(bad):
    with pytest.raises(UsageError, match=f"sampling: {next(iter(bad))}: is") as caught:
        draws(1, **bad)
    assert caught.value.code == "bad_argument"


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(-80, 80, width=32), min_size=1, max_size=20))
def test_log_probabilities_sum_to_one(values):
    assert np.exp(log_softmax(np.array(values, np.float32))).sum() == pytest.approx(1)
