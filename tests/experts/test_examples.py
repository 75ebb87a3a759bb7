"""The two verified scripts of the system's description run, and show its code word for word."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from examples.experts import verify_package_runtime, verify_routed_top1

ROUTED_TOP1 = """
telemetry = RouteTelemetry(layer_index=1)
routed_mlp.configure_anchored_top1(
    layer_index=1,
    router_feature_extractor=IdentityRouterFeatureExtractor(2),
    router_heads=heads,
    experts={"math:0": math, "code:0": code},
    route_telemetry=telemetry,
)
output = routed_mlp(hidden_states, expert_availability=availability)
summary = telemetry.summarize()
assert summary.anchor_count == 2
assert summary.overflow_count == 1
"""
PACKAGE_RUNTIME = """
model.install(package)
installed = model.synchronize_registry()
routed_logits = model(input_ids=input_ids).logits

model.unload(package.identity)
model.synchronize_registry()
assert_tensors_equivalent(model(input_ids=input_ids).logits, dense_logits)

model.install(ExpertPackage.from_directory(package.package_directory))
reinserted = model.synchronize_registry()
assert reinserted.registry_sha256 == installed.registry_sha256
"""


@pytest.mark.parametrize(
    ("script", "code", "indent"),
    [(verify_routed_top1, ROUTED_TOP1, 4), (verify_package_runtime, PACKAGE_RUNTIME, 8)],
    ids=["routed_top1", "package_runtime"],
)
def test_a_script_holds_the_described_code_word_for_word(script: object, code: str, indent: int) -> None:
    text = Path(script.__file__).read_text()
    assert textwrap.indent(code, " " * indent) in text


def test_the_routed_layer_script_prints_its_routes(capsys: pytest.CaptureFixture[str]) -> None:
    verify_routed_top1.main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:5] == [
        "0      code:0    2.0    code:0     no",
        "1      anchor    0.0    anchor     no",
        "2      math:0    3.0    anchor     yes",
        "3      code:0    1.0    code:0     no",
    ]


def test_the_package_script_prints_its_result(capsys: pytest.CaptureFixture[str]) -> None:
    verify_package_runtime.main()
    out = capsys.readouterr().out
    assert "registry  " in out
    assert "the dense logits, bit for bit" in out
