"""Drawing ids: against docs/numerics.md written out in Python, and against the distribution that it means."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.errors import UsageError
from builder.runtime.engine import EngineSession
from builder.runtime.interface import Sampling

MULTIPLIER, INCREMENT, WORD = 6364136223846793005, 1442695040888963407, 2**64
singles = st.floats(0.0625, 4, width=32)


@pytest.fixture(scope="module")
def session(engine, random_files) -> EngineSession:
    session = engine.open(random_files["no_taps_out_vocab"].read_bytes()).session(8)
    session.append([1, 2, 3, 4])
    return session


def next_word(state: int) -> tuple[int, int]:
    """PCG-XSH-RR 64/32, from O'Neill's paper (section 6.3): new state, 32 bits."""
    state = (state * MULTIPLIER + INCREMENT) % WORD
    shifted, turn = ((state >> 18 ^ state) >> 27) % 2**32, state >> 59
    return state, (shifted >> turn | shifted << (-turn % 32)) % 2**32


def expected_draw(logits: np.ndarray, sampling: Sampling) -> tuple[int, int]:
    """The id and the new state, by the five steps of docs/numerics.md."""
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))[: sampling.top_k or None]
    temperature, top_p = float(np.float32(sampling.temperature)), float(np.float32(sampling.top_p))
    top = float(logits[order[0]])
    sums = list(accumulate(float(np.exp((float(logits[i]) - top) / temperature)) for i in order))
    count = next(i for i, total in enumerate(sums) if total >= top_p * sums[-1]) + 1
    state, word = next_word(sampling.random_state)
    target = (word >> 8) / 2**24 * sums[count - 1]
    return order[next((i for i in range(count) if sums[i] > target), count - 1)], state


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(
    temperature=singles,
    top_p=st.floats(1 / 64, 1, width=32),
    top_k=st.integers(0, 720),
    state=st.integers(0, WORD - 1) | st.integers(0, 9),
)
def test_a_draw_follows_the_rules_to_the_letter(session, temperature, top_p, top_k, state):
    sampling = Sampling(temperature, top_p, top_k, state)
    expected = expected_draw(session.logits(), sampling)
    assert (session.sample(sampling), sampling.random_state) == expected


@pytest.mark.slow
def test_draws_follow_the_distribution(session):
    logits = session.logits().astype(np.float64)
    kept = np.argsort(-logits)[:5]
    weights = np.exp(logits[kept] - logits[kept[0]])
    sampling = Sampling(1.0, 1.0, top_k=5, random_state=1)
    draws = 4000
    counts = Counter(session.sample(sampling) for _ in range(draws))
    expected = draws * weights / weights.sum()
    assert set(counts) <= set(kept.tolist())
    deviation = sum((counts[int(i)] - e) ** 2 / e for i, e in zip(kept, expected, strict=True))
    assert deviation < 23.5  # chi-squared, 4 degrees of freedom: one in ten thousand


def test_small_seeds_differ_from_the_first_draw_on(session):
    assert len({session.sample(Sampling(2.0, random_state=seed)) for seed in range(20)}) > 10


def test_greedy_takes_the_largest_logit_and_leaves_the_random_state_alone(session):
    sampling = Sampling(random_state=77)
    assert session.sample(sampling) == int(session.logits().argmax())
    assert sampling.random_state == 77


def test_a_tie_goes_to_the_lower_id(engine, tied_container):
    session = engine.open(tied_container).session(4)
    session.append([7])
    logits = session.logits()
    best = np.flatnonzero(logits == logits.max())
    assert len(best) > 1
    assert session.sample(Sampling()) == best[0]
    assert session.sample(Sampling(1.0, top_k=1)) == best[0]


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(-0.1),
        Sampling(float("nan")),
        Sampling(2e6),
        Sampling(1.0, 0.0),
        Sampling(1.0, 1.5),
        Sampling(0.0, -1.0),
    ],
)
def test_parameters_without_a_meaning_are_refused(session, sampling):
    with pytest.raises(UsageError) as caught:
        session.sample(sampling)
    assert caught.value.code == "bad_argument"
