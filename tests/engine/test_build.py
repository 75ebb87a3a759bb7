"""What the compiler makes: the same bytes everywhere, nothing asked of the host, nothing kept inside."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.engine.wasm_sections import I32, IMPORT, export_names, global_variables, sections

HEADER = Path(__file__).parents[2] / "engine" / "include" / "saguaro.h"
SIZE_BYTES_MAX = 200_000
STACK_BYTES = 262_144
PAGE_BYTES = 65_536
HOST_EXPORTS = {"sg_reserve", "sg_abi_version"}
PROMPT = "<|im_start|>user\nHow are you?<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.slow
def test_the_same_sources_give_the_same_bytes_in_any_directory(build, wasm, tmp_path):
    elsewhere = tmp_path / "a folder" / "with another name"
    shutil.copytree(build.ENGINE, elsewhere)
    assert build.compile_wasm(tmp_path / "out" / "other.wasm", engine=elsewhere).read_bytes() == wasm


@pytest.mark.slow
def test_a_failed_build_leaves_the_old_file_and_no_other(build, tmp_path):
    broken = tmp_path / "engine"
    shutil.copytree(build.ENGINE, broken)
    (broken / "src" / "math.c").write_text("int unfinished(")
    output = tmp_path / "out" / "engine.wasm"
    output.parent.mkdir()
    output.write_bytes(b"old")
    with pytest.raises(SystemExit, match=r"math\.c"):
        build.compile_wasm(output, engine=broken)
    assert output.read_bytes() == b"old"
    assert list(output.parent.iterdir()) == [output]


def test_the_modules_ask_nothing_of_their_host(wasm, maker):
    assert IMPORT not in sections(wasm) | sections(maker)


def test_the_stack_pointer_is_the_only_mutable_global(wasm, maker):
    for module in (wasm, maker):
        assert [kind for kind, mutable in global_variables(module) if mutable] == [I32]


def test_each_module_stays_small(wasm, relaxed_wasm):
    assert len(wasm) < SIZE_BYTES_MAX
    assert len(relaxed_wasm) < SIZE_BYTES_MAX


def test_only_files_that_know_relaxed_simd_differ_between_the_two_engines(build, wasm, relaxed_wasm):
    texts = {path: path.read_text("utf-8") for path in (build.ENGINE / "src").glob("*.[ch]")}
    knowing = {path.name for path, text in texts.items() if "__wasm_relaxed_simd__" in text}
    headers = [name for name in knowing if name.endswith(".h")]
    knowing |= {path.name for path, text in texts.items() if any(f'"{header}"' in text for header in headers)}
    assert {name.removesuffix(".c") for name in knowing if name.endswith(".c")} == build.RELAXED
    assert wasm != relaxed_wasm


def test_both_engines_export_the_same_and_ask_for_nothing(wasm, relaxed_wasm):
    assert export_names(wasm) == export_names(relaxed_wasm)
    assert IMPORT not in sections(relaxed_wasm)
    assert [kind for kind, mutable in global_variables(relaxed_wasm) if mutable] == [I32]


def test_every_function_of_the_header_is_exported(wasm, maker):
    text = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.DOTALL)
    declared = set(re.findall(r"\b(sg_\w+)\(", text))
    engine, patches = ({n for n in export_names(m) if n.startswith("sg_")} for m in (wasm, maker))
    assert engine | patches == declared | HOST_EXPORTS
    assert engine & patches == HOST_EXPORTS


def test_work_leaves_no_trace_outside_of_stack_and_given_blocks(engine, demo_family):
    """The static data is the same after a model was opened and asked as before: no hidden state."""
    instance = engine.instance()
    start = instance.memory_bytes - PAGE_BYTES  # the page that the host took for its error struct
    before = instance.read(STACK_BYTES, start - STACK_BYTES)
    model = engine.open((demo_family.folder / "base.cact").read_bytes())
    session = model.session(64)
    session.append(model.encode(PROMPT))
    session.score(model.encode("I am fine."))
    assert model._instance.read(STACK_BYTES, start - STACK_BYTES) == before
