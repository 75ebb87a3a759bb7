"""A terminal for stderr, and what a person sees on it in the end."""

from __future__ import annotations

import os
import pty
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

ESCAPE = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])|([\r\n])|([^\x1b\r\n]+)")


@contextmanager
def stderr_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """stderr is a pseudo-terminal; when this ends, the list holds all that was written to it."""
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    reading, writing = pty.openpty()
    pieces: list[bytes] = []
    written: list[str] = []

    def read() -> None:
        with suppress(OSError):  # Linux says so when the last writer is gone.
            while piece := os.read(reading, 4096):
                pieces.append(piece)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        with monkeypatch.context() as patch, os.fdopen(writing, "w", encoding="utf-8") as terminal:
            patch.setattr(sys, "stderr", terminal)
            yield written
    finally:
        reader.join()
        os.close(reading)
    written.append(b"".join(pieces).decode())


def seen(written: str) -> list[str]:
    """The lines on the screen after all that was written; only what a bar needs is understood."""
    lines, row, column = [""], 0, 0
    for numbers, command, end, text in ESCAPE.findall(written):
        if command == "A":
            row = max(0, row - int(numbers or 1))
        elif command == "K":
            assert numbers == "2"
            lines[row] = ""
        elif end == "\r":
            column = 0
        elif end == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif text:
            lines[row] = lines[row].ljust(column)[:column] + text + lines[row][column + len(text) :]
            column += len(text)
        else:
            assert command in "mhl"  # colour, and whether the cursor shows
    return [line for line in lines if line]
