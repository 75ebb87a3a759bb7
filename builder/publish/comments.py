"""What is published of a source file: all but the comments that stand on lines of their own.

Owns: finding them in the plain style that `web/` is written in; no line of a string or template there begins
like a comment. Empty lines take their places, so that the line numbers of an error stay true. A comment
beside code stays. Knows nothing of: pages. Source: docs/publish.md, "The page's sources".
"""

from __future__ import annotations

import re

BLOCK = r"^[ \t]*/\*(?:(?!\*/).)*\*/[ \t]*$"
COMMENTS = {
    ".js": re.compile(rf"{BLOCK}|^[ \t]*//[^\n]*$", re.MULTILINE | re.DOTALL),
    ".css": re.compile(BLOCK, re.MULTILINE | re.DOTALL),
}


def without_comments(text: str, suffix: str) -> str:
    """The text of a file with this suffix, as visitors get it."""
    pattern = COMMENTS.get(suffix)
    return pattern.sub(lambda comment: "\n" * comment[0].count("\n"), text) if pattern else text
