"""An error at any step of synchronisation leaves the model as it was."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

import builder.experts
from builder.experts import HierarchicalPairs, LoraMerge, TransformersCausalLM, assert_tensors_equivalent
from tests.experts.tiny_models import ids, llama, package_for

ROOM = str(Path(builder.experts.__file__).parent)
Step = tuple[str, str, int]
"""File name, function, line."""


class InjectedError(Exception):
    """The error that is thrown into a step."""


@contextmanager
def watching(events: set[str], visit: Callable[[Step], None]) -> Iterator[None]:
    """Call `visit` at every event ("call" or "line") in a file of the room."""

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(ROOM):
            return None
        if event in events:
            visit((Path(frame.f_code.co_filename).name, frame.f_code.co_name, frame.f_lineno))
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


class Scene:
    """A model that runs package A and is about to be synchronised to package B."""

    def __init__(self, kind: str, mode: Any) -> None:
        self.model = TransformersCausalLM(llama(), converted_layers=(0, 2))
        pairs = [("x", "y")] if isinstance(mode, HierarchicalPairs) else ()
        self.old = package_for(self.model, "a", ("x", "y"), seed=1, kind=kind, mode=mode, pairs=pairs)
        self.new = package_for(self.model, "b", ("x", "y"), seed=2, kind=kind, mode=mode, pairs=pairs)
        self.model.install(self.new)
        self.model.synchronize_registry()
        self.new_logits = self.logits()
        self.model.unload(self.new.identity)
        self.model.install(self.old)
        self.model.synchronize_registry(record_routes=True)
        self.old_logits, self.old_runtime = self.logits(), self.model.board.current
        self.model.unload(self.old.identity)
        self.model.install(self.new)

    def logits(self) -> torch.Tensor:
        with torch.no_grad():
            return self.model(input_ids=ids(6)).logits

    def steps(self, events: set[str]) -> list[Step]:
        """Every step of a synchronisation that succeeds; then back to the old runtime."""
        found: list[Step] = []
        with watching(events, found.append):
            self.model.synchronize_registry()
        self.model.board.publish(self.old_runtime)
        return found

    def fail_at(self, number: int, events: set[str]) -> None:
        """Synchronise and throw at the step of this number."""
        count = 0

        def visit(step: Step) -> None:
            nonlocal count
            count += 1
            if count == number + 1:
                raise InjectedError(str(step))

        with pytest.raises(InjectedError), watching(events, visit):
            self.model.synchronize_registry()
        torch.set_grad_enabled(True)  # an error thrown on the way out of `no_grad` itself leaves it off

    def check_unchanged(self) -> None:
        assert self.model.board.current is self.old_runtime
        assert not self.model.is_synchronized
        assert_tensors_equivalent(self.logits(), self.old_logits)

    def check_usable(self) -> None:
        self.model.synchronize_registry()
        assert_tensors_equivalent(self.logits(), self.new_logits)
        self.new.check_unchanged()


def first_and_last(steps: list[Step]) -> list[int]:
    """The numbers of the first and the last visit of each distinct step."""
    first, last = {}, {}
    for number, step in enumerate(steps):
        first.setdefault(step, number)
        last[step] = number
    return sorted({*first.values(), *last.values()})


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "mode"), [("full_mlp", None), ("lora", LoraMerge())])
def test_an_error_on_entering_any_function_changes_nothing(kind: str, mode: Any) -> None:
    scene = Scene(kind, mode)
    steps = scene.steps({"call"})
    numbers = first_and_last(steps)
    names = {name for _, name, _ in steps}
    assert {"check_package", "make_plan", "check_layer", "build_layer", "make_report", "publish"} <= names
    for number in numbers:
        scene.fail_at(number, {"call"})
        scene.check_unchanged()
    scene.check_usable()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "mode"),
    [("full_mlp", None), ("full_mlp", HierarchicalPairs()), ("lora", LoraMerge())],
)
def test_an_error_at_any_line_changes_nothing_before_the_one_assignment(kind: str, mode: Any) -> None:
    scene = Scene(kind, mode)
    steps = scene.steps({"line"})
    published = max(number for number, step in enumerate(steps) if step[1] == "publish")
    after = steps[published + 1 :]
    assert len(after) <= 2  # the end of the `with` block and the return of the report
    assert {name for _, name, _ in after} <= {"synchronize"}
    for number in first_and_last(steps[: published + 1]):
        scene.fail_at(number, {"line"})
        scene.check_unchanged()
    for number in range(published + 1, len(steps)):
        scene.fail_at(number, {"line"})
        assert_tensors_equivalent(scene.logits(), scene.new_logits)  # complete, never a part
        scene.model.board.publish(scene.old_runtime)
    scene.check_usable()


def test_memory_that_runs_out_while_experts_are_made_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    import copy

    scene = Scene("full_mlp", None)
    deepcopy, calls = copy.deepcopy, []

    def exhausted(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 3:
            raise MemoryError
        return deepcopy(*arguments)

    monkeypatch.setattr(copy, "deepcopy", exhausted)
    with pytest.raises(MemoryError):
        scene.model.synchronize_registry()
    assert len(calls) == 3
    scene.check_unchanged()
    monkeypatch.undo()
    scene.check_usable()
