"""The exported model in ONNX Runtime, native and in Chromium, for `bench.engine`.

Owns: the installation of ONNX Runtime Web (locked in bench/package-lock.json, 148 MB, so that nothing else
pays for it), and what both runtimes are asked. Knows nothing of: rounds, tables.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from bench.engine_hosts import Chromium, cpu_seconds
from bench.engine_peers import Runner, prefill_and_whole
from builder.cact.reader import read_container
from builder.onnx.export import export_model

HERE = Path(__file__).parent
WEB_RUNTIME = ("ort.wasm.bundle.min.mjs", "ort-wasm-simd-threaded.wasm")
MODEL = "exported.onnx"
NUMPY_TYPES = {"tensor(int64)": np.int64, "tensor(float)": np.float32}


def onnx_runners(host: Chromium, path: Path, ids: list[int], new_tokens: int) -> dict[str, Runner]:
    """Both runtimes, each on one thread; they must agree on the first token of an answer."""
    model = export_model(read_container(path))
    native, page = NativeSession(model), Page(host)
    page.install(model)
    found, expected = page.ask({"run": "prefill", "ids": ids})["likeliest"], native.append(ids)
    if found != expected:
        sys.exit(f"bench: ONNX Runtime Web answers with token {found}, the native one with {expected}")
    rates = partial(prefill_and_whole, len(ids), new_tokens)
    return {
        "onnxruntime, native": Runner(partial(native_seconds, native, ids, new_tokens), rates),
        "chromium onnxruntime-web": Runner(partial(page_seconds, page, ids, new_tokens), rates),
    }


class NativeSession:
    """One text in the Python package; what the graph remembers goes from outputs to inputs."""

    def __init__(self, model: bytes) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(model, options)
        self._names = [output.name for output in self._session.get_outputs()]
        self._past: dict[str, Any] = {}
        self.reset()

    def reset(self) -> None:
        inputs = [value for value in self._session.get_inputs() if value.name.startswith("past.")]
        self._past = {
            value.name: np.zeros(
                [size if isinstance(size, int) else 0 for size in value.shape], NUMPY_TYPES[value.type]
            )
            for value in inputs
        }

    def append(self, ids: list[int]) -> int:
        feed = {"ids": np.array(ids, np.int64), "logit_rows": np.array([1]), **self._past}
        found = dict(zip(self._names, self._session.run(None, feed), strict=True))
        logits = found.pop("logits")
        self._past = {name.replace("present.", "past."): value for name, value in found.items()}
        return int(logits[0].argmax())


@dataclass
class Page:
    """A page of Chromium that obeys engine_onnx.js."""

    host: Chromium
    OBEY = "async (command) => (await import('/engine_onnx.js')).obey(command)"

    def install(self, model: bytes) -> None:
        """Put program, runtime and model where the page may fetch them, and open the model."""
        runtime = HERE / "node_modules" / "onnxruntime-web" / "dist"
        if not runtime.is_dir():
            install_web_runtime()
        for source in (HERE / "engine_onnx.js", *(runtime / name for name in WEB_RUNTIME)):
            shutil.copy(source, self.host.folder)
        (self.host.folder / MODEL).write_bytes(model)
        self.ask({"run": "open", "model": f"/{MODEL}"})

    def ask(self, command: dict[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = self.host.page.evaluate(self.OBEY, command)
        return answer

    def process_ids(self) -> list[int]:
        return self.host.process_ids()


def install_web_runtime() -> None:
    """`npm ci` in this folder; no package's scripts are run."""
    programs = Path(sys.executable).parent
    search = os.pathsep.join((str(programs), os.environ.get("PATH", "")))
    command = [str(programs / "npm"), "ci", "--silent", "--ignore-scripts", "--prefix", str(HERE)]
    if subprocess.run(command, env={**os.environ, "PATH": search}, check=False).returncode:
        sys.exit("bench: ONNX Runtime Web cannot be installed; it needs npm and its registry")


def native_seconds(session: NativeSession, ids: list[int], new_tokens: int) -> tuple[float, float]:
    """CPU seconds of prefill, and of prefill and decode."""
    session.reset()
    started = time.process_time()
    session.append(ids)
    prefilled = time.process_time()
    for i in range(new_tokens):
        session.append([ids[i % len(ids)]])
    return prefilled - started, time.process_time() - started


def page_seconds(page: Page, ids: list[int], new_tokens: int) -> tuple[float, float]:
    """The same, of the page's process."""
    prefill, _ = cpu_seconds(page, {"run": "prefill", "ids": ids})
    decode, _ = cpu_seconds(page, {"run": "decode", "ids": ids, "newTokens": new_tokens})
    return prefill, prefill + decode
