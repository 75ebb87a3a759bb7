"""What the grammar of tool calls costs: a mask at several places, and decoding calls that are held to it.

    python -m bench.grammar [MODEL.cact ...] [--full-size DIR] [--engine OTHER.wasm] [--rounds 9] [--json]

Without MODEL the demo's `home` is exported; --full-size adds the random model of generation 3, which is made
to call: its answer starts with the marker. --engine measures another build beside the package's engine,
in turns; both must say the same ids. Times are processor time, the least of the rounds. The last line is one
JSON document.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from builder.family.export import export_family
from builder.family.family import load_family
from builder.runtime.engine import Engine, EngineGrammar, EngineModel
from builder.runtime.interface import Sampling

DEMO = Path(__file__).parents[1] / "examples" / "demo" / "family.toml"
MEMBER = "home"
QUERY = "turn on the bedroom light and set it to 21 degrees"
CALL_TOKENS = 48
TEMPERATURES = (0.0, 0.7)
MASKS = 300
"""Of each kind; the quickest counts."""
WIDE, TIGHT = 100, 8
EMAIL = "^[^\\s@]+@[^\\s@]+$"
TEXT = '[{"name":"t","arguments":{"v":"ab'
NAME = '[{"name":"t","arguments":{"v":{"ab'


def one_tool(schema: dict[str, Any]) -> str:
    """A tool `t` whose only argument `v` has this schema."""
    parameters = {"type": "object", "properties": {"v": schema}, "required": ["v"]}
    return json.dumps([{"name": "t", "parameters": parameters}])


STRING = {"type": "string"}
PLACES: tuple[tuple[str, str, str | None, int], ...] = (
    ("free text", one_tool(STRING), None, WIDE),
    ("start of a list", one_tool(STRING), "", WIDE),
    ("string", one_tool(STRING), TEXT, WIDE),
    ("string, little room", one_tool(STRING), TEXT, TIGHT),
    ("string, minLength 30", one_tool(STRING | {"minLength": 30}), TEXT, WIDE),
    ("undeclared name", one_tool({"type": "object", "additionalProperties": STRING}), NAME, WIDE),
    ("string, pattern", one_tool(STRING | {"pattern": EMAIL}), TEXT, WIDE),
)
"""Name, tools, what the call says so far (None: no call), and the room."""


def mask_microseconds(model: EngineModel) -> dict[str, float]:
    """By place; a mask without room, which needs no work, tells what a call costs."""
    found = {}
    for name, tools, text, room in PLACES:
        grammar = model.grammar(tools)
        if text is not None:
            open_call(model, grammar, text)
        whole, call = (least_microseconds(model, grammar, tokens) for tokens in (room, 0))
        found[name] = round(whole - call, 1)
    return found


def least_microseconds(model: EngineModel, grammar: EngineGrammar, room: int) -> float:
    """Of many times the engine's part of `EngineGrammar.allowed`."""
    best = float("inf")
    for _ in range(MASKS):
        started = time.process_time()
        model._instance.call("sg_grammar_allowed", grammar.address, room, model._desk)
        best = min(best, time.process_time() - started)
    return best * 1e6


def open_call(model: EngineModel, grammar: EngineGrammar, text: str) -> None:
    marker = model.info.tool_call_open_id
    assert marker is not None
    for token_id in (marker, *(i for character in text for i in spelling(model, character))):
        grammar.accept(token_id)


def spelling(model: EngineModel, character: str) -> list[int]:
    """The ids of a character in the middle of a text: a tokenizer may put a space before the first."""
    return model.encode("\n" + character)[len(model.encode("\n")) :]


def decode(model: EngineModel, tools: str, temperature: float, *, is_forced: bool) -> tuple[float, list[int]]:
    """CPU seconds and ids of an answer; `is_forced` writes the marker first."""
    prompt = f"<|im_start|>user\n<tools>{tools}</tools>\n{QUERY}<|im_end|>\n<|im_start|>assistant\n"
    ids = [model.info.bos_id, *model.encode(prompt)]
    session = model.session(len(ids) + CALL_TOKENS + 1)
    grammar, sampling = model.grammar(tools), Sampling(temperature, random_state=1)
    if is_forced:
        open_call(model, grammar, "")
        assert model.info.tool_call_open_id is not None
        ids.append(model.info.tool_call_open_id)
    session.append(ids)
    session.logits()
    made: list[int] = []
    started = time.process_time()
    while len(made) < CALL_TOKENS:
        made.append(session.sample(sampling, grammar, CALL_TOKENS - len(made)))
        if made[-1] in (model.info.im_end_id, model.info.eos_id):
            break
        grammar.accept(made[-1])
        if made[-1] == model.info.tool_call_close_id:
            break
        session.append([made[-1]])
    return time.process_time() - started, made


def measure(path: Path, tools: str, engines: dict[str, Engine], rounds: int) -> dict[str, Any]:
    models = {name: engine.open(path.read_bytes()) for name, engine in engines.items()}
    row: dict[str, Any] = {"model": path.name, "ids": next(iter(models.values())).info.logit_count}
    row["mask_us"] = {name: mask_microseconds(model) for name, model in models.items()}
    row["tokens_per_second"] = {name: {} for name in models}
    is_forced = path.name.startswith("generation_")
    for temperature in TEMPERATURES:
        runs = [
            {name: decode(model, tools, temperature, is_forced=is_forced) for name, model in models.items()}
            for _ in range(rounds)
        ]
        if any(made != runs[0][name][1] for run in runs for name, (_, made) in run.items()):
            sys.exit("bench: the same model says different ids")
        if len({tuple(made) for _, made in runs[0].values()}) > 1:
            sys.exit("bench: the engines say different ids")
        for name in models:
            best = min(run[name][0] for run in runs)
            row["tokens_per_second"][name][str(temperature)] = round(len(runs[0][name][1]) / best)
    return row


def print_row(row: dict[str, Any]) -> None:
    names = list(row["mask_us"])
    print(f"\n{row['model']}, {row['ids']} ids\n{'':26}" + "".join(f"{name:>12}" for name in names))
    for place, *_ in PLACES:
        print(f"{place + ', us':26}" + "".join(f"{row['mask_us'][name][place]:>12}" for name in names))
    for temperature in map(str, TEMPERATURES):
        rates = (row["tokens_per_second"][name][temperature] for name in names)
        print(f"{'tokens/s at ' + temperature:26}" + "".join(f"{rate:>12}" for rate in rates))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("models", type=Path, nargs="*", metavar="MODEL", help="default: the demo's home")
    parser.add_argument("--full-size", type=Path, metavar="DIR", help="made there if absent; needs 3 GB")
    parser.add_argument("--engine", type=Path, metavar="OTHER.wasm", help="another build to compare with")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", action="store_true", help="print the JSON line only")
    arguments = parser.parse_args()
    engines = {"engine": Engine()}
    if arguments.engine:
        engines["other"] = Engine(arguments.engine.read_bytes())
    family = load_family(DEMO)
    tools = family.member(MEMBER).tools
    paths, rows = list(arguments.models), []
    with tempfile.TemporaryDirectory() as folder:
        if not paths:
            export_family(family, Path(folder))
            paths.append(Path(folder) / f"{MEMBER}.cact")
        if arguments.full_size is not None:
            from bench.full_size_models import write_models  # heavy, and only where it is asked for

            paths.append(write_models(arguments.full_size)[-1])
        for path in paths:
            rows.append(measure(path, tools, engines, arguments.rounds))
            if not arguments.json:
                print_row(rows[-1])
    print(json.dumps({"rows": rows}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
