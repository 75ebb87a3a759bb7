"""`python -m builder onnx`: one artifact, or one sentence and nothing written."""

from __future__ import annotations

import hashlib
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from builder.cact.ladder import rung
from builder.cact.reader import read_container
from builder.cli import main
from builder.onnx import export
from builder.reference.generation import generate
from builder.reference.prompts import PromptTemplate, render_prompt
from builder.runtime.engine import Engine
from builder.runtime.interface import Sampling
from tests.cli.conftest import Run, run
from tests.onnx.oracle_onnxruntime import OnnxSession

__all__ = ["run"]  # A fixture.

GOLDEN = Path(__file__).parents[1] / "golden"
GUIDE = Path(__file__).parents[2] / "docs" / "onnx.md"


@pytest.mark.parametrize("name", ["tiny83", "tiny84", "tiny84_widths"])
def test_a_container_becomes_one_file_that_runs(run: Run, tmp_path: Path, name: str):
    out = tmp_path / "model.onnx"
    code, printed, told = run("onnx", GOLDEN / f"{name}.cact", "--out", out)
    data = out.read_bytes()
    digest = hashlib.sha256(data).hexdigest()[:12]
    assert (code, printed) == (0, f"{out}  {len(data):,} bytes  {digest}\n")
    assert told == f"onnx: exported 2 layers of {GOLDEN / name}.cact in float32\n"
    assert np.isfinite(OnnxSession(data).append([4, 6, 7])).all()
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize(
    ("source", "out", "sentence"),
    [
        ("missing.cact", "model.onnx", "missing.cact: cannot be read: no such file or directory"),
        ("cut.cact", "model.onnx", "cut.cact: header at byte 100: is cut off after 100 bytes"),
        ("good.cact", "good.cact", "is the same file as"),
        ("good.cact", "nowhere/model.onnx", "cannot be written: .*nowhere is no folder"),
        ("good.cact", "folder", "cannot be written: is a folder, not a file"),
    ],
)
def test_what_cannot_be_read_or_written_is_told_in_one_sentence(
    run: Run, tmp_path: Path, source: str, out: str, sentence: str
):
    whole = (GOLDEN / "tiny84.cact").read_bytes()
    (tmp_path / "good.cact").write_bytes(whole)
    (tmp_path / "cut.cact").write_bytes(whole[:100])
    (tmp_path / "folder").mkdir()
    before = sorted(tmp_path.iterdir())
    code, printed, told = run("onnx", tmp_path / source, "--out", tmp_path / out)
    assert (code, printed) == (1, "")
    assert re.search(sentence, told)
    assert told.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == before
    assert (tmp_path / "good.cact").read_bytes() == whole


def test_a_rung_of_the_ladder_is_exported_like_a_file_of_its_own(run: Run, demo_family, tmp_path: Path):
    base, shallow = demo_family.folder / "base.cact", tmp_path / "shallow.cact"
    shallow.write_bytes(rung(read_container(base), 3).data)
    for source, depth in ((base, ["--depth", "3"]), (shallow, [])):
        assert run("onnx", source, "--out", tmp_path / f"{source.stem}.onnx", *depth)[0] == 0
    assert (tmp_path / "base.onnx").read_bytes() == (tmp_path / "shallow.onnx").read_bytes()
    code, _, told = run("onnx", base, "--out", tmp_path / "deep.onnx", "--depth", "9")
    assert (code, told) == (2, f"onnx: {base}: depth: is 9, must be 2 to 6 layers\n")
    assert not (tmp_path / "deep.onnx").exists()


def test_a_failure_while_exporting_leaves_the_old_file(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    out = tmp_path / "model.onnx"
    out.write_bytes(b"old")
    monkeypatch.setattr(export, "MODEL_BYTES_MAX", 10)
    code, _, told = run("onnx", GOLDEN / "tiny84.cact", "--out", out)
    assert (code, out.read_bytes()) == (1, b"old")
    assert "weights: is" in told


def test_without_the_package_the_sentence_names_the_extra(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in [name for name in sys.modules if name.startswith("builder.onnx.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "onnx", None)
    code, _, told = run("onnx", GOLDEN / "tiny84.cact", "--out", tmp_path / "model.onnx")
    assert code == 2
    assert told.endswith("install it with: pip install 'saguaro[onnx]'\n")


@pytest.mark.slow
def test_the_program_of_the_guide_answers_as_the_engine_does(
    demo_family, tmp_path: Path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base.cact").write_bytes((demo_family.folder / "base.cact").read_bytes())
    main(["onnx", "base.cact", "--out", "base.onnx"])
    [program] = re.findall(r"```python\n(.*?)```", GUIDE.read_text("utf-8"), re.DOTALL)
    capsys.readouterr()
    exec(compile(program, str(GUIDE), "exec"), {})
    printed = capsys.readouterr().out
    model = Engine().open((tmp_path / "base.cact").read_bytes())
    prompt = render_prompt(PromptTemplate(), ["hi there!"], 0)
    made = generate(model, [model.info.bos_id, *model.encode(prompt)], 60, Sampling())
    assert printed == model.decode(made.token_ids) + "\n"
    assert made.stop_reason == "stop"
