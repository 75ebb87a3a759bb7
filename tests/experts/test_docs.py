"""docs/experts.md: its tour runs, and its tables say what the code does."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

import builder.experts
from builder.experts import ExpertPackage, TransformersCausalLM
from builder.experts.metadata import Mode
from tests.experts.test_hostile_packages import DEFECTS
from tests.experts.test_synchronize import unfit
from tests.experts.tiny_models import llama

ROOT = Path(builder.experts.__file__).parents[2]
PAGE = (ROOT / "docs" / "experts.md").read_text()
CODE = "\n".join(path.read_text() for path in sorted((ROOT / "builder" / "experts").glob("*.py")))


def section(title: str) -> str:
    """The text under a heading, up to the next heading of any level."""
    _, _, rest = PAGE.partition(f"# {title}\n")
    assert rest
    return re.split(r"\n#+ ", rest)[0]


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


@pytest.mark.slow
def test_the_tour_runs_as_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code = blocks(section("Tour"), "python")
    assert len(code) == 5
    exec(compile("\n".join(code), "docs/experts.md", "exec"), {})
    identity, shares = capsys.readouterr().out.splitlines()
    assert ExpertPackage.from_directory(tmp_path / "code-experts").identity == identity
    assert "'anchor': " in shares
    assert "code:0" in (tmp_path / "route_shares.svg").read_text()


def test_the_picture_of_the_tour_is_there() -> None:
    [name] = re.findall(r"!\[[^]]*\]\(([^)]+)\)", PAGE)
    text = (ROOT / "docs" / name).read_text()
    assert all(f"<!-- {label} -->" in text for label in ("layer 1", "layer 3", "anchor", "code:0", "math:0"))


def test_the_metadata_shown_is_read(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    [text] = blocks(section("The package on disk"), "json")
    document = json.loads(text)
    (tmp_path / "payloads").mkdir()
    (tmp_path / "package.json").write_text(text)
    [payload] = document["payloads"].values()
    save_file(
        {name: torch.ones(shape) for name, shape in payload["tensors"].items()}, tmp_path / payload["file"]
    )
    head = "layers.1.experts.code:0"
    save_file(
        {f"{head}.weight": torch.ones(32), f"{head}.bias": torch.tensor(0.0)},
        tmp_path / "routers.safetensors",
    )
    assert ExpertPackage.from_directory(tmp_path).layers == (1,)


def test_every_code_of_a_refusal_is_explained_and_seen_in_a_test() -> None:
    used = set(re.findall(r'refuse\(\s*"([a-z_]+)"', CODE)) | set(
        re.findall(r'code="package_([a-z_]+)"', CODE)
    )
    used |= set(re.findall(r'\w+, "(duplicate_[a-z]+)", "', CODE))
    table = re.findall(r"^\|([^|]+)\|", section("Refusals"), flags=re.MULTILINE)
    explained = set(re.findall(r"`([a-z_]+)`", " ".join(table)))
    assert explained == used
    seen = {code for code, _ in DEFECTS.values()} | {
        code for code, _ in unfit(TransformersCausalLM(llama())).values()
    }
    elsewhere = {"exists", "identity", "installed", "not_installed", "layer_unknown"}
    assert used == seen | elsewhere


def test_every_mode_and_every_public_name_is_in_the_page() -> None:
    kinds = {member.model_fields["kind"].default for member in Mode.__origin__.__args__}
    rows = re.findall(r"^\| `(\w+)` \|", section("Modes"), flags=re.MULTILINE)
    assert set(rows) == kinds
    for name in builder.experts.__all__:
        assert getattr(builder.experts, name).__name__ == name
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = builder.experts.nothing
