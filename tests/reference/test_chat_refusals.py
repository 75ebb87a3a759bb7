"""What `chat` refuses before it reads a model."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from builder.cli import main
from builder.errors import RefusedError
from builder.reference.chat_command import _engine_opener


@pytest.mark.parametrize("memory", ["0", "-5"])
def test_memory_that_holds_nothing_is_usage(memory, tmp_path, capsys):
    assert main(["chat", str(tmp_path), "--memory", memory]) == 2
    assert capsys.readouterr().err == f"chat: --memory: is {memory}, must be 1 or more MiB\n"


def test_a_site_for_another_interface_is_refused_before_its_engine_is_read():
    manifest = SimpleNamespace(engine=SimpleNamespace(abi=7))
    with pytest.raises(RefusedError, match=r"engine\.abi: is 7, must be 2; pack") as caught:
        _engine_opener(SimpleNamespace(folder=Path("site"), manifest=manifest), None)
    assert caught.value.code == "engine_mismatch"
