"""family.toml: every key is read, documented, and refused with a sentence when it is wrong."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from builder.errors import FamilyError, UsageError
from builder.family.family import Family, load_family
from builder.family.settings import BaseTable, FamilyTable, RouterTable, SpecialistTable, ToolFile

DOCUMENT = Path(__file__).parents[2] / "docs" / "family.md"
HEAD = '[family]\nname = "f"\ntitle = "F"\n'
BASE = '[base]\ncact = "base.cact"\n'


@pytest.fixture
def load(tmp_path: Path):
    def run(text: str) -> Family:
        (tmp_path / "family.toml").write_text(text, "utf-8")
        return load_family(tmp_path / "family.toml")

    return run


def test_the_smallest_family_is_a_base(load, tmp_path):
    family = load(HEAD + BASE)
    assert [member.id for member in family.members] == ["base"]
    assert family.router is None
    assert family.base.cact == tmp_path / "base.cact"
    assert (family.base.title, family.base.tools, family.base.context_turns) == ("Base", "", 0)


def test_members_come_in_the_order_base_router_specialists(demo_family):
    ids = [member.id for member in demo_family.family.members]
    assert ids == ["base", "router", "home", "kitchen", "media", "calendar"]


def test_the_routers_tools_are_the_specialists_as_the_demo_router_was_trained_on_them(demo_family):
    tools = json.loads((demo_family.family.path.parent / "tools.json").read_text())
    expected = json.dumps(tools["router_tools"], separators=(",", ":"))
    assert demo_family.family.router.tools == expected
    assert demo_family.family.router.context_turns == 4


def test_tools_from_a_file_are_compact_json_in_the_files_order(demo_family):
    tools = demo_family.family.member("media").tools
    assert tools.startswith('[{"name":"play","description":"Play music","parameters":{"type":"object",')
    assert ", " not in tools


def test_inline_tools_keep_their_order_and_their_letters(load):
    tools = 'tools = [{name = "grüße", description = "a, b: c", parameters = {z = 1, a = 2}}]\n'
    family = load(HEAD + BASE + tools)
    assert family.base.tools == '[{"name":"grüße","description":"a, b: c","parameters":{"z":1,"a":2}}]'


def test_an_adapter_without_a_checkpoint_stands_on_the_bases(load, tmp_path):
    family = load(
        HEAD + '[base]\ncheckpoint = "b.safetensors"\n'
        '[[specialists]]\nid = "s"\nabout = "x"\nadapter = "s.safetensors"\n'
        '[[specialists]]\nid = "t"\nabout = "x"\nadapter = "t.safetensors"\ncheckpoint = "c.safetensors"\n'
    )
    assert [s.checkpoint for s in family.specialists] == [
        tmp_path / "b.safetensors",
        tmp_path / "c.safetensors",
    ]


SPECIALIST = '[[specialists]]\nid = "s"\nabout = "x"\ncact = "s.cact"\n'
BAD = {
    "not toml": ("[family", "is not TOML"),
    "unknown key": (HEAD + 'colour = "red"\n' + BASE, "family.colour: is no key of family.toml"),
    "no base": (HEAD, "base: field required"),
    "bad name": (HEAD.replace('"f"', '"F f"') + BASE, "family.name: string should match"),
    "two sources": (HEAD + BASE + 'checkpoint = "c.safetensors"\n', "name one source"),
    "no source": (HEAD + "[base]\n", "base: names no model"),
    "wrong type": (HEAD + BASE + 'max_new_tokens = "many"\n', "base.max_new_tokens: input should be"),
    "router with tools": (HEAD + BASE + '[router]\ncact = "r"\ntools = []\n', "router.tools: is no key"),
    "specialist without about": (HEAD + BASE + SPECIALIST.replace('about = "x"\n', ""), "0.about"),
    "two lines of about": (HEAD + BASE + SPECIALIST.replace("x", "x\\ny"), "0.about"),
    "same id twice": (HEAD + BASE + SPECIALIST + SPECIALIST, "has the id 's' twice"),
    "reserved id": (HEAD + BASE + SPECIALIST.replace('"s"', '"base"'), "has the id 'base' twice"),
    "no tools in the list": (HEAD + BASE + "tools = []\n", "base.tools: must be a list of tools"),
    "tool without a name": (HEAD + BASE + "tools = [{a = 1}]\n", "must be a tool with a name"),
    "tools of another type": (HEAD + BASE + 'tools = "a"\n', "base.tools: must be a list of tools or"),
    "tools without a file": (HEAD + BASE + 'tools = {key = "a"}\n', "base.tools.file: field required"),
    "tool with a date": (HEAD + BASE + "tools = [{name = 'a', since = 2020-01-01}]\n", "tools: is not JSON"),
    "tool with no number": (HEAD + BASE + "tools = [{name = 'a', most = nan}]\n", "tools: is not JSON"),
    "no title": (HEAD.replace('"F"', '""') + BASE, "family.title: string should have at least 1"),
    "nested": (HEAD + BASE + "tools = " + "[" * 5000 + "\n", "is not TOML: nested too deeply"),
    "endless number": (HEAD + BASE + "context_turns = " + "1" * 5000 + "\n", "is not TOML: "),
    "tool beyond numbers": (HEAD + BASE + "tools = [{name = 'a', x = 1e999}]\n", "tools: is not JSON"),
    "long system": (HEAD + BASE + f'system = "{"x" * 262145}"\n', "base.system: string should have at most"),
    "long tools": (HEAD + BASE + f"tools = [{{name = '{'x' * 262144}'}}]\n", "base.tools: is 262157 char"),
    "key that steers": (HEAD + '"\\u001b[31m\\nbase" = 1\n' + BASE, r"family.\x1b[31m\nbase: is no key"),
    "C1 in a title": (HEAD.replace('"F"', '"F\\u009b31m"') + BASE, "family.title: string should match"),
    "bidi in a title": (HEAD.replace('"F"', '"F\\u202e"') + BASE, "family.title: string should match"),
    "isolate in a title": (HEAD.replace('"F"', '"F\\u2066"') + BASE, "family.title: string should match"),
    "NUL in a tool file": (HEAD + BASE + 'tools = {file = "a\\u0000"}\n', "no file can have this name"),
    "no tool file": (HEAD + BASE + 'tools = {file = "gone.json"}\n', "gone.json: cannot be read"),
    "adapter on a finished base": (
        HEAD + BASE + SPECIALIST.replace("cact", "adapter"),
        "has nothing to merge into",
    ),
    "shallow": (HEAD + "layers = 1\n" + BASE, "family.layers: input should be greater"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_refused_with_one_sentence(load, name):
    text, sentence = BAD[name]
    with pytest.raises(FamilyError, match=re.escape(sentence)) as caught:
        load(text)
    assert caught.value.code in {"bad_family", "unreadable"}
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_refused_with_its_name(tmp_path):
    with pytest.raises(FamilyError, match=r"family\.toml: cannot be read: no such file"):
        load_family(tmp_path / "family.toml")


@pytest.mark.parametrize(
    ("content", "key", "sentence"),
    [
        ("{", "", "is not JSON"),
        ("[" * 100_000, "", "is nested too deeply"),
        ('[{"name": "a", "x": NaN}]', "", "NaN is not a JSON number"),
        ('[{"name": "a", "x": 1e999}]', "", "1e999 is beyond every number"),
        ('[{"name": "a", "name": "b"}]', "", "the key 'name' stands twice"),
        ('{"a": []}', "b", "has no key 'b'"),
        ('{"a": {}}', "a", "must be a list of tools"),
        ('[{"name": "\\ud800"}]', "", "is not JSON"),
    ],
)
def test_a_bad_tool_file_is_refused(load, tmp_path, content, key, sentence):
    (tmp_path / "tools.json").write_text(content)
    with pytest.raises(FamilyError, match=re.escape(sentence)):
        load(HEAD + BASE + f'tools = {{file = "tools.json", key = "{key}"}}\n')


def test_a_byte_order_mark_does_not_matter(load, tmp_path):
    (tmp_path / "tools.json").write_text('[{"name": "a"}]', "utf-8-sig")
    family = load("\ufeff" + HEAD + BASE + 'tools = {file = "tools.json"}\n')
    assert family.base.tools == '[{"name":"a"}]'


def test_a_pipe_is_refused_unopened(load, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FamilyError, match=r"pipe: cannot be read: is a pipe, not a file"):
        load_family(tmp_path / "pipe")
    with pytest.raises(FamilyError, match=r"pipe: cannot be read: is a pipe, not a file"):
        load(HEAD + BASE + 'tools = {file = "pipe"}\n')


def test_an_unknown_member_is_named_together_with_the_known_ones(load):
    with pytest.raises(UsageError, match="has no member 'x'; it has base"):
        load(HEAD + BASE).member("x")


def test_every_key_is_documented_and_no_other():
    text = DOCUMENT.read_text("utf-8")
    tables = text.split("## ")
    documented = [set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) for table in tables[1:3]]
    assert documented[0] == set(FamilyTable.model_fields)
    members = {name for table in (BaseTable, RouterTable, SpecialistTable) for name in table.model_fields}
    assert documented[1] == members
    assert all(f"{name} =" in text for name in ToolFile.model_fields)
