"""`builder experts`: what is in a package, and whether it is what it says.

Owns: the sub-commands' arguments and their printing. No logic lives here.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.errors import PackageError, refusal

if TYPE_CHECKING:
    from builder.experts.package import ExpertPackage


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`show DIR` and `verify DIR`."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    show = actions.add_parser("show", help="list what is in an expert package")
    verify = actions.add_parser("verify", help="check a package and print its identity")
    for action in (show, verify):
        action.add_argument("directory", type=Path, help="the package's directory")
        action.add_argument("--json", action="store_true", help="print one JSON document")
    verify.add_argument("--identity", metavar="SHA256", help="refuse any other package")


def run(arguments: argparse.Namespace) -> int:
    """Read the package, which checks all of it, and print."""
    from builder.experts import ExpertPackage

    package = ExpertPackage.from_directory(arguments.directory)
    if arguments.action == "verify" and arguments.identity not in (None, package.identity):
        sentence = refusal(
            arguments.directory, "identity", found=package.identity, allowed=arguments.identity
        )
        raise PackageError(sentence, code="package_identity")
    report = _report(package)
    if arguments.json:
        print(json.dumps(report))
    elif arguments.action == "show":
        _show(report)
    else:
        print(f"{arguments.directory}  {report['bytes']} B  {package.identity}")
    print(f"{arguments.action}: {len(report['tensors'])} tensors, 0 mismatches", file=sys.stderr)
    return 0


def _report(package: ExpertPackage) -> dict[str, Any]:
    """Everything that is printed, in one order."""
    tensors = [
        {"name": name, "dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape)}
        for name, tensor in package.named_tensors()
    ]
    return {
        "name": package.name,
        "identity": package.identity,
        "mode": package.mode.model_dump(),
        "features": package.features.model_dump(),
        "bytes": sum(tensor.nbytes for _, tensor in package.named_tensors()),
        "layers": {
            str(layer): [
                {"candidate": number, "expert": head.expert_id, **_payload(package, layer, head.expert_id)}
                for number, head in enumerate(package.router_heads[layer], start=1)
            ]
            for layer in package.layers
        },
        "tensors": tensors,
    }


def _payload(package: ExpertPackage, layer: int, expert_id: str) -> dict[str, Any]:
    binding = next(b for b in package.bindings if (b.layer, b.expert_id) == (layer, expert_id))
    return {"payload": binding.payload, "kind": package.payloads[binding.payload].kind}


def _show(report: dict[str, Any]) -> None:
    """A few lines about the package, one for each expert, one for each tensor."""
    options = {key: value for key, value in report["mode"].items() if key != "kind"}
    mode = " ".join([report["mode"]["kind"], *(f"{key}={value}" for key, value in options.items())])
    print(f"name      {report['name']}")
    print(f"identity  {report['identity']}")
    print(f"mode      {mode}")
    print(f"features  {report['features']['kind']}, width {report['features']['width']}")
    for layer, experts in report["layers"].items():
        for expert in experts:
            place = f"layer {layer} candidate {expert['candidate']}"
            print(f"expert    {place}  {expert['expert']}  {expert['kind']}  {expert['payload']}")
    for tensor in report["tensors"]:
        shape = "x".join(map(str, tensor["shape"])) or "scalar"
        print(f"tensor    {tensor['name']}  {tensor['dtype']}  {shape}")
