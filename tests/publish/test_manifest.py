from __future__ import annotations

import copy
import hashlib
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.errors import ManifestError
from builder.publish.canonical import canonical_json
from builder.publish.manifest import read_manifest, schema_text, write_manifest
from tests.publish.family_fields import family_fields, part
from tests.publish.hostile_manifests import TABLE, document_of, good_text, seal_text, value_of

ROOT = Path(__file__).parents[2]
Path_ = tuple[str | int, ...]


def leaves(value: Any, path: Path_ = ()) -> list[Path_]:
    if isinstance(value, dict):
        return [leaf for key, item in value.items() for leaf in leaves(item, (*path, key))]
    if isinstance(value, list):
        return [leaf for index, item in enumerate(value) for leaf in leaves(item, (*path, index))]
    return [path]


def put(fields: dict[str, Any], path: Path_, value: Any) -> dict[str, Any]:
    fields = copy.deepcopy(fields)
    target: Any = fields
    for step in path[:-1]:
        target = target[step]
    target[path[-1]] = value
    return fields


def sealed(fields: dict[str, Any]) -> bytes:
    """The file for any fields, wrong ones included, with the right release hash: only they are at fault."""
    document = {"format": "saguaro-family", "version": 1, **fields}
    rest = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    document["release"] = hashlib.sha256(rest.encode()).hexdigest()
    return (json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False) + "\n").encode()


def refused(data: bytes) -> ManifestError:
    with pytest.raises(ManifestError) as caught:
        read_manifest(data)
    assert "\n" not in str(caught.value)
    return caught.value


def test_what_is_written_reads_back() -> None:
    manifest = read_manifest(write_manifest(family_fields()))
    assert [member.id for member in manifest.members] == ["base", "router", "home", "media"]
    assert manifest.member("media").delivery.parts[1].bytes == 30
    assert manifest.specialists[0].changed_codes == 0.5


def test_release_is_the_hash_of_the_rest_as_a_plain_json_library_writes_it() -> None:
    assert write_manifest(family_fields()) == sealed(family_fields())


def test_family_needs_no_router_and_no_specialists() -> None:
    fields = family_fields()
    del fields["router"], fields["examples"]
    manifest = read_manifest(write_manifest(fields | {"specialists": []}))
    assert [member.id for member in manifest.members] == ["base"]


def test_unknown_fields_are_ignored_but_belong_to_the_release() -> None:
    plain, extended = write_manifest(family_fields()), write_manifest(family_fields() | {"signature": "x"})
    assert read_manifest(plain).release != read_manifest(extended).release


def test_unknown_member_is_one_sentence_that_names_the_known_ones() -> None:
    with pytest.raises(ManifestError, match="'nobody', must be one of base, router, home, media"):
        read_manifest(write_manifest(family_fields())).member("nobody")


WRONG: dict[str, tuple[Path_, Any, str]] = {
    case["name"]: (tuple(case["path"]), value_of(case), case["words"]) for case in TABLE["wrong"]
}


def test_the_shared_table_starts_from_what_these_tests_start_from() -> None:
    assert TABLE["fields"] == family_fields()


@pytest.mark.parametrize("case", TABLE["wrong"], ids=lambda case: case["name"])
def test_whatever_the_table_calls_wrong_is_refused(case: dict[str, Any]) -> None:
    refused(sealed(document_of(case)))


@pytest.mark.parametrize("case", TABLE["good"], ids=lambda case: case["name"])
def test_whatever_the_table_calls_good_is_read(case: dict[str, Any]) -> None:
    read_manifest(sealed(document_of(case)))


@pytest.mark.parametrize("case", TABLE["texts"], ids=lambda case: case["name"])
def test_one_document_has_one_text(case: dict[str, Any]) -> None:
    assert case["from"] in good_text()
    data = seal_text(good_text().replace(case["from"], case["to"], 1))
    if case["good"]:
        read_manifest(data)
    else:
        refused(data)


@pytest.mark.parametrize("case", [name for name, (_, _, words) in WRONG.items() if words])
def test_wrong_field_is_named_in_one_sentence(case: str) -> None:
    path, value, words = WRONG[case]
    error = refused(sealed(put(family_fields(), path, value)))
    assert words in str(error)
    assert error.code == "manifest_invalid"


@pytest.mark.parametrize(("field", "value"), [("format", "other"), ("version", 2), ("version", None)])
def test_unknown_version_is_refused_before_anything_else(field: str, value: Any) -> None:
    error = refused(sealed(family_fields() | {field: value, "base": None}))
    assert error.code == "manifest_version"
    assert f"family.json: {field}: is {value!r}" in str(error)


@settings(deadline=None, max_examples=60)
@given(path=st.sampled_from(leaves(family_fields())))
def test_no_field_that_is_needed_may_be_missing(path: Path_) -> None:
    fields = copy.deepcopy(family_fields())
    target: Any = fields
    for step in path[:-1]:
        target = target[step]
    if path[-1] in ("examples", 0) and "examples" in path:
        return
    del target[path[-1]]
    assert refused(sealed(fields)).code == "manifest_invalid"


@settings(deadline=None, max_examples=80)
@given(
    path=st.sampled_from(leaves(family_fields())), value=st.sampled_from([None, True, -1, 2.5, "", [], {}])
)
def test_wrong_types_are_never_taken_for_right_ones(path: Path_, value: Any) -> None:
    may_be_empty = path[-1] in ("about", "system", "tools") or "examples" in path
    if value == "" and may_be_empty:
        return
    refused(sealed(put(family_fields(), path, value)))


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_any_flipped_bit_is_refused(data: st.DataObject) -> None:
    damaged = bytearray(write_manifest(family_fields()))
    damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    refused(bytes(damaged))


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99, 1.0])
def test_cut_file_is_refused(share: float) -> None:
    data = write_manifest(family_fields())
    assert refused(data[: int((len(data) - 1) * share)]).code == "manifest_damaged"


NOT_A_MANIFEST = {
    "empty": (b"", "manifest_damaged"),
    "html": (b"<!doctype html><title>Not here</title>", "manifest_damaged"),
    "latin-1": ("é".encode("latin-1"), "manifest_damaged"),
    "list": (b"[]\n", "manifest_damaged"),
    "nested": (b"[" * 100_000, "manifest_damaged"),
    "infinite": (b'{"a":Infinity}', "manifest_damaged"),
    "long number": (b'{"a":' + b"9" * 5000 + b"}", "manifest_damaged"),
    "key twice": (b'{"a":1,"a":1}', "manifest_damaged"),
    "too large": (b" " * (2**20 + 1), "manifest_invalid"),
}


@pytest.mark.parametrize("case", NOT_A_MANIFEST)
def test_other_bytes_are_refused_with_a_sentence(case: str) -> None:
    data, code = NOT_A_MANIFEST[case]
    assert refused(data).code == code


@pytest.mark.parametrize("depth", [100, 600, 100_000])
def test_deep_nesting_in_an_unknown_field_is_refused(depth: int) -> None:
    nested = b'"z":' + b"[" * depth + b"]" * depth + b"}"
    assert (
        refused(write_manifest(family_fields() | {"z": 0}).replace(b'"z":0}', nested)).code
        == "manifest_damaged"
    )


def test_lone_surrogate_is_refused() -> None:
    known = write_manifest(family_fields()).replace(b'"A tiny family"', rb'"A \ud800 family"')
    unknown = write_manifest(family_fields() | {"z": "x"}).replace(b'"x"', rb'"\ud800"')
    assert refused(known).code == refused(unknown).code == "manifest_invalid"


def test_same_document_written_in_another_way_is_refused() -> None:
    document = json.loads(write_manifest(family_fields()))
    error = refused(json.dumps(document, indent=1).encode())
    assert "canonical JSON" in str(error)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"b": 1, "a": [True, None, "é\u2028"]}, '{"a":[true,null,"é\u2028"],"b":1}'),
        ('\x00\x1f\n"\\/\x7f', '"\\u0000\\u001f\\n\\"\\\\/\x7f"'),
        ([1.0, -0.0, 0.5, 0.0001, 2**53], "[1,0,0.5,0.0001,9007199254740992]"),
    ],
)
def test_canonical_json_is_what_json_stringify_writes(value: Any, text: str) -> None:
    assert canonical_json(value) == text.encode()


@pytest.mark.parametrize("value", [2**53 + 1, 0.00001, float("inf"), float("nan"), 1e300])
def test_numbers_that_languages_write_differently_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match="the number"):
        canonical_json([value])


def test_published_schema_is_made_from_the_code() -> None:
    published = (ROOT / "docs" / "formats" / "family.schema.json").read_text(encoding="utf-8")
    assert published == schema_text(), "write schema_text() of builder.publish.manifest there"


def test_schema_accepts_what_the_reader_accepts() -> None:
    schema = json.loads(schema_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(json.loads(write_manifest(family_fields())), schema)


BEYOND_A_SCHEMA = (
    *(
        "sum",
        "twice",
        "elsewhere",
        "another",
        "other",
        "of the base",
        "base as",
        "hash",
        "no JSON",
        "no list",
        "tools with",
    ),
)
# `$` in the schema is ECMAScript's; Python's also matches before a last line end.
PYTHON_DOLLAR = "line end"


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        name
        for name, (_, _, words) in WRONG.items()
        if words and not any(word in name for word in (*BEYOND_A_SCHEMA, PYTHON_DOLLAR))
    ],
)
def test_schema_refuses_what_the_reader_refuses_but_for_sums_and_names(case: str) -> None:
    path, value, _ = WRONG[case]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(json.loads(sealed(put(family_fields(), path, value))), json.loads(schema_text()))


def test_parts_may_be_as_large_as_the_strictest_host_allows() -> None:
    fields = family_fields()
    fields["base"] |= {
        "bytes": 25 * 2**20,
        "delivery": {"kind": "whole", "bytes": 25 * 2**20, "parts": [part("base", 25 * 2**20)]},
    }
    assert read_manifest(write_manifest(fields)).base.delivery.parts[0].bytes == 26_214_400
