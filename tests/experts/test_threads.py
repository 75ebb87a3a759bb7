"""Readers see the old runtime or the new one, in all layers, for a whole pass and for a whole response."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from builder.experts import (
    AffineRouterHead,
    ExpertPackage,
    IdentityRouterFeatureExtractor,
    TransformersCausalLM,
)
from builder.experts.layer_runtime import LayerRuntime
from builder.experts.runtime_board import ModelRuntime
from tests.experts.tiny_models import WIDTH, Scaled, ids, llama, package_for

CHANGES = 30
PATIENCE_SECONDS = 60
BRIEF_SECONDS = 0.2  # long enough for a writer that does not wait


@pytest.fixture
def eager_switching() -> Iterator[None]:
    """Let threads change places after a few instructions."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.fixture
def packages(model: TransformersCausalLM) -> tuple[ExpertPackage, ExpertPackage]:
    return tuple(package_for(model, name, ("x", "y"), seed=seed) for name, seed in (("a", 1), ("b", 2)))


def logits(model: TransformersCausalLM) -> Tensor:
    with torch.no_grad():
        return model(input_ids=ids(6)).logits


def change_to(model: TransformersCausalLM, old: ExpertPackage | None, new: ExpertPackage) -> None:
    if old is not None:
        model.unload(old.identity)
    model.install(new)
    model.synchronize_registry()


@pytest.mark.slow
def test_a_pass_is_old_or_new_while_another_thread_synchronises(
    model: TransformersCausalLM, packages: tuple[ExpertPackage, ExpertPackage], eager_switching: None
) -> None:
    first, second = packages
    change_to(model, None, first)
    allowed = [logits(model)]
    change_to(model, first, second)
    allowed.append(logits(model))
    seen: list[int] = []
    strange: list[Tensor] = []
    passed, done = threading.Semaphore(0), threading.Event()

    def read() -> None:
        while not done.is_set():
            found = logits(model)
            which = [number for number, wanted in enumerate(allowed) if torch.equal(found, wanted)]
            seen.extend(which)
            if not which:
                strange.append(found)
            passed.release()

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    try:
        for number in range(CHANGES):
            change_to(model, *((second, first) if number % 2 == 0 else (first, second)))
            while passed.acquire(blocking=False):
                pass
            for _ in range(len(readers) + 1):  # each may be in a pass that began before the change
                assert passed.acquire(timeout=PATIENCE_SECONDS)
    finally:
        done.set()
        for reader in readers:
            reader.join()
    assert strange == []
    assert set(seen) == {0, 1}


def synchronise_inside(
    model: TransformersCausalLM, old: ExpertPackage, new: ExpertPackage, *, thread: bool
) -> list:
    """Change the registry once, in the middle of the first pass that comes: after layer 0, before layer 1."""
    done: list[str] = []

    def hook(*_: object) -> None:
        if done:
            return
        done.append("changed")
        if not thread:
            change_to(model, old, new)
            return
        worker = threading.Thread(target=change_to, args=(model, old, new))
        worker.start()
        worker.join()

    model.routed_layers[0].register_forward_hook(hook)
    return done


@pytest.mark.parametrize("thread", [False, True])
def test_a_pass_finishes_with_the_runtime_that_it_began_with(
    model: TransformersCausalLM, packages: tuple[ExpertPackage, ExpertPackage], thread: bool
) -> None:
    first, second = packages
    change_to(model, None, first)
    before = logits(model)
    done = synchronise_inside(model, first, second, thread=thread)
    assert torch.equal(logits(model), before)
    assert done == ["changed"]
    after = logits(model)
    assert not torch.equal(after, before)
    fresh = TransformersCausalLM(llama())
    change_to(fresh, None, second)
    assert torch.equal(after, logits(fresh))


def test_a_response_finishes_with_the_runtime_that_it_began_with(
    model: TransformersCausalLM, packages: tuple[ExpertPackage, ExpertPackage]
) -> None:
    first, second = packages

    def answer() -> list[int]:
        return model.generate(input_ids=ids(6), max_new_tokens=12, do_sample=False, pad_token_id=0).tolist()

    change_to(model, None, second)
    wanted_later = answer()
    change_to(model, second, first)
    wanted = answer()
    assert wanted != wanted_later
    done = synchronise_inside(model, first, second, thread=True)
    assert answer() == wanted
    assert done == ["changed"]
    assert answer() == wanted_later


def test_a_held_runtime_belongs_to_its_thread_alone(
    model: TransformersCausalLM, packages: tuple[ExpertPackage, ExpertPackage]
) -> None:
    first, second = packages
    change_to(model, None, first)
    before = logits(model)
    elsewhere: list[Tensor] = []
    with model.holding_runtime():
        change_to(model, first, second)
        worker = threading.Thread(target=lambda: elsewhere.append(logits(model)))
        worker.start()
        worker.join()
        assert torch.equal(logits(model), before)
    assert torch.equal(elsewhere[0], logits(model))
    assert not torch.equal(elsewhere[0], before)


def test_two_writers_do_not_lose_each_others_layers(
    model: TransformersCausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one writer is between reading the old runtime and publishing its own, another one has to wait."""
    with_layer = ModelRuntime.with_layer
    second_began = threading.Event()
    writers: list[threading.Thread] = []

    def configure(layer: int) -> None:
        model.routed_layers[layer].configure_anchored_top1(
            layer_index=layer,
            router_feature_extractor=IdentityRouterFeatureExtractor(WIDTH),
            router_heads=[AffineRouterHead("x", torch.ones(WIDTH))],
            experts={"x": Scaled(2)},
        )

    def slowly(runtime: ModelRuntime, layer_index: int, layer: LayerRuntime | None) -> ModelRuntime:
        if not writers:  # the first writer: let the second one run as far as it can
            writers.append(threading.Thread(target=configure, args=(1,)))
            writers[0].start()
            second_began.wait(BRIEF_SECONDS)
        else:
            second_began.set()
        return with_layer(runtime, layer_index, layer)

    monkeypatch.setattr(ModelRuntime, "with_layer", slowly)
    configure(0)
    writers[0].join()
    assert sorted(model.board.current.by_layer) == [0, 1]
