from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import builder.reference

ROOM = Path(builder.reference.__file__).parent
WITH_TORCH = {"generation_2", "heads", "layers", "model", "session", "shared_prefill", "tokenizer"}
"""The model itself (and its tokenizer, which is sentencepiece); all else must run on the engine alone."""
BLOCKED = "import sys; sys.modules |= dict.fromkeys(('torch', 'sentencepiece', 'jax', 'needle')); import "


@pytest.mark.slow
def test_a_terminal_chat_on_the_engine_needs_neither_torch_nor_sentencepiece():
    names = sorted(path.stem for path in ROOM.glob("*.py") if path.stem not in WITH_TORCH)
    assert {"chat_command", "dispatcher", "generation", "prompts", "router"} <= set(names)
    modules = ", ".join(f"builder.reference.{name}" for name in names if name != "__init__")
    assert run(BLOCKED + modules) == ("", "")


@pytest.mark.slow
def test_the_reference_is_missing_with_a_sentence_that_names_the_extra():
    code = (
        "import sys; sys.modules['torch'] = None;"
        "from builder.reference.chat_command import _reference_opener;"
        "from builder.errors import MissingExtraError\n"
        "try: _reference_opener(None, None)\n"
        "except MissingExtraError as error: print(error)"
    )
    step = "needs an optional part; install it with: pip install 'saguaro[reference]'"
    assert run(code) == (f"chat --reference (it uses torch) {step}\n", "")


def run(code: str) -> tuple[str, str]:
    """What a fresh interpreter prints, and what it complains."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout, done.stderr
