"""The façade over Hugging Face models: Llama- and Qwen-shaped, tiny, random, made here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from builder.errors import UsageError
from builder.experts import AnchorDeltas, LoraMerge, PairTop2, TransformersCausalLM, assert_tensors_equivalent
from tests.experts.tiny_models import LAYERS, SHAPE, VOCAB, WIDTH, ids, llama, package_for, qwen

BASES = {"llama": llama, "qwen": qwen}
GREEDY: dict[str, Any] = {"do_sample": False, "pad_token_id": 0}


@pytest.fixture(params=BASES)
def base(request: pytest.FixtureRequest) -> Callable[[], Any]:
    return BASES[request.param]


def routed(base: Any, mode: Any = None, kind: str = "full_mlp") -> TransformersCausalLM:
    model = TransformersCausalLM(base)
    model.install(package_for(model, "p", ("x", "y"), seed=4, kind=kind, mode=mode))
    model.synchronize_registry(record_routes=True)
    return model


def test_without_experts_the_facade_is_the_base_bit_for_bit(base: Callable[[], Any]) -> None:
    plain, model = base(), TransformersCausalLM(base())
    with torch.no_grad():
        wanted = plain(input_ids=ids(9, batch=2))
        found = model(input_ids=ids(9, batch=2))
    assert type(found) is type(wanted)
    assert_tensors_equivalent(found.logits, wanted.logits)
    assert_tensors_equivalent(
        model.generate(ids(5), max_new_tokens=6, **GREEDY), plain.generate(ids(5), max_new_tokens=6, **GREEDY)
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "kind"),
    [(None, "full_mlp"), (PairTop2(), "lora"), (AnchorDeltas(), "low_rank_delta"), (LoraMerge(), "lora")],
)
def test_generation_with_a_cache_gives_the_tokens_of_the_full_history(
    base: Callable[[], Any], mode: Any, kind: str
) -> None:
    model = routed(base(), mode, kind)
    generated: set[int] = set()
    for seed in range(3):
        prompt = ids(5 + seed, batch=2, seed=seed)
        cached = model.generate(prompt, max_new_tokens=16, use_cache=True, **GREEDY)
        recorders = model.route_telemetry
        widths = {len(record.selected) for record in recorders[0].records}
        assert 2 in widths  # one token of each row at a time: the cache is used
        for recorder in recorders.values():
            assert recorder.summarize().expert_count > 0
            recorder.clear()
        history = model.generate(prompt, max_new_tokens=16, use_cache=False, **GREEDY)
        assert 2 not in {len(record.selected) for record in recorders[0].records}
        assert_tensors_equivalent(cached, history)
        generated.update(cached[:, 5 + seed :].flatten().tolist())
        for recorder in recorders.values():
            recorder.clear()
    assert len(generated) > 8  # not one token again and again


def test_experts_change_what_is_generated(base: Callable[[], Any]) -> None:
    plain = base().generate(ids(5), max_new_tokens=8, **GREEDY)
    assert not torch.equal(routed(base()).generate(ids(5), max_new_tokens=8, **GREEDY), plain)


def test_experts_can_be_switched_off_for_one_call(base: Callable[[], Any]) -> None:
    model = routed(base())
    nobody = {"x": False, "y": False}
    with torch.no_grad():
        dense = base()(input_ids=ids()).logits
        assert_tensors_equivalent(model(input_ids=ids(), expert_availability=nobody).logits, dense)
        assert not torch.equal(model(input_ids=ids(), expert_availability={"x": False}).logits, dense)
        assert_tensors_equivalent(model(input_ids=ids(), expert_capacity={"x": 0, "y": 0}).logits, dense)
    plain = base().generate(ids(5), max_new_tokens=8, **GREEDY)
    found = model.generate(ids(5), max_new_tokens=8, expert_availability=nobody, **GREEDY)
    assert_tensors_equivalent(found, plain)
    with pytest.raises(UsageError, match="names 'z'"):
        model(input_ids=ids(), expert_availability={"z": False})


def test_a_model_takes_part_in_training_what_lies_before_it(base: Callable[[], Any]) -> None:
    model = routed(base())
    embeddings = model.base_model.get_input_embeddings()(ids()).detach().requires_grad_()
    model(inputs_embeds=embeddings).logits.square().sum().backward()
    assert embeddings.grad.isfinite().all()
    assert embeddings.grad.abs().sum() > 0


@pytest.mark.parametrize(
    "make",
    [
        lambda: GPT2LMHeadModel(GPT2Config(vocab_size=VOCAB, n_embd=WIDTH, n_layer=LAYERS, n_head=2)),
        lambda: GPTNeoXForCausalLM(
            GPTNeoXConfig(
                vocab_size=VOCAB,
                hidden_size=WIDTH,
                num_hidden_layers=LAYERS,
                num_attention_heads=2,
                intermediate_size=32,
            )
        ),
        lambda: Qwen3ForCausalLM(Qwen3Config(**SHAPE, head_dim=8)),
    ],
    ids=["gpt2", "gpt_neox", "qwen3"],
)
def test_other_families_with_one_mlp_per_layer_are_routed_too(make: Callable[[], Any]) -> None:
    torch.manual_seed(0)
    base = make().eval()
    with torch.no_grad():
        dense = base(input_ids=ids()).logits
        model = routed(base)
        assert not torch.equal(model(input_ids=ids()).logits, dense)
        model.unload(model.registry.snapshot().packages[0].identity)
        model.synchronize_registry()
        assert_tensors_equivalent(model(input_ids=ids()).logits, dense)


def test_a_model_without_one_mlp_per_layer_is_refused() -> None:
    base = llama()
    del base.model.layers[1].mlp
    with pytest.raises(UsageError, match="0 lists of 3 layers with an mlp each"):
        TransformersCausalLM(base)


def test_the_sparse_block_of_a_mixture_can_be_an_anchor() -> None:
    torch.manual_seed(0)
    base = MixtralForCausalLM(MixtralConfig(**SHAPE, num_local_experts=2)).eval()
    with torch.no_grad():
        dense = base(input_ids=ids()).logits
        assert not torch.equal(routed(base).forward(input_ids=ids()).logits, dense)
