from __future__ import annotations

import dataclasses
import hashlib
import json
import struct
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.errors import PackageError
from builder.experts import (
    AffineRouterHead,
    AnchorDeltas,
    ExpertBinding,
    ExpertPackage,
    Features,
    FullMlp,
    HierarchicalPairs,
    LoraFactors,
    LoraMerge,
    LowRankDelta,
    PairTop2,
    TransformersCausalLM,
)
from tests.experts.tiny_models import llama, package_for

QUICK = settings(deadline=None, max_examples=40)

LITERAL_JSON = (
    '{"bindings":[{"expert":"a:0","layer":3,"payload":"delta"}],'
    '"features":{"kind":"identity","width":2},"format":"saguaro-expert-package",'
    '"mode":{"combination":"unit","deltas_max":2,"kind":"anchor_plus_deltas"},"name":"literal",'
    '"payloads":{"delta":{"activation":"relu","dtype":"float32","file":"payloads/delta.safetensors",'
    '"kind":"low_rank_delta","scale":2.0,"tensors":{"down.weight":[1,2],"up.weight":[2,1]}}},'
    '"routers":{"file":"routers.safetensors","heads":[{"expert":"a:0","layer":3}],"pairs":[]},"version":1}'
)
LITERAL_TENSORS = [
    ("payloads/delta/down.weight float32 [1, 2]", struct.pack("<2f", 1.0, 2.0)),
    ("payloads/delta/up.weight float32 [2, 1]", struct.pack("<2f", 0.5, -0.0)),
    ("routers/layers.3.experts.a:0.bias float32 []", struct.pack("<f", 0.25)),
    ("routers/layers.3.experts.a:0.weight float32 [2]", struct.pack("<2f", 1.0, -1.0)),
]
LITERAL_IDENTITY = hashlib.sha256(
    LITERAL_JSON.encode() + b"".join(line.encode() + b"\n" + data for line, data in LITERAL_TENSORS)
).hexdigest()


def literal_package() -> ExpertPackage:
    """The package of which every byte stands above."""
    return ExpertPackage(
        name="literal",
        features=Features(width=2),
        payloads={
            "delta": LowRankDelta(
                {"down.weight": torch.tensor([[1.0, 2.0]]), "up.weight": torch.tensor([[0.5], [-0.0]])},
                "relu",
                2.0,
            )
        },
        bindings=[ExpertBinding(3, "a:0", "delta")],
        router_heads={3: [AffineRouterHead("a:0", torch.tensor([1.0, -1.0]), 0.25)]},
        mode=AnchorDeltas(),
    )


def same_content(left: ExpertPackage, right: ExpertPackage) -> bool:
    pairs = zip(left.named_tensors(), right.named_tensors(), strict=True)
    return all(a == b and torch.equal(x, y) for (a, x), (b, y) in pairs)


@pytest.mark.parametrize(
    ("kind", "mode", "pairs"),
    [
        ("full_mlp", None, ()),
        ("lora", None, ()),
        ("low_rank_delta", None, ()),
        ("full_mlp", PairTop2(), ()),
        ("full_mlp", HierarchicalPairs(), (("x", "y"), ("y", "z"))),
        ("low_rank_delta", AnchorDeltas(deltas_max=1, combination="sigmoid"), ()),
        ("lora", LoraMerge(combination="unit"), ()),
    ],
)
def test_a_saved_package_reads_back_with_the_same_identity(
    tmp_path: Path, model: TransformersCausalLM, kind: str, mode: object, pairs: tuple
) -> None:
    package = package_for(model, "p", ("x", "y", "z"), seed=2, kind=kind, mode=mode, pairs=pairs)
    saved = package.save(tmp_path / "new" / "p")
    assert saved.package_directory == tmp_path / "new" / "p"
    assert saved.identity == package.identity
    assert saved.mode == package.mode
    assert same_content(saved, package)
    assert [p.kind for p in saved.payloads.values()] == [kind] * 9
    assert saved.save(tmp_path / "again").identity == package.identity


def test_saving_twice_writes_the_same_bytes(tmp_path: Path, package: ExpertPackage) -> None:
    package.save(tmp_path / "one")
    package.save(tmp_path / "two")
    files = sorted(path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*.*"))
    assert len(files) == 2 + len(package.payloads)
    for file in files:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def test_the_identity_is_the_documented_hash_of_known_bytes(tmp_path: Path) -> None:
    package = literal_package()
    assert package.identity == LITERAL_IDENTITY
    assert package.save(tmp_path / "literal").identity == LITERAL_IDENTITY


def test_toml_and_json_metadata_are_one_package(tmp_path: Path) -> None:
    literal_package().save(tmp_path / "p")
    (tmp_path / "p" / "package.json").unlink()
    (tmp_path / "p" / "package.toml").write_text(
        """
format = "saguaro-expert-package"
version = 1
name = "literal"
mode = { kind = "anchor_plus_deltas" }
features = { width = 2 }

[payloads.delta]
kind = "low_rank_delta"
dtype = "float32"
file = "payloads/delta.safetensors"
activation = "relu"
scale = 2
tensors = { "up.weight" = [2, 1], "down.weight" = [1, 2] }

[[bindings]]
layer = 3
expert = "a:0"
payload = "delta"

[routers]
file = "routers.safetensors"
heads = [{ layer = 3, expert = "a:0" }]
"""
    )
    assert ExpertPackage.from_directory(tmp_path / "p").identity == LITERAL_IDENTITY


def with_change(change: str) -> ExpertPackage:
    """The literal package with one thing changed."""
    package = literal_package()
    delta = package.payloads["delta"]
    changes = {
        "name": {"name": "other"},
        "mode": {"mode": AnchorDeltas(deltas_max=1)},
        "features": {"features": Features(kind="unit_rms", width=2)},
        "layer": {
            "bindings": [ExpertBinding(4, "a:0", "delta")],
            "router_heads": {4: package.router_heads[3]},
        },
        "expert id": {
            "bindings": [ExpertBinding(3, "a:1", "delta")],
            "router_heads": {3: [AffineRouterHead("a:1", torch.tensor([1.0, -1.0]), 0.25)]},
        },
        "anchor": {"bindings": [ExpertBinding(3, "a:0", "delta", "0" * 64)]},
        "payload name": {"payloads": {"d": delta}, "bindings": [ExpertBinding(3, "a:0", "d")]},
        "scale": {"payloads": {"delta": dataclasses.replace(delta, scale=3.0)}},
        "activation": {"payloads": {"delta": dataclasses.replace(delta, activation="silu")}},
        "sign of zero": {
            "payloads": {
                "delta": dataclasses.replace(
                    delta, tensors={**delta.tensors, "up.weight": torch.tensor([[0.5], [0.0]])}
                )
            }
        },
        "dtype": {
            "payloads": {
                "delta": dataclasses.replace(
                    delta, tensors={name: tensor.half() for name, tensor in delta.tensors.items()}
                )
            }
        },
        "head": {"router_heads": {3: [AffineRouterHead("a:0", torch.tensor([1.0, -1.5]), 0.25)]}},
        "bias": {"router_heads": {3: [AffineRouterHead("a:0", torch.tensor([1.0, -1.0]), 0.5)]}},
    }
    return dataclasses.replace(package, **changes[change])


CHANGES = (
    *("name", "mode", "features", "layer", "expert id", "anchor", "payload name", "scale", "activation"),
    *("sign of zero", "dtype", "head", "bias"),
)


def test_every_part_of_the_content_is_in_the_identity() -> None:
    identities = {change: with_change(change).identity for change in CHANGES}
    assert len({LITERAL_IDENTITY, *identities.values()}) == len(CHANGES) + 1


def test_where_files_lie_and_in_which_order_bindings_stand_is_not_in_the_identity(
    tmp_path: Path, directory: Path, package: ExpertPackage
) -> None:
    document = json.loads((directory / "package.json").read_text())
    document["bindings"].reverse()
    payload = document["payloads"]["p1-0"]
    (directory / payload["file"]).rename(directory / "elsewhere.safetensors")
    payload["file"] = "elsewhere.safetensors"
    (directory / "package.json").write_text(json.dumps(document, indent=3))
    assert ExpertPackage.from_directory(directory).identity == package.identity


def test_the_order_of_router_heads_is_in_the_identity(package: ExpertPackage) -> None:
    heads = {layer: list(reversed(heads)) for layer, heads in package.router_heads.items()}
    assert dataclasses.replace(package, router_heads=heads).identity != package.identity


def test_a_package_cannot_be_changed(package: ExpertPackage) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        package.name = "other"
    with pytest.raises(TypeError):
        package.payloads["new"] = package.payloads["p0-0"]
    with pytest.raises(TypeError):
        package.payloads["p0-0"].tensors["new"] = torch.zeros(1)
    with pytest.raises(AttributeError):
        package.bindings.append(None)
    with pytest.raises(TypeError):
        package.router_heads[0] = ()


def test_what_its_maker_does_to_the_tensors_later_does_not_reach_it() -> None:
    weight, head = torch.ones(2, 2), torch.ones(2)
    package = ExpertPackage(
        name="p",
        features=Features(width=2),
        payloads={"m": FullMlp({"weight": weight})},
        bindings=[ExpertBinding(0, "a", "m")],
        router_heads={0: [AffineRouterHead("a", head)]},
    )
    weight.zero_(), head.zero_()
    package.check_unchanged()
    assert package.payloads["m"].tensors["weight"].sum() == 4


def test_writing_into_a_package_is_noticed(package: ExpertPackage) -> None:
    package.payloads["p1-0"].tensors["up_proj.weight"][0, 0] += 1
    with pytest.raises(PackageError) as caught:
        package.check_unchanged()
    assert caught.value.code == "package_changed"


def test_conversion_makes_another_package_with_the_same_heads(package: ExpertPackage) -> None:
    half = package.converted(torch.bfloat16)
    assert half.identity != package.identity
    assert half.payloads["p0-0"].tensors["up_proj.weight"].dtype == torch.bfloat16
    assert torch.equal(half.router_heads[0][0].weight, package.router_heads[0][0].weight)
    assert half.converted(torch.float32).converted(torch.bfloat16).identity == half.identity


def test_saving_over_something_is_refused_and_touches_nothing(tmp_path: Path, package: ExpertPackage) -> None:
    taken = tmp_path / "taken"
    taken.mkdir()
    with pytest.raises(PackageError, match="must be a new name") as caught:
        package.save(taken)
    assert caught.value.code == "package_exists"
    assert list(tmp_path.iterdir()) == [taken]
    assert not list(taken.iterdir())


def test_a_write_that_breaks_off_leaves_nothing(
    tmp_path: Path, package: ExpertPackage, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    write_bytes = Path.write_bytes

    def full_disk(path: Path, data: bytes) -> int:
        calls.append(path)
        if len(calls) == 4:
            raise OSError(28, "No space left on device")
        return write_bytes(path, data)

    monkeypatch.setattr(Path, "write_bytes", full_disk)
    with pytest.raises(OSError, match="No space left"):
        package.save(tmp_path / "new")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@QUICK
@given(st.data())
def test_random_packages_survive_a_round_trip(data: st.DataObject) -> None:
    package = data.draw(packages())
    with tempfile.TemporaryDirectory() as folder:
        saved = package.save(Path(folder) / "p")
        assert saved.identity == package.identity
        assert same_content(saved, package)


@st.composite
def packages(draw: st.DrawFn) -> ExpertPackage:
    width = draw(st.integers(1, 4))
    name = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,8}", fullmatch=True)
    payload_name = st.from_regex(r"[a-z0-9][a-z0-9_-]{0,8}", fullmatch=True)
    seed = draw(st.integers(0, 2**31))
    generator = torch.Generator().manual_seed(seed)
    payloads, bindings, heads = {}, [], {}
    dtype = draw(st.sampled_from([torch.float32, torch.float16, torch.bfloat16]))
    for key in draw(st.lists(payload_name, min_size=1, max_size=3, unique=True)):
        rank = draw(st.integers(1, 3))
        kind = draw(st.sampled_from(["full", "delta", "lora"]))

        def noise(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator).to(dtype)

        if kind == "full":
            payloads[key] = FullMlp({"w": noise(rank, width), "b": noise(rank)})
        elif kind == "delta":
            payloads[key] = LowRankDelta(
                {"down.weight": noise(rank, width), "up.weight": noise(width, rank)},
                draw(st.sampled_from(["identity", "relu", "silu", "gelu"])),
                draw(st.floats(allow_nan=False, allow_infinity=False)),
            )
        else:
            payloads[key] = LoraFactors({"fc.lora_a": noise(rank, width), "fc.lora_b": noise(5, rank)})
        expert_ids = draw(st.lists(name, min_size=1, max_size=2, unique=True))
        layer = len(payloads) * draw(st.sampled_from([1, 100, 800]))
        for expert_id in expert_ids:
            if (layer, expert_id) not in {(b.layer, b.expert_id) for b in bindings}:
                bindings.append(ExpertBinding(layer, expert_id, key))
                head = AffineRouterHead(expert_id, torch.randn(width, generator=generator))
                heads.setdefault(layer, []).append(head)
    return ExpertPackage(
        name=draw(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,8}", fullmatch=True)),
        features=Features(width=width),
        payloads=payloads,
        bindings=bindings,
        router_heads=heads,
    )


def test_packages_of_one_model_fit_it_in_bf16_after_conversion() -> None:
    model = TransformersCausalLM(llama(dtype=torch.bfloat16))
    package = package_for(TransformersCausalLM(llama()), "p", ("x",), seed=3)
    model.install(package.converted(torch.bfloat16))
    assert model.synchronize_registry().expert_ids == {0: ("x",), 1: ("x",), 2: ("x",)}
