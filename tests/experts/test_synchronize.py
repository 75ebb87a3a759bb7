"""The transition from registry to runtime: what changes, when, and what is refused."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest
import torch

from builder.errors import PackageError, UsageError
from builder.experts import (
    AffineRouterHead,
    AnchorDeltas,
    ExpertBinding,
    ExpertPackage,
    Features,
    FullMlp,
    HierarchicalPairs,
    IdentityRouterFeatureExtractor,
    LoraMerge,
    PairTop2,
    RoutedMLP,
    RouterFeatureExtractor,
    TransformersCausalLM,
    anchor_sha256,
    assert_tensors_equivalent,
    register_feature_extractor,
)
from tests.experts.tiny_models import LAYERS, WIDTH, Scaled, ids, llama, package_for

MODES = [
    ("full_mlp", None, ()),
    ("lora", None, ()),
    ("low_rank_delta", None, ()),
    ("full_mlp", PairTop2(), ()),
    ("full_mlp", HierarchicalPairs(), (("x", "y"), ("y", "z"))),
    ("low_rank_delta", AnchorDeltas(), ()),
    ("low_rank_delta", AnchorDeltas(deltas_max=1, combination="sigmoid"), ()),
    ("lora", LoraMerge(), ()),
    ("lora", LoraMerge(updates_max=1, combination="unit"), ()),
]


def logits(model: TransformersCausalLM) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=ids()).logits


def test_nothing_changes_before_synchronisation_and_the_model_says_so(
    model: TransformersCausalLM, package: ExpertPackage
) -> None:
    dense = logits(TransformersCausalLM(llama()))
    assert_tensors_equivalent(logits(model), dense)
    assert model.is_synchronized
    model.install(package)
    assert not model.is_synchronized
    assert_tensors_equivalent(logits(model), dense)
    model.synchronize_registry()
    assert model.is_synchronized
    routed = logits(model)
    assert not torch.equal(routed, dense)
    model.unload(package.identity)
    assert not model.is_synchronized
    assert_tensors_equivalent(logits(model), routed)


@pytest.mark.parametrize(("kind", "mode", "pairs"), MODES)
def test_an_empty_registry_restores_the_dense_logits_and_reinsertion_the_routed_ones(
    model: TransformersCausalLM, kind: str, mode: Any, pairs: Any, tmp_path: Any
) -> None:
    dense = logits(TransformersCausalLM(llama()))
    package = package_for(model, "p", ("x", "y", "z"), seed=3, kind=kind, mode=mode, pairs=pairs)
    package = package.save(tmp_path / "p")
    model.install(package)
    installed = model.synchronize_registry()
    routed = logits(model)
    assert not torch.equal(routed, dense)
    assert installed.modes == dict.fromkeys(range(LAYERS), package.mode.kind)

    model.unload(package.identity)
    emptied = model.synchronize_registry()
    assert_tensors_equivalent(logits(model), dense)
    assert emptied.configured_layers == installed.configured_layers
    assert emptied.expert_ids == {}
    assert not any(runtime for runtime in model.board.current.by_layer)

    model.install(ExpertPackage.from_directory(package.package_directory))
    reinserted = model.synchronize_registry()
    assert reinserted.registry_sha256 == installed.registry_sha256
    assert_tensors_equivalent(logits(model), routed)


def test_the_report_says_what_was_done(model: TransformersCausalLM) -> None:
    first = package_for(model, "first", ("a", "b"), seed=1)
    second = package_for(model, "second", ("c",), seed=2, layers=(1,))
    model.install(first)
    report = model.synchronize_registry()
    assert report.configured_layers == model.config.resolved_converted_layers == (0, 1, 2)
    assert (report.packages_added, report.packages_removed) == ((first.identity,), ())
    assert report.changed_layers == (0, 1, 2)
    model.install(second)
    report = model.synchronize_registry()
    assert report.previous_registry_sha256 != report.registry_sha256
    assert report.packages_added == (second.identity,)
    assert report.changed_layers == (1,)
    assert report.expert_ids == {0: ("a", "b"), 1: ("a", "b", "c"), 2: ("a", "b")}
    model.unload(first.identity)
    report = model.synchronize_registry()
    assert (report.packages_added, report.packages_removed) == ((), (first.identity,))
    assert report.expert_ids == {1: ("c",)}
    assert model.synchronize_registry().changed_layers == ()


def test_candidates_stand_in_registry_order_then_router_order(model: TransformersCausalLM) -> None:
    first = package_for(model, "first", ("z", "m"), seed=1)
    second = package_for(model, "second", ("b", "a"), seed=2)
    model.install(first)
    model.install(second)
    assert model.synchronize_registry().expert_ids[0] == ("z", "m", "b", "a")
    model.unload(first.identity)
    model.synchronize_registry()
    model.install(first)
    assert model.synchronize_registry().expert_ids[0] == ("z", "m", "b", "a")


def test_only_chosen_layers_are_routed() -> None:
    model = TransformersCausalLM(llama(), converted_layers=(-1, 0))
    assert model.config.resolved_converted_layers == (0, 2)
    assert sorted(model.routed_layers) == [0, 2]
    model.install(package_for(TransformersCausalLM(llama()), "p", ("x",), seed=1))
    with pytest.raises(PackageError) as caught:
        model.synchronize_registry()
    assert caught.value.code == "package_layer_unknown"


@pytest.mark.parametrize(
    ("layers", "words"),
    [((3,), "names layer 3"), ((1, 1), "each layer once"), ((0, -3), "each layer once"), ((), "empty")],
)
def test_a_choice_of_layers_that_makes_no_sense_is_refused(layers: tuple[int, ...], words: str) -> None:
    base = llama()
    with pytest.raises(UsageError, match=words):
        TransformersCausalLM(base, converted_layers=layers)
    assert not any(isinstance(module, RoutedMLP) for module in base.modules())


def anchors_mismatch(model: TransformersCausalLM, **tensors: torch.Tensor | None) -> ExpertPackage:
    package = package_for(model, "p", ("x",), seed=1)
    payload = package.payloads["p1-0"]
    changed = {name: tensor for name, tensor in {**payload.tensors, **tensors}.items() if tensor is not None}
    return dataclasses.replace(package, payloads={**package.payloads, "p1-0": FullMlp(changed)})


def unfit(model: TransformersCausalLM) -> dict[str, tuple[str, list[ExpertPackage]]]:
    """Packages that are sound and do not fit this model, or each other."""
    sound = package_for(model, "sound", ("x", "y"), seed=1)
    weight = sound.payloads["p1-0"].tensors["up_proj.weight"]
    delta = package_for(model, "d", ("d",), seed=4, kind="low_rank_delta", mode=AnchorDeltas())
    bindings = [dataclasses.replace(binding, anchor_sha256="0" * 64) for binding in sound.bindings]
    wide = package_for(TransformersCausalLM(llama_of_width(32)), "wide", ("x",), seed=1)
    tampered = package_for(model, "tampered", ("t",), seed=9)
    tampered.payloads["p2-0"].tensors["up_proj.weight"].add_(1)
    return {
        "two experts of one id": (
            "expert_conflict",
            [sound, package_for(model, "other", ("y",), seed=2, layers=(2,))],
        ),
        "two modes in one layer": (
            "mode_conflict",
            [sound, package_for(model, "other", ("z",), seed=2, layers=(2,), mode=PairTop2())],
        ),
        "two options of one mode": (
            "mode_conflict",
            [
                delta,
                package_for(
                    model, "e", ("e",), seed=5, kind="low_rank_delta", mode=AnchorDeltas(deltas_max=1)
                ),
            ],
        ),
        "two feature extractors": (
            "features_conflict",
            [
                sound,
                dataclasses.replace(
                    package_for(model, "other", ("z",), seed=2, layers=(1,)),
                    features=Features(kind="unit_rms", width=WIDTH),
                ),
            ],
        ),
        "an unknown extractor": (
            "features_unknown",
            [dataclasses.replace(sound, features=Features(kind="whisper", width=WIDTH))],
        ),
        "features of another width": ("features_width", [width_package(model, 3)]),
        "weights of another model": ("features_width", [wide]),
        "a missing weight": ("anchor_mismatch", [anchors_mismatch(model, **{"up_proj.weight": None})]),
        "a foreign weight": ("anchor_mismatch", [anchors_mismatch(model, extra=torch.ones(2))]),
        "a weight of another shape": (
            "anchor_mismatch",
            [anchors_mismatch(model, **{"up_proj.weight": weight[1:]})],
        ),
        "weights of another dtype": ("anchor_mismatch", [sound.converted(torch.float16)]),
        "a delta of another dtype": ("anchor_mismatch", [delta.converted(torch.bfloat16)]),
        "made for another anchor": ("anchor_mismatch", [dataclasses.replace(sound, bindings=bindings)]),
        "full weights as a delta": (
            "payload_kind",
            [package_for(model, "p", ("x",), seed=1, mode=AnchorDeltas())],
        ),
        "a delta as LoRA": (
            "payload_kind",
            [package_for(model, "p", ("x",), seed=1, kind="low_rank_delta", mode=LoraMerge())],
        ),
        "LoRA of a module that is not there": ("anchor_mismatch", [lora_elsewhere(model, "k_proj")]),
        "LoRA of a module that is not linear": ("anchor_mismatch", [lora_elsewhere(model, "act_fn")]),
        "a package that was written into": ("changed", [tampered]),
    }


def llama_of_width(width: int) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=48,
        hidden_size=width,
        intermediate_size=24,
        num_hidden_layers=LAYERS,
        num_attention_heads=2,
    )
    return LlamaForCausalLM(config)


def width_package(model: TransformersCausalLM, width: int) -> ExpertPackage:
    package = package_for(model, "p", ("x",), seed=1)
    heads = {layer: [AffineRouterHead("x", torch.ones(width))] for layer in package.layers}
    return dataclasses.replace(package, router_heads=heads, features=Features(width=width))


def lora_elsewhere(model: TransformersCausalLM, target: str) -> ExpertPackage:
    package = package_for(model, "p", ("x",), seed=1, kind="lora", layers=(1,), mode=LoraMerge())
    payload = package.payloads["p1-0"]
    tensors = {name.replace("gate_proj", target): tensor for name, tensor in payload.tensors.items()}
    return dataclasses.replace(package, payloads={"p1-0": dataclasses.replace(payload, tensors=tensors)})


@pytest.mark.parametrize("case", unfit(TransformersCausalLM(llama())))
def test_what_does_not_fit_is_refused_with_its_code_and_changes_nothing(
    model: TransformersCausalLM, case: str
) -> None:
    base = package_for(model, "base", ("q",), seed=8, layers=(0,))
    model.install(base)
    model.synchronize_registry()
    before, runtime = logits(model), model.board.current
    model.unload(base.identity)
    code, packages = unfit(model)[case]
    for package in packages:
        model.install(package)
    with pytest.raises(PackageError) as caught:
        model.synchronize_registry()
    assert caught.value.code == f"package_{code}"
    assert str(caught.value).isprintable()
    assert model.board.current is runtime
    assert not model.is_synchronized
    assert_tensors_equivalent(logits(model), before)


def test_a_package_that_names_its_anchor_fits_that_anchor(model: TransformersCausalLM) -> None:
    package = package_for(model, "p", ("x",), seed=1)
    bindings = [
        dataclasses.replace(b, anchor_sha256=anchor_sha256(model.routed_layers[b.layer].anchor))
        for b in package.bindings
    ]
    model.install(dataclasses.replace(package, bindings=bindings))
    assert model.synchronize_registry().expert_ids == {0: ("x",), 1: ("x",), 2: ("x",)}


def test_experts_own_their_weights_and_the_anchor_is_untouched(
    model: TransformersCausalLM, package: ExpertPackage
) -> None:
    anchors = {layer: anchor_sha256(mlp.anchor) for layer, mlp in model.routed_layers.items()}
    model.install(package)
    model.synchronize_registry()
    expert = model.board.current.by_layer[1].calls[0]
    with torch.no_grad():
        expert.up_proj.weight.zero_()
    package.check_unchanged()
    assert {layer: anchor_sha256(mlp.anchor) for layer, mlp in model.routed_layers.items()} == anchors
    model.synchronize_registry()  # makes the experts anew
    assert model.board.current.by_layer[1].calls[0].up_proj.weight.abs().sum() > 0
    assert not any(parameter.requires_grad for parameter in model.parameters())


def test_hooks_of_the_anchor_do_not_move_to_experts(
    model: TransformersCausalLM, package: ExpertPackage
) -> None:
    seen = []
    model.routed_layers[0].anchor.register_forward_hook(lambda *_: seen.append("anchor"))
    model.install(package)
    model.synchronize_registry()
    for expert in model.board.current.by_layer[0].calls:
        expert(torch.zeros(1, WIDTH))
    assert seen == []


def test_direct_configuration_of_one_layer_makes_the_runtime_stale_until_synchronised(
    model: TransformersCausalLM, package: ExpertPackage
) -> None:
    model.install(package)
    model.synchronize_registry()
    routed = logits(model)
    model.routed_layers[1].configure_anchored_top1(
        layer_index=1,
        router_feature_extractor=IdentityRouterFeatureExtractor(WIDTH),
        router_heads=[AffineRouterHead("mine", torch.ones(WIDTH))],
        experts={"mine": Scaled(3)},
    )
    assert model.synchronized_registry_sha256 is None
    assert not model.is_synchronized
    assert not torch.equal(logits(model), routed)
    report = model.synchronize_registry()
    assert report.previous_registry_sha256 is None
    assert report.changed_layers == (1,)
    assert_tensors_equivalent(logits(model), routed)


def test_experts_and_heads_are_in_the_model_once(model: TransformersCausalLM, package: ExpertPackage) -> None:
    dense = sum(parameter.numel() for parameter in llama().parameters())
    model.install(package)
    model.synchronize_registry()
    experts = sum(t.numel() for payload in package.payloads.values() for t in payload.tensors.values())
    assert sum(parameter.numel() for parameter in model.parameters()) == dense + experts
    names = list(model.state_dict())
    assert len(names) == len(set(names))
    assert sum("experts" in name for name in names) == 3 * 2 * 3


@pytest.mark.parametrize(("kind", "mode", "pairs"), MODES)
def test_a_model_moves_to_another_dtype_with_its_experts(
    model: TransformersCausalLM, kind: str, mode: Any, pairs: Any
) -> None:
    model.install(package_for(model, "p", ("x", "y", "z"), seed=3, kind=kind, mode=mode, pairs=pairs))
    model.synchronize_registry()
    with torch.no_grad():
        before = model(input_ids=ids()).logits
        after = model.double()(input_ids=ids()).logits
    assert after.dtype == torch.float64
    torch.testing.assert_close(after.float(), before, rtol=1e-3, atol=1e-3)


def test_a_copied_model_is_synchronised_on_its_own(
    model: TransformersCausalLM, package: ExpertPackage
) -> None:
    model.install(package)
    model.synchronize_registry()
    routed = logits(model)
    twin = copy.deepcopy(model)
    assert_tensors_equivalent(logits(twin), routed)
    twin.unload(package.identity)
    twin.synchronize_registry()
    assert_tensors_equivalent(logits(twin), logits(TransformersCausalLM(llama())))
    assert_tensors_equivalent(logits(model), routed)


class _FirstHalf(RouterFeatureExtractor):
    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return tokens[:, : tokens.shape[1] // 2].float()


def test_a_package_can_name_an_extractor_that_was_registered(model: TransformersCausalLM) -> None:
    register_feature_extractor("first_half", _FirstHalf)
    with pytest.raises(UsageError, match="must be a new name"):
        register_feature_extractor("first_half", _FirstHalf)
    package = dataclasses.replace(
        width_package(model, WIDTH // 2), features=Features(kind="first_half", width=WIDTH // 2)
    )
    model.install(package)
    model.synchronize_registry()
    scores = model.board.current.by_layer[0].scores(torch.ones(1, WIDTH))
    assert scores.tolist() == [[WIDTH // 2]]


def test_a_routed_model_is_not_routed_twice(model: TransformersCausalLM) -> None:
    with pytest.raises(UsageError, match="is routed already"):
        TransformersCausalLM(model.base_model)


def test_an_unbound_layer_runs_its_anchor(model: TransformersCausalLM) -> None:
    model.install(package_for(model, "p", ("x",), seed=1, layers=(1,)))
    report = model.synchronize_registry()
    assert report.configured_layers == (0, 1, 2)
    assert report.expert_ids == {1: ("x",)}
    hidden = torch.randn(1, 4, WIDTH)
    assert torch.equal(model.routed_layers[0](hidden), model.routed_layers[0].anchor(hidden))


def test_one_payload_can_be_bound_in_many_layers(model: TransformersCausalLM) -> None:
    weights = dict(model.routed_layers[0].anchor.named_parameters())
    package = ExpertPackage(
        name="shared",
        features=Features(width=WIDTH),
        payloads={"one": FullMlp(weights)},
        bindings=[ExpertBinding(layer, "x", "one") for layer in range(LAYERS)],
        router_heads={layer: [AffineRouterHead("x", torch.zeros(WIDTH), 1.0)] for layer in range(LAYERS)},
    )
    model.install(package)
    model.synchronize_registry()
    hidden = torch.randn(2, 3, WIDTH)
    first = model.routed_layers[0].anchor(hidden)
    for layer in range(LAYERS):
        assert torch.equal(model.routed_layers[layer](hidden), first)
