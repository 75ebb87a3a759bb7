"""The engine's status codes and the exceptions that they become.

Owns: `STATUS_CODES` (a test holds it to `engine/include/sg_status.h`) and the sentence for a failed call.
Knows nothing of: WebAssembly, memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from builder.errors import (
    ContainerError,
    GrammarError,
    PatchError,
    RefusedError,
    SaguaroError,
    SessionError,
    UsageError,
)

OK, NEED_BASE, NEED_PATCH, DONE = 0, 1, 2, 3
STATUS_CODES = {
    **{0: "ok", 1: "need_base", 2: "need_patch", 3: "done"},
    **{10: "bad_argument", 11: "out_of_memory", 12: "buffer_too_small", 13: "bad_depth"},
    **{100: "cact_truncated", 101: "cact_bad_tag", 102: "cact_bad_header", 103: "cact_bad_codebook"},
    **{104: "cact_bad_record", 105: "cact_bad_offset", 106: "cact_bad_shape", 107: "cact_bad_padding"},
    **{108: "cact_trailing_bytes", 109: "cact_bad_tokenizer", 110: "cact_bad_value", 111: "cact_unsupported"},
    **{200: "patch_truncated", 201: "patch_bad_magic", 202: "patch_bad_version", 203: "patch_wrong_base"},
    **{204: "patch_wrong_target", 205: "patch_bad_header", 206: "patch_bad_segment", 207: "patch_bad_coder"},
    **{208: "patch_bad_table", 209: "patch_corrupt", 210: "patch_trailing_bytes", 211: "patch_hash_mismatch"},
    **{300: "context_full", 301: "bad_token", 302: "bad_state", 303: "bad_utf8", 304: "unknown_head"},
    **{400: "grammar_bad_json", 401: "grammar_bad_schema", 402: "grammar_unsupported", 403: "grammar_limit"},
    404: "grammar_empty",
}
"""`SG_STATUS_*` by value, in lower case: the `code` of an exception."""

_CLASSES: dict[str, type[SaguaroError]] = {
    "bad_argument": UsageError,
    "bad_depth": UsageError,
    "unknown_head": UsageError,
    "out_of_memory": RefusedError,
    "buffer_too_small": RefusedError,
}
_SENTENCES = {
    "bad_argument": "{field}: is outside its range, whose bound is {allowed}",
    "bad_depth": "{field}: is {found}, must be 2 to {allowed} layers, or {allowed} in generation 2",
    "unknown_head": "{field}: is not in the file",
    "cact_bad_tag": "{field}: is 0x{found:08x}, must be that of a Needle 2 or 3 archive (0x{allowed:08x})",
    "cact_bad_codebook": "{field} at byte {offset}: must be finite and ascending ({code})",
    "cact_bad_value": "{field} at byte {offset}: holds a number that cannot be meant ({code})",
    "context_full": "{field}: are {found} more, but the session has room for {allowed}",
    "bad_token": "token id: is {found}, must be 0 to {allowed}",
    "bad_state": "{field} is not there yet: append or mark first",
    "bad_utf8": "{field} at byte {offset}: is not UTF-8",
    "out_of_memory": "{field}: needs {allowed} bytes, but {found} are there",
}
_GRAMMAR_SENTENCES = {
    "grammar_bad_json": "{field} at byte {offset}: is not JSON, or has a key twice",
    "grammar_bad_schema": "{field}: is not what docs/grammar.md allows there",
    "grammar_unsupported": "{field}: cannot be enforced while a call is written",
    "grammar_limit": "{field}: is beyond a limit of docs/grammar.md",
    "grammar_empty": "{field}: no value satisfies it",
}
_SENTENCE = "{field} at byte {offset}: is {found}, must keep to {allowed} ({code})"
_SENTENCE_WITHOUT_NUMBERS = "{field} at byte {offset}: {words} ({code})"


@dataclass(frozen=True)
class Failure:
    """`struct sg_error`: why a call failed."""

    status: int
    field: str
    offset: int
    found: int
    allowed: int

    def exception(self, subject: str) -> SaguaroError:
        """The exception of the house for it; `subject` says what was worked on."""
        code = STATUS_CODES[self.status]
        usual = _SENTENCE if self.found or self.allowed else _SENTENCE_WITHOUT_NUMBERS
        words = code.partition("_")[2].replace("_", " ")
        sentence = (
            (_SENTENCES | _GRAMMAR_SENTENCES).get(code, usual).format(code=code, words=words, **vars(self))
        )
        return _class_of(code)(f"{subject}: {sentence}", code=code)


def _class_of(code: str) -> type[SaguaroError]:
    if code.startswith("cact_"):
        return ContainerError
    if code.startswith("grammar_"):
        return GrammarError
    return PatchError if code.startswith("patch_") else _CLASSES.get(code, SessionError)
