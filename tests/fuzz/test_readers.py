"""The Python targets of fuzzing over their seeds and damaged forms of them, without a fuzzer."""

from __future__ import annotations

import pytest

from tests.fuzz.mutations import mutations
from tests.fuzz.readers import READERS

ROUNDS = {"container": 60, "patch": 3, "manifest": 400, "package": 15}


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_only_our_own_errors_come_out(name: str) -> None:
    take, seeds = READERS[name]
    for number, seed in enumerate(seeds()):
        take(seed)
        for damaged in mutations(seed, ROUNDS[name], number):
            take(damaged)
