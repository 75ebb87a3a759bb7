"""Compile the engine: the WebAssembly modules of the package, or a native program for tests and fuzzing.

Owns: every compiler flag, and the promise that the same sources give the same bytes in any directory. It is a
script (`python engine/build.py`) and the build hook through which pip puts the modules into the wheel.
Knows nothing of: what the engine does. The flags' reasons stand in docs/engine.md, "Build".
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ENGINE = Path(__file__).resolve().parent
OUTPUT = ENGINE.parent / "builder" / "runtime"
MODULES = {"maker": ("maker", False), "engine_relaxed": ("engine", True), "engine": ("engine", False)}
"""Name -> file of exports in engine/wasm (unused code is left out), whether for relaxed SIMD.

The patch maker, and what visitors run; `make` looks at the last one alone.
"""

LANGUAGE = ["-std=c11", "-ffp-contract=off", "-fno-math-errno", "-Iinclude", "-Isrc"]
WARNINGS = [
    *("-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow", "-Wcast-align"),
    *("-Wmissing-prototypes", "-Wvla", "-Werror"),
]
# A reactor is a library: no main. `-s` drops names and paths: the bytes do not depend on the directory.
WASM = ["-target", "wasm32-wasi", "-mexec-model=reactor", "-msimd128", "-s"]
CLANG = [sys.executable, "-m", "ziglang", "cc", *WASM]
# zig's linker puts the stack below the data, so that an overflow traps at address 0 and overwrites nothing.
WASM_LINK = ["-Wl,-z,stack-size=262144"]
SPEED, SIZE = ["-O3"], ["-Os", "-fno-inline"]
# Files that run once per model or per answer: half the bytes, and no one waits for them.
SMALL = {
    *("detokenize", "directory", "encode", "engine", "error", "fixed", "header", "heads", "host", "ladder"),
    *("maker", "model", "model_load", "model_load_heads", "sampling", "session", "tokenizer_load", "values"),
    *("patch_container", "patch_cq", "patch_fit_basis"),
    *("patch_make", "patch_match", "patch_parts", "rebuild_fields"),
    *(
        "grammar_disjoint",
        "grammar_expect",
        "grammar_finish",
        "grammar_flat",
        "grammar_json",
        "grammar_mask",
        "grammar_nodes",
        "grammar_number",
    ),
    *(
        "grammar_pattern",
        "grammar_prepare",
        "grammar_regex",
        "grammar_schema",
        "grammar_step",
        "grammar_tokens",
    ),
    "grammar_types",
}
# Files that read `__wasm_relaxed_simd__`; all others are the same in both modules.
RELAXED = {"fixed_simd", "product_relaxed", "product_simd"}
SANITIZE = [
    "-O1",
    "-g",
    "-fsanitize=address,undefined,float-cast-overflow",
    "-fno-sanitize-recover=all",
    "-fno-omit-frame-pointer",
]


def sources(engine: Path) -> list[str]:
    """The portable C files, relative to `engine`, in a fixed order."""
    return [f"src/{path.name}" for path in sorted((engine / "src").glob("*.c"))]


def compile_wasm(
    output: Path,
    *,
    module: str = "engine",
    relaxed: bool = False,
    scalar: bool = False,
    probes: Sequence[Path] = (),
    engine: Path = ENGINE,
    objects: Path | None = None,
) -> Path:
    """Write a module to `output`, whole or not at all. Raises SystemExit with the compiler's words.

    `module` is a file of exports. `relaxed` makes the module for hosts with relaxed SIMD: the same logits,
    `fast` takes less time. `objects` is a folder for what several modules of the same sources share.
    For tests: `scalar` takes the kernels in plain C, `probes` are C files that export more.
    """
    files = [*sources(engine), "wasm/host.c", f"wasm/{module}.c", *map(str, probes)]
    scalars = ["-DSG_SCALAR"] if scalar else []
    with _made_whole(output) as made:
        linked = []
        relaxed_stems = {*RELAXED, *(probe.stem for probe in probes)} if relaxed else set()
        for name in files:
            stem = Path(name).stem
            variant = [*scalars, *(["-mrelaxed-simd"] if stem in relaxed_stems else [])]
            linked.append((objects or made.parent) / f"{stem}{''.join(variant)}.o")
            level = SIZE if stem in SMALL else SPEED
            command = [*CLANG, *variant, *level, *LANGUAGE, *WARNINGS, "-c", name, "-o", str(linked[-1])]
            if not linked[-1].exists():
                _run(command, engine)
        _run([*CLANG, *map(str, linked), *WASM_LINK, "-o", str(made)], engine)
    return output


def compile_native(
    output: Path,
    drivers: Sequence[Path] = (),
    *,
    sanitize: bool = True,
    engine: Path = ENGINE,
    objects: Sequence[Path] = (),
) -> Path:
    """Compile with the host's gcc: a program if `drivers` holds a file with `main`, else a shared library.

    `sanitize` adds AddressSanitizer and UndefinedBehaviorSanitizer, each fatal at its first finding.
    `objects` are what `compile_objects` made of the sources, where several programs share them.
    """
    files = [*(map(str, objects) if objects else sources(engine)), *map(str, drivers)]
    with _made_whole(output) as made:
        command = [*_gcc(sanitize), *files, *([] if drivers else ["-shared"]), "-o", str(made)]
        _run(command, engine)
    return output


def compile_objects(folder: Path, *, sanitize: bool = True, engine: Path = ENGINE) -> list[Path]:
    """Compile the portable sources into `folder` for `compile_native`, one at a time on each core."""
    objects = {name: folder / f"{Path(name).stem}.o" for name in sources(engine)}
    folder.mkdir(parents=True, exist_ok=True)

    def compile_one(name: str) -> None:
        _run([*_gcc(sanitize), "-c", name, "-o", str(objects[name])], engine)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(compile_one, objects))
    return list(objects.values())


def _gcc(sanitize: bool) -> list[str]:
    return ["gcc", "-fPIC", *(SANITIZE if sanitize else SPEED), *LANGUAGE, *WARNINGS]


@contextlib.contextmanager
def _made_whole(output: Path) -> Iterator[Path]:
    """A place beside `output` to make it; it gets its name only when it is complete."""
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=".engine-") as folder:
        yield Path(folder) / output.name
        os.replace(Path(folder) / output.name, output)


def _run(command: list[str], engine: Path) -> None:
    done = subprocess.run(command, cwd=engine, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"engine: {command[0]} refused the sources\n{done.stderr}")


class CustomBuildHook(BuildHookInterface[Any]):
    """Compiles the engine into the package for wheels and for editable installs."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the modules to `builder/runtime`; pyproject.toml lists them as artifacts."""
        if self.target_name == "wheel":
            compile_modules(OUTPUT)


def compile_modules(folder: Path) -> list[Path]:
    """Write all `MODULES` to `folder` as `{name}.wasm`; each source is compiled once per variant."""
    with tempfile.TemporaryDirectory(prefix="engine-") as objects:
        return [
            compile_wasm(folder / f"{name}.wasm", module=module, relaxed=relaxed, objects=Path(objects))
            for name, (module, relaxed) in MODULES.items()
        ]


def main() -> None:
    """Compile for the package and say what came out."""
    parser = argparse.ArgumentParser(description="Compile the WebAssembly modules into the package.")
    parser.add_argument("--out", type=Path, default=OUTPUT, help="where to write them (default: %(default)s)")
    for output in compile_modules(parser.parse_args().out.resolve()):
        data = output.read_bytes()
        print(f"{output} {len(data)} bytes sha256 {hashlib.sha256(data).hexdigest()[:12]}")


if __name__ == "__main__":
    main()
