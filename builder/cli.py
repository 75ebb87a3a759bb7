"""The command line: parse, call, print. No logic lives here.

Each command is a module with `add_arguments(parser)` and `run(arguments) -> int` (the exit code), imported
only when it is asked for, so that `show` does not pay for torch. stdout is the result, stderr is talk.
"""

from __future__ import annotations

import argparse
import importlib
import io
import os
import sys
from collections.abc import Sequence

from builder.errors import SaguaroError, plain_text
from builder.files import reason_of

COMMANDS: dict[str, tuple[str, str]] = {
    "show": ("builder.cact.show_command", "list what is in a .cact file"),
    "family": ("builder.publish.family_command", "turn checkpoints and LoRA adapters into .cact files"),
    "delta": ("builder.delta.delta_command", "make, apply or inspect a patch between two .cact files"),
    "pack": ("builder.publish.pack_command", "write a family as a static site"),
    "verify": ("builder.publish.verify_command", "rebuild and hash every model of a packed site"),
    "serve": ("builder.publish.serve_command", "serve a packed site for development"),
    "chat": ("builder.reference.chat_command", "talk to a packed family in the terminal"),
    "onnx": ("builder.onnx.onnx_command", "write a .cact file's model as an ONNX graph"),
    "experts": ("builder.experts.experts_command", "inspect token-level expert packages"),
}


def build_parser(command: str | None) -> argparse.ArgumentParser:
    """The whole parser; only the module of `command` is imported, the others appear with their help line."""
    parser = argparse.ArgumentParser(
        prog="python -m builder",
        description="Publish a family of small language models to a static web site.",
    )
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (module, line) in COMMANDS.items():
        subparser = subparsers.add_parser(name, help=line, description=line[0].upper() + line[1:] + ".")
        if name == command:
            importlib.import_module(module).add_arguments(subparser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 1 refused or mismatch, 2 usage."""
    words = list(sys.argv[1:] if argv is None else argv)
    command = next((word for word in words if not word.startswith("-")), None)
    _prepare_streams()
    try:
        try:
            arguments = build_parser(command).parse_args(words)
            code = int(importlib.import_module(COMMANDS[arguments.command][0]).run(arguments))
        except SystemExit as stop:  # argparse has printed its help, or what is wrong.
            code = int(stop.code or 0)
        sys.stdout.flush()
        return code
    except SaguaroError as error:
        return _fail(command, str(error), error.exit_code)
    except KeyboardInterrupt:
        return _fail(command, "stopped", 130)
    except BrokenPipeError:  # Who reads has seen enough.
        return 0
    except OSError as error:
        where = error.filename or "standard output"  # Files that we write are named by `write_whole`.
        return _fail(command, f"{where}: {reason_of(error)}", 1)
    finally:
        _let_go_of_stdout()


def _prepare_streams() -> None:
    """A closed stream is an empty one, and what the terminal cannot show is shown escaped."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  # As long as we run.
        elif mode == "w" and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _fail(command: str | None, sentence: str, code: int) -> int:
    print(plain_text(f"{command or 'saguaro'}: {sentence}"), file=sys.stderr)
    return code


def _let_go_of_stdout() -> None:
    """The interpreter flushes once more at its end, and must not stumble over what was told already."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def entry_point() -> None:
    """Exit the process with `main()`'s code."""
    sys.exit(main())
