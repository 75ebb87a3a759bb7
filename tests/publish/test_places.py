"""Where `pack` may write: `--out` and `--cache`."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.errors import UsageError
from tests.publish.conftest import House


@pytest.mark.parametrize("cache", ["site", "site/cache", "."])
def test_cache_inside_the_site_or_around_it_is_refused(house: House, tmp_path: Path, cache: str) -> None:
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UsageError, match=r"--cache: is .+ must be outside of --out"):
        house.pack(tmp_path / "site", cache_folder=tmp_path / cache)
    assert sorted(tmp_path.rglob("*")) == before
