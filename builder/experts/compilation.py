"""How this room behaves under `torch.compile`.

Owns: the mark of frames that stay in Python.
Does not know: what these frames do.

A route decides at run time which modules are called, and with how many tokens. A compiler that traced that
loop would make one graph for every set of routes it meets. So the frames that group, dispatch and record stay
in Python, and what they call (scores and policy, anchor, experts) is compiled, each once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def stays_in_python(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Mark a function that `torch.compile` steps over; the functions that it calls are compiled as usual."""
    disable: Callable[..., Callable[Arguments, Result]] = torch.compiler.disable
    return disable(function, recursive=False)
