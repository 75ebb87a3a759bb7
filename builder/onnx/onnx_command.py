"""`python -m builder onnx`: a container's model as an ONNX file.

Owns: reading and writing the files, and what is printed. Does not know: what stands in the graph.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from pathlib import Path

from builder.cact.ladder import rung
from builder.cact.reader import read_container
from builder.errors import MissingExtraError
from builder.files import artifact_line, check_target, write_whole


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line of `onnx`."""
    parser.add_argument("model", type=Path, metavar="MODEL", help="a .cact file of generation 2 or 3")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the ONNX file to write")
    parser.add_argument(
        "--depth", type=int, metavar="LAYERS", help="export this rung of the model's ladder (default: all)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Export one model.

    Raises `MissingExtraError`, `ContainerError`, `UsageError` (bad_depth), `RefusedError` (bad_target).
    """
    try:
        from builder.onnx.export import export_model
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"onnx (it uses {error.name})", "onnx") from None
    check_target(arguments.out, (arguments.model,))
    container = rung(read_container(arguments.model), arguments.depth)
    model = export_model(container)
    write_whole(arguments.out, model)
    print(artifact_line(arguments.out, len(model), hashlib.sha256(model).hexdigest()))
    layers = container.header.layer_count
    print(f"onnx: exported {layers} layers of {arguments.model} in float32", file=sys.stderr)
    return 0
