"""`chat SITE`: talk to a packed family in the terminal, on the site's engine or on the PyTorch reference."""

from __future__ import annotations

import argparse
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from builder.errors import MissingExtraError, RefusedError, UsageError, refusal
from builder.publish.site import Site, open_site
from builder.reference.chat_views import choose_view
from builder.reference.dispatcher import Dispatcher
from builder.reference.sampling import STATE_MASK, TEMPERATURE_MAX
from builder.reference.site_source import OpenModel, SiteSource, family_of
from builder.runtime.engine import Engine
from builder.runtime.host import ABI_VERSION
from builder.runtime.interface import Sampling

MEMORY_MIB_DEFAULT = 1024


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("site", type=Path, metavar="SITE", help="folder that pack wrote")
    parser.add_argument("--reference", action="store_true", help="run PyTorch instead of the site's engine")
    parser.add_argument("--json", action="store_true", help="print one JSON document per turn")
    parser.add_argument(
        "--depth", type=int, metavar="LAYERS", help="run this rung of every model's ladder (default: all)"
    )
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (default)")
    parser.add_argument(
        "--seed", type=int, default=0, help="for a temperature above 0 (default: %(default)s)"
    )
    parser.add_argument(
        "--memory",
        type=int,
        default=MEMORY_MIB_DEFAULT,
        metavar="MIB",
        help="for all open models together (default: %(default)s)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Answer each line of stdin until it ends; stdout is the conversation, stderr is talk."""
    sampling = _sampling(arguments.temperature, arguments.seed)
    if arguments.memory < 1:
        raise UsageError(f"--memory: is {arguments.memory}, must be 1 or more MiB")
    site = open_site(arguments.site)
    opener = _reference_opener if arguments.reference else _engine_opener
    open_model = opener(site, arguments.depth)
    source = SiteSource(site, open_model, arguments.memory * 2**20)
    source.open(site.manifest.base.id)  # a site whose base is broken is refused before anybody types
    dispatcher = Dispatcher(family_of(site.manifest), source)
    view = choose_view(arguments.json)
    view.greet(site.manifest)
    turns: list[str] = []
    answered: Counter[str] = Counter()
    for line in view.lines():
        turns.append(line)
        with _interruptible() as stopped:
            answer, record = dispatcher.respond(turns, sampling=sampling, listener=view, stopped=stopped)
        view.show(answer, record)
        answered["nobody" if answer.type == "error" else answer.member] += 1
    shares = ", ".join(f"{count} by {name}" for name, count in sorted(answered.items())) or "no turns"
    print(f"chat: answered: {shares}", file=sys.stderr)
    return 0


def _engine_opener(site: Site, depth: int | None) -> OpenModel:
    engine_file = site.manifest.engine
    if engine_file.abi != ABI_VERSION:
        found, step = engine_file.abi, "pack the site with this version"
        sentence = refusal("family.json", "engine.abi", found=found, allowed=str(ABI_VERSION), next_step=step)
        raise RefusedError(sentence, code="engine_mismatch")
    engine = Engine(site.file_bytes(engine_file.path, engine_file.sha256, engine_file.bytes))
    return lambda data, member_id: engine.open(data, name=member_id, depth=depth)


def _reference_opener(site: Site, depth: int | None) -> OpenModel:
    try:
        from builder.reference.session import ReferenceOpener
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"chat --reference (it uses {error.name})", "reference") from None
    return ReferenceOpener(depth)


def _sampling(temperature: float, seed: int) -> Sampling:
    if not 0 <= temperature <= TEMPERATURE_MAX:
        raise UsageError(f"--temperature: is {temperature}, must be 0 to 1e6")
    if not 0 <= seed <= STATE_MASK:
        raise UsageError(f"--seed: is {seed}, must be 0 to 2^64 - 1")
    return Sampling(temperature=temperature, random_state=seed)


@contextmanager
def _interruptible() -> Iterator[Callable[[], bool]]:
    """While it lasts, Ctrl-C asks the answer to stop; pressed again, it ends the program."""
    presses: list[int] = []

    def press(number: int, frame: FrameType | None) -> None:
        if presses:
            raise KeyboardInterrupt
        presses.append(number)

    before = signal.signal(signal.SIGINT, press)
    try:
        yield lambda: bool(presses)
    finally:
        signal.signal(signal.SIGINT, before)
