"""The façade over this project's own reference model, on a real `.cact`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from builder.cact.reader import read_container
from builder.errors import SessionError
from builder.experts import (
    AffineRouterHead,
    AnchorDeltas,
    ExpertBinding,
    ExpertPackage,
    Features,
    FullMlp,
    LowRankDelta,
    NeedleCausalLM,
    PairTop2,
    assert_tensors_equivalent,
)
from builder.reference.model import NeedleModel
from tests.conftest import DemoFamily

LAYERS = (1, -1)


@pytest.fixture(scope="module")
def container(demo_family: DemoFamily):
    return read_container(demo_family.folder / "base.cact")


@pytest.fixture
def model(container) -> NeedleCausalLM:
    return NeedleCausalLM(NeedleModel(container), converted_layers=LAYERS)


def prompt(model: NeedleCausalLM, count: int = 20, seed: int = 1) -> torch.Tensor:
    vocabulary = model.base_model.header.vocab_count
    return torch.randint(5, vocabulary, (1, count), generator=torch.Generator().manual_seed(seed))


def package_for(model: NeedleCausalLM, kind: str = "full_mlp", mode: object = None) -> ExpertPackage:
    generator = torch.Generator().manual_seed(7)
    width = model.config.hidden_width
    payloads, bindings, heads = {}, [], {}
    for layer, mlp in model.routed_layers.items():
        names = ("x", "y")
        for name in names:
            payloads[f"{name}{layer}"] = payload_for(mlp.anchor, kind, width, generator)
            bindings.append(ExpertBinding(layer, name, f"{name}{layer}"))
        heads[layer] = [AffineRouterHead(name, torch.randn(width, generator=generator)) for name in names]
    options = {} if mode is None else {"mode": mode}
    return ExpertPackage(
        name="needle-experts",
        features=Features(kind="unit_rms", width=width),
        payloads=payloads,
        bindings=bindings,
        router_heads=heads,
        **options,
    )


def payload_for(
    anchor: nn.Module, kind: str, width: int, generator: torch.Generator
) -> FullMlp | LowRankDelta:
    if kind == "low_rank_delta":
        down, up = torch.randn(4, width, generator=generator), torch.randn(width, 4, generator=generator)
        return LowRankDelta({"down.weight": down, "up.weight": up}, "identity", 1.0)
    return FullMlp(
        {
            name: weight * (1 + 2.0 * torch.randn(weight.shape, generator=generator))
            for name, weight in anchor.named_parameters()
        }
    )


CASES = [("full_mlp", None), ("full_mlp", PairTop2()), ("low_rank_delta", AnchorDeltas())]


def test_without_experts_it_is_the_reference_bit_for_bit(model: NeedleCausalLM, container) -> None:
    with torch.no_grad():
        wanted = NeedleModel(container)(prompt(model))
        assert_tensors_equivalent(model(input_ids=prompt(model)).logits, wanted)
    assert model.config.resolved_converted_layers == (1, len(model.base_model.layers) - 1)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "mode"), CASES)
def test_packages_are_installed_removed_and_reinserted(
    model: NeedleCausalLM, kind: str, mode: object, tmp_path: Path
) -> None:
    with torch.no_grad():
        dense = model(input_ids=prompt(model)).logits
        package = package_for(model, kind, mode).save(tmp_path / "p")
        model.install(package)
        installed = model.synchronize_registry()
        routed = model(input_ids=prompt(model)).logits
        assert installed.configured_layers == model.config.resolved_converted_layers
        assert not torch.equal(routed, dense)
        model.unload(package.identity)
        model.synchronize_registry()
        assert_tensors_equivalent(model(input_ids=prompt(model)).logits, dense)
        model.install(ExpertPackage.from_directory(package.package_directory))
        assert model.synchronize_registry().registry_sha256 == installed.registry_sha256
        assert_tensors_equivalent(model(input_ids=prompt(model)).logits, routed)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "mode"), CASES)
def test_generation_with_a_cache_gives_the_tokens_of_the_full_history(
    model: NeedleCausalLM, kind: str, mode: object
) -> None:
    plain = model.generate(prompt(model), max_new_tokens=16)
    model.install(package_for(model, kind, mode))
    model.synchronize_registry(record_routes=True)
    cached = model.generate(prompt(model), max_new_tokens=16)
    for recorder in model.route_telemetry.values():
        assert [len(record.selected) for record in recorder.records] == [20] + [1] * 15
        summary = recorder.summarize()
        assert summary.expert_count > 0
        assert summary.anchor_count > 0
        recorder.clear()
    history = model.generate(prompt(model), max_new_tokens=16, use_cache=False)
    lengths = [len(record.selected) for record in model.route_telemetry[1].records]
    assert lengths == list(range(20, 36))
    assert_tensors_equivalent(cached, history)
    assert not torch.equal(cached, plain)


def test_generation_stops_when_every_row_has_ended(model: NeedleCausalLM) -> None:
    rows = torch.cat([prompt(model, seed=1), prompt(model, seed=2)])
    free = model.generate(rows, max_new_tokens=12)
    first, second = free[0, 20:].tolist(), free[1, 20:].tolist()
    ends = {first[2], second[5]}
    stopped = model.generate(rows, max_new_tokens=12, eos_token_ids=ends)
    for row, wanted in zip(stopped[:, 20:].tolist(), (first, second), strict=True):
        end = next(index for index, token in enumerate(wanted) if token in ends)
        assert row[: end + 1] == wanted[: end + 1]
        assert set(row[end:]) == {wanted[end]}  # an ended row repeats its end
    assert stopped.shape[1] < free.shape[1]


def test_a_response_longer_than_the_context_is_refused(model: NeedleCausalLM) -> None:
    limit = model.base_model.header.max_seq_len
    with pytest.raises(SessionError) as caught:
        model.generate(prompt(model), max_new_tokens=limit)
    assert caught.value.code == "context_full"
