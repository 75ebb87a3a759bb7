"""Time of a routed layer against the dense MLP, all experts with a mask, and transformers' sparse block.

    python -m bench.experts [--width 512] [--inner 1024] [--dtype float32] [--seconds 3] [--json]

All contenders hold the same weights: candidate k of the routed layer is expert k of the block
(MixtralSparseMoeBlock, eager, top-1), and the heads are the block's gate, so routes are the same; outputs are
compared before anything is timed. They run on one thread and take turns; a time is CPU time of the process,
which neighbours on the machine hardly disturb. Shown are medians, of times and of each round's ratios.

Two tables: every expert in use, and 8 experts in use among more and more that are not. With --json the last
line is one JSON document.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, MixtralConfig
from transformers.models.llama.modeling_llama import LlamaMLP
from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

from builder.experts import AffineRouterHead, FullMlp, IdentityRouterFeatureExtractor, RoutedMLP
from builder.experts.materialize import materialize_mlp
from builder.experts.policies import OPEN

TOKENS = (1, 64, 4096)
EXPERTS = (1, 8, 64)
ACTIVE = 8
INSTALLED = (8, 64, 256)
ROUNDS_MIN, ROUNDS_MAX = 3, 1000
UNREACHABLE = -1e9  # bias of a head that no token follows
Contenders = dict[str, Callable[[], Tensor]]


class Setting:
    """One routed layer and its rivals over the same weights."""

    def __init__(self, experts: int, width: int, inner: int, dtype: torch.dtype, idle: int = 0) -> None:
        torch.manual_seed(experts)
        self.width = width
        config = MixtralConfig(
            hidden_size=width,
            intermediate_size=inner,
            num_local_experts=experts + 1,
            num_experts_per_tok=1,
            experts_implementation="eager",
        )
        self.block = MixtralSparseMoeBlock(config)
        for parameter in self.block.parameters():
            nn.init.normal_(parameter, std=0.05)
        self.block.gate.weight.data[0] = 0  # logit of the anchor
        self.block = self.block.to(dtype).eval()
        self.anchor = LlamaMLP(LlamaConfig(hidden_size=width, intermediate_size=inner)).to(dtype)
        self.anchor.load_state_dict(self.weights(0))
        self.routed = self.configured(experts, idle)

    def weights(self, index: int) -> dict[str, Tensor]:
        """Of one expert of the block, under the names of a Llama MLP."""
        gate, up = self.block.experts.gate_up_proj.data[index].chunk(2)
        return {
            "gate_proj.weight": gate,
            "up_proj.weight": up,
            "down_proj.weight": self.block.experts.down_proj.data[index],
        }

    def configured(self, experts: int, idle: int) -> RoutedMLP:
        """Made as synchronisation makes it; idle experts share the weights of the first."""
        gate = self.block.gate.weight.data.float()
        heads = [AffineRouterHead(f"e:{index}", gate[index]) for index in range(1, experts + 1)]
        modules = {
            f"e:{index}": materialize_mlp(FullMlp(self.weights(index)), self.anchor, self.width, "bench", "")
            for index in range(1, experts + 1)
        }
        for index in range(idle):
            heads.append(AffineRouterHead(f"idle:{index}", gate[1], UNREACHABLE))
            modules[f"idle:{index}"] = modules["e:1"]
        routed = RoutedMLP(self.anchor)
        routed.configure_anchored_top1(
            layer_index=0,
            router_feature_extractor=IdentityRouterFeatureExtractor(self.width),
            router_heads=heads,
            experts=modules,
        )
        return routed

    def masked(self, hidden: Tensor) -> Tensor:
        """Every candidate on every token; a mask keeps one."""
        runtime: Any = self.routed.runtime
        effective = runtime.route(hidden.reshape(-1, self.width), OPEN).effective.reshape(hidden.shape[:-1])
        output = torch.zeros_like(hidden)
        for candidate, module in enumerate((self.anchor, *runtime.calls)):
            output = torch.where((effective == candidate)[..., None], module(hidden), output)
        return output

    def contenders(self, tokens: int) -> tuple[Contenders, Contenders]:
        """The three that are compared, and the routed layer against the masked form, proved to agree.

        They are two groups because the masked form reads so many weights that it empties the caches for all.
        """
        hidden = torch.randn(1, tokens, self.width, dtype=self.anchor.gate_proj.weight.dtype)
        dense = functools.partial(self.anchor, hidden)
        routed = functools.partial(self.routed, hidden)
        sparse = functools.partial(self.block, hidden)
        masked = functools.partial(self.masked, hidden)
        for rival in (sparse, masked):
            check_agreement(routed(), rival())
        return (
            {"dense": dense, "routed": routed, "transformers": sparse},
            {"routed": routed, "masked": masked},
        )


def check_agreement(found: Tensor, wanted: Tensor) -> None:
    """Tokens equal within rounding; in bfloat16 the block's gate may round a few to another expert."""
    error = (found - wanted).float().norm(dim=-1) / wanted.float().norm(dim=-1)
    strange = float((error > (1e-4 if found.dtype == torch.float32 else 5e-2)).float().mean())
    assert strange <= (0.0 if found.dtype == torch.float32 else 0.05), f"{strange:.1%} of tokens differ"


def take_turns(contenders: Contenders, seconds: float) -> dict[str, list[float]]:
    """CPU milliseconds of each contender in each round; few rounds are allowed more than `seconds`."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    begin = time.perf_counter()
    for round_number in range(ROUNDS_MAX):
        if round_number >= ROUNDS_MIN and time.perf_counter() - begin > seconds:
            break
        for name, call in contenders.items():
            start = time.process_time_ns()
            call()
            times[name].append((time.process_time_ns() - start) / 1e6)
    return times


def ratio(times: dict[str, list[float]], upper: str, lower: str) -> float:
    """Median of the ratios within each round."""
    return round(statistics.median(a / b for a, b in zip(times[upper], times[lower], strict=True)), 3)


def milliseconds(values: list[float]) -> float:
    """Median."""
    return round(statistics.median(values), 3)


def in_use_row(setting: Setting, experts: int, tokens: int, seconds: float) -> dict[str, Any]:
    """One row of the first table."""
    rivals, extremes = setting.contenders(tokens)
    times = take_turns(rivals, seconds)
    slow = take_turns(extremes, seconds / 4)
    return {
        "experts": experts,
        "tokens": tokens,
        **{f"{name}_ms": milliseconds(values) for name, values in times.items()},
        "masked_ms": milliseconds(slow["masked"]),
        "routed_to_dense": ratio(times, "routed", "dense"),
        "transformers_to_routed": ratio(times, "transformers", "routed"),
        "masked_to_routed": ratio(slow, "masked", "routed"),
    }


def measure(arguments: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """Both tables."""
    dtype = getattr(torch, arguments.dtype)
    sizes = (arguments.width, arguments.inner, dtype)
    in_use, idle = [], []
    for experts in EXPERTS:
        setting = Setting(experts, *sizes)
        for tokens in TOKENS:
            in_use.append(in_use_row(setting, experts, tokens, arguments.seconds))
            show(in_use[-1])
    settings = {installed: Setting(ACTIVE, *sizes, idle=installed - ACTIVE) for installed in INSTALLED}
    for tokens in TOKENS:
        hidden = torch.randn(1, tokens, arguments.width, dtype=dtype)
        turns: Contenders = {
            str(installed): functools.partial(setting.routed, hidden)
            for installed, setting in settings.items()
        }
        times = take_turns(turns, arguments.seconds)
        for installed in map(str, INSTALLED):
            place = {"installed": int(installed), "active": ACTIVE, "tokens": tokens}
            to_least = ratio(times, installed, str(ACTIVE))
            idle.append({**place, "routed_ms": milliseconds(times[installed]), "to_8_installed": to_least})
            show(idle[-1])
    return {"in_use": in_use, "idle": idle}


def show(figures: dict[str, Any]) -> None:
    """One row."""
    print("  ".join(f"{name} {value:>8}" for name, value in figures.items()), flush=True)


@torch.no_grad()
def main() -> None:
    """Print both tables, then (if asked) one JSON document on the last line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.experts", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--width", type=int, default=512, help="hidden width")
    parser.add_argument("--inner", type=int, default=1024, help="inner width of each MLP")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--seconds", type=float, default=3.0, help="at most this long for each row")
    parser.add_argument("--json", action="store_true", help="print one JSON document last")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    figures = measure(arguments)
    if arguments.json:
        print(json.dumps({**vars(arguments), **figures}))


if __name__ == "__main__":
    main()
