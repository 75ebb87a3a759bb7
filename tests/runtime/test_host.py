"""The instance that hosts the engine: errors instead of tracebacks, memory that is reused."""

from __future__ import annotations

import subprocess
import sys

import pytest
import wasmtime

from builder.errors import RefusedError, SessionError, UsageError
from builder.runtime import host
from builder.runtime.engine import Engine


@pytest.fixture
def instance():
    return Engine().instance()


def test_the_packaged_engine_is_compiled_once():
    assert host.packaged_module() is host.packaged_module()


def test_bytes_that_are_no_module_are_refused():
    with pytest.raises(RefusedError, match="is not WebAssembly") as caught:
        Engine(b"<!doctype html>")
    assert caught.value.code == "engine_mismatch"
    assert "\n" not in str(caught.value)


MEMORY = '(memory (export "memory") 1)'
VERSION = '(func (export "sg_abi_version") (result i32) (i32.const 2))'
RESERVE = '(func (export "sg_reserve") (param i32) (result i32) (i32.const 4294967295))'
ENDLESS = "(func $loop (loop (br 0))) (start $loop)"
STRANGE = {
    "an import": ('(import "a" "b" (func))' + MEMORY + VERSION + RESERVE, "imports something"),
    "no memory": (VERSION + RESERVE, "exports no 32-bit memory"),
    "a global as memory": ('(global (export "memory") i32 (i32.const 0))' + VERSION, "exports no 32-bit"),
    "no version": (MEMORY + RESERVE, "exports no sg_abi_version of"),
    "no reserve": (MEMORY + VERSION, "exports no sg_reserve of"),
    "another type": (MEMORY + VERSION.replace("i32", "i64") + RESERVE, "exports no sg_abi_version of"),
    "an endless start": (MEMORY + VERSION + RESERVE + ENDLESS, "cannot be started: .*fuel"),
    "an endless reserve": (
        MEMORY + VERSION + RESERVE.replace("(i32.const 4294967295)", "(loop (br 0)) (i32.const 8)"),
        "cannot be started: .*fuel",
    ),
    "an endless version": (
        MEMORY + RESERVE + VERSION.replace("(i32.const", "(loop (br 0)) (i32.const"),
        "cannot be started: .*fuel",
    ),
}


@pytest.mark.parametrize("name", STRANGE)
def test_a_module_that_is_no_engine_is_refused_by_one_sentence(name):
    text, sentence = STRANGE[name]
    with pytest.raises(RefusedError, match=rf"^engine\.wasm: {sentence}") as caught:
        Engine(bytes(wasmtime.wat2wasm(f"(module {text})")))
    assert caught.value.code == "engine_mismatch"
    assert "\n" not in str(caught.value)


def test_an_engine_that_gives_a_wrong_address_is_lost():
    engine = Engine(bytes(wasmtime.wat2wasm(f"(module {MEMORY}{VERSION}{RESERVE})")))
    with pytest.raises(SessionError, match="gave the address 4294967295") as caught:
        engine.instance().place(b"data")
    assert caught.value.code == "worker_lost"


def test_a_function_that_an_engine_lacks_is_named():
    engine = Engine(bytes(wasmtime.wat2wasm(f"(module {MEMORY}{VERSION}{RESERVE})")))
    with pytest.raises(RefusedError, match="exports no sg_model_open"):
        engine.instance().call("sg_model_open")


def test_an_engine_that_answers_with_an_unknown_status_is_lost():
    measure = '(func (export "sg_model_measure") (param i32) (result i32) (i32.const 77))'
    reserve = RESERVE.replace("4294967295", "8")
    engine = Engine(bytes(wasmtime.wat2wasm(f"(module {MEMORY}{VERSION}{reserve}{measure})")))
    with pytest.raises(SessionError, match="gave the unknown status 0"):
        engine.instance().check("model", "sg_model_measure")


@pytest.mark.slow
def test_an_engine_of_another_interface_is_refused(monkeypatch):
    monkeypatch.setattr(host, "ABI_VERSION", 99)
    wasm = host.resources.files("builder.runtime").joinpath("engine.wasm").read_bytes()
    wasm += b"\0\x02\x01x"  # a section that means nothing, so that these are not the package's own bytes
    with pytest.raises(RefusedError, match="interface version 2, must have 99"):
        Engine(wasm)


def test_a_missing_engine_says_how_to_build_it(monkeypatch, tmp_path):
    monkeypatch.setattr(host.resources, "files", lambda package: tmp_path)
    with pytest.raises(RefusedError, match=r"run: python engine/build\.py") as caught:
        host.packaged_module.__wrapped__()
    assert caught.value.code == "engine_missing"


def test_a_trap_becomes_one_sentence(instance):
    with pytest.raises(SessionError) as caught:
        instance.call("sg_sha256_update", 0, 0xFFFFFF00, 64)
    assert caught.value.code == "worker_lost"
    assert "\n" not in str(caught.value)


def test_memory_that_no_one_can_give_is_refused(instance):
    for byte_count in (2**32 - 1, 2**32, 2**40):
        with pytest.raises(RefusedError) as caught:
            instance.reserve(byte_count)
        assert caught.value.code == "out_of_memory"
    assert instance.reserve(10) > 0


def test_a_size_beyond_2_gb_is_not_negative():
    instance = host.Instance(*host.packaged_module("maker.wasm"))
    assert instance.call("sg_patch_bound", 10, 2_200_000_000) > 2_200_000_000


def test_a_negative_size_is_the_callers_mistake(instance):
    with pytest.raises(UsageError, match=r"^engine: byte_count: is -1, must be 0 or more$") as caught:
        instance.reserve(-1)
    assert caught.value.code == "bad_argument"
    assert instance.reserve(0) > 0


def test_reserved_memory_is_fresh_zeroed_and_aligned(instance):
    first, second = instance.reserve(70_000), instance.reserve(1)
    assert first % 16 == second % 16 == 0
    assert second >= first + 70_000
    assert instance.read(first, 70_000) == bytes(70_000)


def test_a_block_that_was_given_back_is_used_again(instance):
    block = instance.take(1000)
    instance.give(block)
    assert instance.take(900) == block
    assert instance.take(900) != block


@pytest.mark.slow
def test_python_ends_without_complaint():
    code = "from builder.runtime.engine import Engine; Engine().instance()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""
