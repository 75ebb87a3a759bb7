"""Packages that must be refused: each defect with exactly its code, one sentence, and nothing loaded."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from builder.errors import PackageError
from builder.experts import ExpertPackage, HierarchicalPairs, TransformersCausalLM
from tests.experts.tiny_models import llama, package_for

Defect = Callable[[Path], None]
PAYLOAD, DELTA, ROUTERS = "payloads/p1-0.safetensors", "payloads/p1-1.safetensors", "routers.safetensors"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Full MLPs, in pairs: every key of the format is in use."""
    model = TransformersCausalLM(llama())
    package = package_for(
        model, "p", ("x", "y"), seed=2, layers=(1, 2), mode=HierarchicalPairs(), pairs=[("x", "y")]
    )
    directory = tmp_path_factory.mktemp("sound") / "p"
    package.save(directory)
    return directory


def edit(change: Callable[[dict[str, Any]], object]) -> Defect:
    def apply(directory: Path) -> None:
        path = directory / "package.json"
        document = json.loads(path.read_text())
        change(document)
        path.write_text(json.dumps(document))

    return apply


def write(name: str, data: bytes) -> Defect:
    def apply(directory: Path) -> None:
        (directory / name).write_bytes(data)

    return apply


def retensor(name: str, change: Callable[[dict[str, torch.Tensor]], object]) -> Defect:
    def apply(directory: Path) -> None:
        tensors = load_file(directory / name)
        change(tensors)
        save_file(tensors, directory / name)

    return apply


def swap_text(old: str, new: str) -> Defect:
    def apply(directory: Path) -> None:
        path = directory / "package.json"
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))

    return apply


def link(name: str, target: str) -> Defect:
    def apply(directory: Path) -> None:
        (directory / name).unlink()
        (directory / name).symlink_to(target)

    return apply


def poke(tensors: dict[str, torch.Tensor], name: str, value: float) -> None:
    tensors[name].view(-1)[0] = value


def add_delta(document: dict[str, Any], shapes: dict[str, list[int]], kind: str = "low_rank_delta") -> None:
    document["payloads"]["p1-1"] = {"kind": kind, "dtype": "float32", "file": DELTA, "tensors": shapes}


def delta(shapes: dict[str, list[int]], kind: str = "low_rank_delta") -> Defect:
    def apply(directory: Path) -> None:
        edit(lambda d: add_delta(d, shapes, kind))(directory)
        save_file({name: torch.ones(shape) for name, shape in shapes.items()}, directory / DELTA)

    return apply


def remove(name: str) -> Defect:
    return lambda directory: (directory / name).unlink()


def fifo(directory: Path) -> None:
    (directory / PAYLOAD).unlink()
    os.mkfifo(directory / PAYLOAD)


W = "gate_proj.weight"
HEAD = "layers.1.experts.x.weight"
DEFECTS: dict[str, tuple[str, Defect]] = {
    "no directory": ("directory", shutil.rmtree),
    "no metadata": ("metadata_file", remove("package.json")),
    "two metadata files": ("metadata_file", write("package.toml", b"")),
    "metadata is a directory": (
        "file",
        lambda d: (remove("package.json")(d), (d / "package.json").mkdir()),
    ),
    "metadata links outside": ("path", link("package.json", "/etc/hostname")),
    "empty metadata": ("metadata", write("package.json", b"")),
    "metadata is a list": ("metadata", write("package.json", b"[]")),
    "metadata is not UTF-8": ("metadata", write("package.json", b'{"name": "\xff"}')),
    "metadata is cut": ("metadata", lambda d: os.truncate(d / "package.json", 300)),
    "metadata goes on": ("metadata", swap_text('"version":1}', '"version":1} {}')),
    "metadata is nested deeply": ("metadata", write("package.json", b'{"a":' * 100_000)),
    "a number of 5000 digits": ("metadata", swap_text('"version":1', '"version":' + "9" * 5000)),
    "not a number": ("metadata", swap_text('"version":1', '"version":NaN')),
    "metadata of 2 MiB": ("too_large", write("package.json", b" " * (2 << 20))),
    "a key twice": ("duplicate_key", swap_text('"version":1', '"version":1,"version":1')),
    "a key twice inside": (
        "duplicate_key",
        swap_text('"kind":"full_mlp"', '"kind":"lora","kind":"full_mlp"'),
    ),
    "another format": ("format", edit(lambda d: d.update(format="onnx"))),
    "a later version": ("format", edit(lambda d: d.update(version=2))),
    "an unknown key": ("unknown_key", edit(lambda d: d.update(author="me"))),
    "an unknown key in a payload": ("unknown_key", edit(lambda d: d["payloads"]["p1-0"].update(alpha=1))),
    "an unknown key in a binding": ("unknown_key", edit(lambda d: d["bindings"][0].update(weight=1))),
    "an unknown key in the mode": ("unknown_key", edit(lambda d: d["mode"].update(deltas_max=2))),
    "no bindings": ("missing_key", edit(lambda d: d.pop("bindings"))),
    "no payload kind": ("missing_key", edit(lambda d: d["payloads"]["p1-0"].pop("kind"))),
    "empty bindings": ("bad_field", edit(lambda d: d.update(bindings=[]))),
    "a negative layer": ("bad_field", edit(lambda d: d["bindings"][0].update(layer=-1))),
    "a layer that is true": ("bad_field", edit(lambda d: d["bindings"][0].update(layer=True))),
    "a layer that is text": ("bad_field", edit(lambda d: d["bindings"][0].update(layer="1"))),
    "an expert id with a line feed": ("bad_field", edit(lambda d: d["bindings"][0].update(expert="x\n"))),
    "an unknown mode": ("bad_field", edit(lambda d: d["mode"].update(kind="top_7"))),
    "a mode that rings the bell": ("bad_field", edit(lambda d: d["mode"].update(kind="\x07"))),
    "an unknown dtype": ("bad_field", edit(lambda d: d["payloads"]["p1-0"].update(dtype="float64"))),
    "a scale for full weights": ("bad_field", edit(lambda d: d["payloads"]["p1-0"].update(scale=2.0))),
    "an activation for full weights": (
        "bad_field",
        edit(lambda d: d["payloads"]["p1-0"].update(activation="relu")),
    ),
    "an infinite scale": ("bad_field", swap_text('"kind":"full_mlp"', '"scale":1e999,"kind":"full_mlp"')),
    "a shape below one": ("bad_field", edit(lambda d: d["payloads"]["p1-0"]["tensors"].update({W: [0, 16]}))),
    "features of width 0": ("bad_field", edit(lambda d: d["features"].update(width=0))),
    "an absolute path": ("path", edit(lambda d: d["payloads"]["p1-0"].update(file="/etc/hostname"))),
    "a path that climbs out": ("path", edit(lambda d: d["payloads"]["p1-0"].update(file="../p/" + PAYLOAD))),
    "a path with a backslash": ("path", edit(lambda d: d["routers"].update(file="a\\b"))),
    "a link that leads out": ("path", link(PAYLOAD, "/etc/hostname")),
    "a link to itself": ("path", link(PAYLOAD, "p1-0.safetensors")),
    "a missing file": ("file", remove(PAYLOAD)),
    "a missing router file": ("file", remove(ROUTERS)),
    "a pipe": ("file", fifo),
    "a path that is the directory": ("file", edit(lambda d: d["payloads"]["p1-0"].update(file="."))),
    "a file with a very long name": ("file", edit(lambda d: d["payloads"]["p1-0"].update(file="x" * 200))),
    "an empty tensor file": ("tensors", write(PAYLOAD, b"")),
    "a tensor file of zeros": ("tensors", write(PAYLOAD, bytes(100))),
    "a cut tensor file": ("tensors", lambda d: os.truncate(d / PAYLOAD, 900)),
    "a header longer than the file": ("tensors", write(PAYLOAD, (2**40).to_bytes(8, "little") + b"{}")),
    "a missing tensor": ("missing_tensor", retensor(PAYLOAD, lambda t: t.pop(W))),
    "a missing head": ("missing_tensor", retensor(ROUTERS, lambda t: t.pop(HEAD))),
    "a tensor too many": ("unknown_tensor", retensor(PAYLOAD, lambda t: t.update(extra=torch.ones(1)))),
    "a wrong shape": ("wrong_shape", retensor(PAYLOAD, lambda t: t.update({W: torch.ones(24, 15)}))),
    "a transposed tensor": ("wrong_shape", retensor(PAYLOAD, lambda t: t.update({W: torch.ones(16, 24)}))),
    "a head of another width": ("wrong_shape", retensor(ROUTERS, lambda t: t.update({HEAD: torch.ones(15)}))),
    "a wrong dtype": ("wrong_dtype", retensor(PAYLOAD, lambda t: t.update({W: t[W].half()}))),
    "a dtype of whole numbers": ("wrong_dtype", retensor(PAYLOAD, lambda t: t.update({W: t[W].long()}))),
    "a head in bfloat16": ("wrong_dtype", retensor(ROUTERS, lambda t: t.update({HEAD: t[HEAD].bfloat16()}))),
    "a NaN": ("not_finite", retensor(PAYLOAD, lambda t: poke(t, W, float("nan")))),
    "an infinity": ("not_finite", retensor(PAYLOAD, lambda t: poke(t, W, float("-inf")))),
    "a NaN in a head": ("not_finite", retensor(ROUTERS, lambda t: poke(t, HEAD, float("nan")))),
    "a binding twice": ("duplicate_binding", edit(lambda d: d["bindings"].append(d["bindings"][0]))),
    "two payloads for one expert": (
        "duplicate_binding",
        edit(lambda d: d["bindings"].append({**d["bindings"][0], "payload": "p1-1"})),
    ),
    "a head twice": (
        "duplicate_router",
        edit(lambda d: d["routers"]["heads"].append(d["routers"]["heads"][0])),
    ),
    "a pair twice": (
        "duplicate_router",
        edit(lambda d: d["routers"]["pairs"].append(d["routers"]["pairs"][0])),
    ),
    "a binding to nothing": ("payload_unknown", edit(lambda d: d["bindings"][0].update(payload="p9"))),
    "a payload for nobody": (
        "payload_unused",
        edit(lambda d: d["payloads"].update(spare=d["payloads"]["p1-0"])),
    ),
    "an expert without a head": ("router_missing", edit(lambda d: d["routers"]["heads"].pop())),
    "a layer without pairs": ("router_missing", edit(lambda d: d["routers"]["pairs"].pop())),
    "a head for nobody": (
        "router_unknown",
        edit(lambda d: d["routers"]["heads"].append({"layer": 0, "expert": "x"})),
    ),
    "a pair of strangers": (
        "router_unknown",
        edit(lambda d: d["routers"]["pairs"][0].update(experts=["x", "stranger"])),
    ),
    "a pair of one": ("router_unknown", edit(lambda d: d["routers"]["pairs"][0].update(experts=["x", "x"]))),
    "pairs in another mode": ("router_unknown", edit(lambda d: d.update(mode={"kind": "pair_top2"}))),
    "a delta without up": ("missing_tensor", delta({"down.weight": [2, 16]})),
    "a delta that does not fit itself": (
        "wrong_shape",
        delta({"down.weight": [2, 16], "up.weight": [16, 3]}),
    ),
    "a delta with a guest": (
        "unknown_tensor",
        delta({"down.weight": [2, 16], "up.weight": [16, 2], "bias": [16]}),
    ),
    "LoRA without B": ("missing_tensor", delta({"up_proj.lora_a": [2, 16]}, "lora")),
    "LoRA without A": ("unknown_tensor", delta({"up_proj.lora_b": [24, 2]}, "lora")),
    "LoRA of two ranks": (
        "wrong_shape",
        delta({"up_proj.lora_a": [2, 16], "up_proj.lora_b": [24, 3]}, "lora"),
    ),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_is_refused_with_its_own_code(defect: str, sound: Path, tmp_path: Path) -> None:
    code, apply = DEFECTS[defect]
    directory = tmp_path / "p"
    shutil.copytree(sound, directory)
    ExpertPackage.from_directory(directory)  # sound before
    apply(directory)
    with pytest.raises(PackageError) as caught:
        ExpertPackage.from_directory(directory)
    assert caught.value.code == f"package_{code}"
    sentence = str(caught.value)
    assert "docs/experts.md" in sentence
    assert sentence.isprintable()  # one line, nothing from the file that a terminal would obey
    assert len(sentence) < 600


def test_a_package_above_the_allowed_size_is_refused(sound: Path) -> None:
    total = sum(path.stat().st_size for path in sound.rglob("*") if path.is_file())
    assert ExpertPackage.from_directory(sound, bytes_max=total)
    with pytest.raises(PackageError) as caught:
        ExpertPackage.from_directory(sound, bytes_max=total - 1)
    assert caught.value.code == "package_too_large"


def test_a_sparse_file_is_refused_by_its_size_alone(sound: Path, tmp_path: Path) -> None:
    directory = tmp_path / "p"
    shutil.copytree(sound, directory)
    os.truncate(directory / PAYLOAD, 1 << 40)  # a terabyte that is not there
    with pytest.raises(PackageError) as caught:
        ExpertPackage.from_directory(directory)
    assert caught.value.code == "package_too_large"


def test_the_same_rules_hold_for_a_package_made_in_memory(sound: Path) -> None:
    package = ExpertPackage.from_directory(sound)
    payload = package.payloads["p1-0"]

    def with_tensors(**changes: torch.Tensor) -> dict[str, Any]:
        return {
            **package.payloads,
            "p1-0": dataclasses.replace(payload, tensors={**payload.tensors, **changes}),
        }

    cases: dict[str, dict[str, Any]] = {
        "not_finite": {"payloads": with_tensors(up=torch.tensor([float("nan")]))},
        "wrong_dtype": {"payloads": with_tensors(up=torch.ones(1, dtype=torch.float64))},
        "payload_unknown": {"payloads": {"p1-0": payload}},
        "duplicate_binding": {"bindings": [*package.bindings, package.bindings[0]]},
        "router_missing": {"router_heads": {1: package.router_heads[1]}},
        "bad_field": {"name": "two words"},
        "wrong_shape": {"features": package.features.model_copy(update={"width": 15})},
    }
    for code, changes in cases.items():
        with pytest.raises(PackageError) as caught:
            dataclasses.replace(package, **changes)
        assert caught.value.code == f"package_{code}"


FUZZ = settings(deadline=None, max_examples=60)


def load_or_refuse(directory: Path) -> None:
    """Anything else than a package or a PackageError is a bug."""
    refused = None
    try:
        ExpertPackage.from_directory(directory)
    except PackageError as error:
        refused = error
    assert refused is None or (refused.code.startswith("package_") and str(refused).isprintable())


@pytest.mark.slow
@FUZZ
@given(data=st.data())
def test_damaged_bytes_never_do_anything_but_load_or_be_refused(
    data: st.DataObject, sound: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("fuzz") / "p"
    shutil.copytree(sound, directory)
    path = directory / data.draw(st.sampled_from(["package.json", PAYLOAD, ROUTERS]))
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(content)))
        action = data.draw(st.sampled_from(["cut", "overwrite", "insert", "double"]))
        noise = data.draw(st.binary(min_size=1, max_size=9))
        if action == "cut":
            del content[start : start + data.draw(st.integers(1, 200))]
        elif action == "overwrite":
            content[start : start + len(noise)] = noise
        elif action == "insert":
            content[start:start] = noise
        else:
            content[start:start] = content[start : start + 50]
    path.write_bytes(bytes(content))
    load_or_refuse(directory)
    shutil.rmtree(directory)


JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(allow_nan=False),
        st.text(max_size=8),
        st.sampled_from(["lora", "low_rank_delta", "p1-0", "x", "../x", "float16", "anchored_top1"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=8,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in the document where something stands."""
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        found += places(inner, (*path, key))
    return found


@pytest.mark.slow
@FUZZ
@given(data=st.data())
def test_strange_metadata_never_does_anything_but_load_or_be_refused(
    data: st.DataObject, sound: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("fuzz") / "p"
    shutil.copytree(sound, directory)
    document = json.loads((sound / "package.json").read_text())
    for _ in range(data.draw(st.integers(1, 3))):
        spot = data.draw(st.sampled_from(places(document)))
        parent = document
        for key in spot[:-1]:
            parent = parent[key]
        parent[spot[-1]] = data.draw(JSON)
    (directory / "package.json").write_text(json.dumps(document))
    load_or_refuse(directory)
    shutil.rmtree(directory)


@pytest.mark.slow
def test_a_file_that_is_cut_off_anywhere_is_refused(sound: Path, tmp_path: Path) -> None:
    directory = tmp_path / "p"
    shutil.copytree(sound, directory)
    for name in ("package.json", ROUTERS, PAYLOAD):
        content = (sound / name).read_bytes()
        for length in range(0, len(content), 1 if name == ROUTERS else 7):
            (directory / name).write_bytes(content[:length])
            if name == "package.json" and content[length:].strip() == b"":
                continue  # only the last line feed is gone
            with pytest.raises(PackageError):
                ExpertPackage.from_directory(directory)
        (directory / name).write_bytes(content)
