"""A small reader of WebAssembly modules: enough to see what a module asks for and what it can change."""

from __future__ import annotations

from dataclasses import dataclass

IMPORT, GLOBAL, EXPORT, DATA = 2, 6, 7, 11
I32 = 0x7F
I32_CONST, END = 0x41, 0x0B


@dataclass
class Cursor:
    data: bytes
    at: int = 0

    def byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def unsigned(self) -> int:
        value, shift = 0, 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def name(self) -> str:
        size = self.unsigned()
        self.at += size
        return self.data[self.at - size : self.at].decode()


def sections(module: bytes) -> dict[int, bytes]:
    """Section contents by id (the last of several custom ones)."""
    assert module[:8] == b"\0asm\1\0\0\0"
    cursor, found = Cursor(module, 8), {}
    while cursor.at < len(module):
        kind, size = cursor.byte(), cursor.unsigned()
        found[kind] = module[cursor.at : cursor.at + size]
        cursor.at += size
    return found


def global_variables(module: bytes) -> list[tuple[int, bool]]:
    """(type, mutable) of every global."""
    cursor = Cursor(sections(module)[GLOBAL])
    found = []
    for _ in range(cursor.unsigned()):
        found.append((cursor.byte(), bool(cursor.byte())))
        assert cursor.byte() == I32_CONST
        cursor.unsigned()
        assert cursor.byte() == END
    return found


def export_names(module: bytes) -> set[str]:
    """All exported names."""
    cursor = Cursor(sections(module)[EXPORT])
    names = set()
    for _ in range(cursor.unsigned()):
        names.add(cursor.name())
        cursor.byte()
        cursor.unsigned()
    return names
