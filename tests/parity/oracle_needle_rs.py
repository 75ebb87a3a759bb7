"""Oracle (b): `needle-rs`, an independent engine in Rust that computes in float on the dequantised weights.

It renders its own prompt, always with a tools block:
`<|im_start|>user\\n<tools>TOOLS</tools>\\nQUERY<|im_end|>...`. What can be said in that form (a context
block may stand at the head of QUERY) can be compared; it stops at `<|im_end|>` only, so an answer is cut
after the first `</tool_call>`.
"""

from __future__ import annotations

from pathlib import Path

import needle_rs

TOOLS_OPEN, TOOLS_CLOSE = "<|im_start|>user\n<tools>", "</tools>\n"
END = "<|im_end|>\n<|im_start|>assistant\n"


class NeedleRsOracle:
    """One model."""

    def __init__(self, path: Path) -> None:
        self._engine = needle_rs.V3Engine.load(str(path))

    def generate(self, prompt: str, max_new_tokens: int, stop_id: int | None) -> list[int]:
        """Greedy ids for a prompt that has a tools block, up to and with the first `stop_id`."""
        tools, query = split_prompt(prompt)
        made = self._engine.generate(query, tools, max_new_tokens=max_new_tokens)
        ids = list(made["token_ids"])
        return ids[: ids.index(stop_id) + 1] if stop_id in ids else ids


def split_prompt(prompt: str) -> tuple[str, str]:
    """Tools and query of a prompt without a system block."""
    assert prompt.startswith(TOOLS_OPEN)
    assert prompt.endswith(END)
    tools, query = prompt.removeprefix(TOOLS_OPEN).removesuffix(END).split(TOOLS_CLOSE, 1)
    return tools, query
