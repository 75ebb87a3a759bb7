"""Budgeted exports: the budget holds, what is said of them is true, and nothing changes without the flag."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from builder.cact.reader import read_container
from builder.cli import main
from builder.delta import apply_patch, make_patch
from builder.delta.frame import read_patch_header, read_segments
from builder.delta.layout import PREDICTED_CODERS, SegmentKind
from builder.errors import FamilyError
from builder.family.budget.evaluate import Example, compare, read_examples
from builder.family.budget.export import Budget, Budgeted, BudgetExporter
from builder.family.budget.requantiser import Point
from builder.family.budget.search import Found, first_that_fits, friendly_point, step_points, trade_points
from builder.family.budget.size import parse_size
from builder.family.export import Exporters, export_member
from builder.family.family import Family, load_family
from builder.publish.manifest import read_manifest
from builder.reference.generation import generate
from builder.reference.prompts import PromptTemplate, fit_prompt
from builder.reference.session import ReferenceModel
from builder.runtime.interface import Sampling
from tests.conftest import DEMO
from tests.family import upstream

SCALE = 2.0
KERNEL = "lora/stack/layers/block/self_attn/{}/kernel"
QUERIES = ("turn on the bedroom light", "warm up the garage to 23 degrees please")


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Family:
    """The demo's base and one specialist at two layers, which are its first and its last."""
    text = (
        '[family]\nname = "shallow"\ntitle = "Shallow"\ntokenizer = "DEMO/tokenizer.model"\nlayers = 2\n'
        '[base]\ncheckpoint = "DEMO/base.safetensors"\n'
        '[[specialists]]\nid = "home"\nabout = "lights"\nadapter = "DEMO/home.lora.safetensors"\n'
        'max_new_tokens = 8\ntools = { file = "DEMO/tools.json", key = "tools.home" }\n'
    )
    path = tmp_path_factory.mktemp("shallow") / "family.toml"
    path.write_text(text.replace("DEMO", str(DEMO.absolute())), encoding="utf-8")
    return load_family(path)


@pytest.fixture(scope="module")
def exporter(family: Family) -> BudgetExporter:
    return BudgetExporter(export_member(family, "base"), Exporters(family), effort=1)


@pytest.fixture(scope="module")
def friendly(family: Family, exporter: BudgetExporter) -> Budgeted:
    return exporter.export(family.member("home"), Budget(None))


def arrival_by_weights(
    base: bytes, member: bytes, adapter: Path, layers: dict[int, int]
) -> tuple[float, float]:
    """Gain and relative error from the weights that the files stand for, not from rotated codes."""
    old, new, lora = read_container(base), read_container(member), load_file(adapter)
    square = product = error = 0.0
    for record in new.records:
        if not (record.name.startswith("layers.") and record.name.endswith("_proj")):
            continue
        _, layer, field = record.name.split(".")
        a, b = (
            lora[f"{KERNEL.format(field)}/{side}"][layers[int(layer)]].astype(np.float64) for side in "AB"
        )
        wanted = SCALE * (a @ b).T
        change = new.tensor(record.name).astype(np.float64) - old.tensor(record.name)
        square += np.square(wanted).sum()
        product += (change * wanted).sum()
        error += np.square(change - wanted).sum()
    return product / square, (error / square) ** 0.5


def coders(patch: bytes) -> set[int]:
    return {
        segment.coder
        for segment in read_segments(patch, read_patch_header(patch))
        if segment.kind is SegmentKind.CQ
    }


@pytest.mark.slow
def test_a_friendly_member_is_what_its_small_patch_rebuilds(family, exporter, friendly):
    assert apply_patch(exporter.base, friendly.patch) == friendly.data
    assert coders(friendly.patch) <= set(PREDICTED_CODERS)
    assert 5 * len(friendly.patch) < friendly.plain_patch_bytes
    plain = export_member(family, "home")
    assert friendly.data != plain
    assert len(make_patch(exporter.base, plain, effort=1)) == friendly.plain_patch_bytes


def test_gain_and_error_are_those_of_the_weights(exporter, friendly):
    gain, error = arrival_by_weights(
        exporter.base, friendly.data, DEMO / "home.lora.safetensors", {0: 0, 1: 5}
    )
    assert friendly.arrival.gain == pytest.approx(gain, abs=1e-5)
    assert friendly.arrival.relative_error == pytest.approx(error, abs=1e-5)
    assert friendly.lossy is not None
    assert friendly.lossy.gain == round(gain, 4)
    assert 0.99 < friendly.arrival.lowest_gain < gain < friendly.arrival.highest_gain < 1.01


def test_only_codes_and_norms_of_adapted_projections_differ_from_the_plain_export(family, friendly):
    plain, made = read_container(export_member(family, "home")), read_container(friendly.data)
    assert plain.header == made.header
    changed = {r.name for r in plain.records if plain.raw(r.name) != made.raw(r.name)}
    kernels = ("q_proj", "k_proj", "v_proj", "gate_proj", "out_proj")
    assert changed == {f"layers.{layer}.{field}" for layer in (0, 1) for field in kernels}


@pytest.mark.slow
def test_a_budget_is_met_by_zero_residual_and_found_again(family, exporter):
    budget = Budget(7_000)
    first, second = (exporter.export(family.member("home"), budget) for _ in range(2))
    assert 5_000 < len(first.patch) <= 7_000
    assert first.lossy is not None
    assert (first.lossy.mode, first.lossy.budget_bytes) == ("zero-residual", 7_000)
    assert apply_patch(exporter.base, first.patch) == first.data
    assert (first.data, first.patch) == (second.data, second.patch)


@pytest.mark.slow
def test_a_patch_larger_than_its_trial_is_not_passed_off_as_fitting(family, exporter, monkeypatch):
    fits = Found(friendly_point(), 3_000)
    monkeypatch.setattr("builder.family.budget.export.first_that_fits", lambda *_: fits)
    sentence = (
        r"^home: its patch has \d+,\d{3} bytes, must be at most 3,000, as its trial had; .* this builder$"
    )
    with pytest.raises(FamilyError, match=sentence) as refused:
        exporter.export(family.member("home"), Budget(3_000))
    assert refused.value.code == "budget_limit"


@pytest.mark.slow
def test_a_larger_budget_is_met_by_rate_and_distortion(family, exporter, friendly):
    made = exporter.export(family.member("home"), Budget(30_000))
    assert 25_000 < len(made.patch) <= 30_000
    assert made.lossy is not None
    assert made.lossy.mode == "rate-distortion"
    assert not coders(made.patch) & set(PREDICTED_CODERS)
    assert apply_patch(exporter.base, made.patch) == made.data
    gain, error = arrival_by_weights(exporter.base, made.data, DEMO / "home.lora.safetensors", {0: 0, 1: 5})
    assert (made.arrival.gain, made.arrival.relative_error) == pytest.approx((gain, error), abs=1e-5)
    assert 0.97 < gain < 1.03


@pytest.mark.slow
def test_a_budget_that_the_plain_patch_meets_changes_nothing(family, exporter):
    made = exporter.export(family.member("home"), Budget(10**6))
    assert made.lossy is None
    assert made.data == export_member(family, "home")


@pytest.mark.slow
def test_a_budget_beyond_reach_is_refused_with_the_smallest_size(family, exporter):
    with pytest.raises(
        FamilyError, match="no patch of at most 900 bytes can be reached, the smallest"
    ) as refused:
        exporter.export(family.member("home"), Budget(900))
    assert refused.value.code == "budget_unreachable"
    smallest = int(str(refused.value).split("smallest has ")[1].split(";")[0].replace(",", ""))
    made = exporter.export(family.member("home"), Budget(smallest))
    assert len(made.patch) <= smallest


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limit", "sentence"),
    [
        ({"min_gain": 1.01}, "home: gain is 1.0.*, must be 1.01 to 1.03; raise the budget"),
        ({"max_gain": 0.99}, "home: gain is 1.0.*, must be 0.97 to 0.99; raise the budget"),
        ({"max_kl": -1.0}, "home: KL to the plain export is 0.0.*, must be at most -1; raise the budget"),
        ({"min_exact_match": 1.1}, "home: exact match with the plain export is .*, must be at least 1.1"),
    ],
)
def test_a_limit_that_is_passed_is_a_refusal(family, exporter, limit, sentence):
    examples = (Example((QUERIES[0],), None, None),)
    with pytest.raises(FamilyError, match=sentence) as refused:
        exporter.export(family.member("home"), Budget(None, **limit, examples=examples))
    assert refused.value.code == "budget_limit"


def test_a_member_without_an_adapter_is_refused(family, exporter):
    bare = dataclasses.replace(family.member("home"), adapter=None)
    with pytest.raises(FamilyError, match="home: has no adapter") as refused:
        exporter.export(bare, Budget(None))
    assert refused.value.code == "no_low_rank_change"


@pytest.mark.slow
def test_a_random_family_of_upstream_gets_small_patches(tmp_path, upstream_files):
    (tmp_path / "family.toml").write_text(
        f'[family]\nname = "tiny"\ntitle = "Tiny"\ntokenizer = "{upstream.TOKENIZER}"\n'
        f'[base]\ncheckpoint = "{upstream_files.checkpoint}"\n'
        f'[[specialists]]\nid = "tuned"\nabout = "t"\nadapter = "{upstream_files.adapter}"\n'
    )
    family = load_family(tmp_path / "family.toml")
    exporter = BudgetExporter(export_member(family, "base"), Exporters(family), effort=1)
    made = exporter.export(family.member("tuned"), Budget(None))
    assert apply_patch(exporter.base, made.patch) == made.data
    assert 2 * len(made.patch) < made.plain_patch_bytes
    gain, error = arrival_by_weights(
        exporter.base, made.data, upstream_files.adapter, {layer: layer for layer in range(5)}
    )
    # Rows of 64 or 96 weights are padded to 128 codes: what is said counts the padding, the weights do not.
    assert made.arrival.gain == pytest.approx(gain, abs=0.01)
    assert made.arrival.relative_error == pytest.approx(error, rel=0.1)


@pytest.mark.slow
def test_agreement_is_the_divergence_of_whole_histories(family, friendly):
    """Another path through the reference: no cache, every step from its whole history, in numpy."""
    member, plain = family.member("home"), export_member(family, "home")
    examples = [Example((query,), None, None) for query in QUERIES]
    found = compare(plain, friendly.data, member, examples)
    models = [ReferenceModel(read_container(data), use_cache=False) for data in (plain, friendly.data)]
    divergences, matches = [], 0
    for query in QUERIES:
        prompt = fit_prompt(models[0], PromptTemplate(tools=member.tools), [query], 8)
        answers = [generate(model, prompt, 8, Sampling()) for model in models]
        matches += answers[0].token_ids == answers[1].token_ids
        for step in range(len(answers[0].token_ids) + (answers[0].stop_reason == "stop")):
            logits = []
            for model in models:
                session = model.session(256)
                session.append([*prompt, *answers[0].token_ids[:step]])
                logits.append(session.logits().astype(np.float64))
            shares = [np.exp(row - row.max()) / np.exp(row - row.max()).sum() for row in logits]
            divergences.append((shares[0] * np.log(shares[0] / shares[1])).sum())
    assert found.tokens == len(divergences)
    assert found.kl == pytest.approx(np.mean(divergences), rel=1e-3)
    assert found.kl > 0
    assert found.exact_match == matches / len(QUERIES)
    same = compare(plain, plain, member, examples)
    assert (same.kl, same.exact_match) == (0, 1)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("70000", 70_000),
        ("300KB", 300_000),
        ("0.6MB", 600_000),
        ("1.5 KiB", 1_536),
        ("2mib", 2 << 20),
        ("9b", 9),
    ],
)
def test_sizes_are_read(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "KB", "-1", "0", "1e6", "3GB", "1,5MB", "0.0001KB", "5 0"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ValueError, match="is no size; write bytes as"):
        parse_size(text)


@pytest.mark.parametrize("points", [step_points(), trade_points()])
@pytest.mark.parametrize("budget", [1, 40, 41, 57, 99, 1000])
def test_the_search_finds_the_first_point_that_fits_and_ends(points, budget):
    tried = []

    def size_at(point: Point) -> int:
        tried.append(point)
        return 40 + len(points) - points.index(point)

    found = first_that_fits(points, budget, size_at)
    fitting = [point for point in points if 40 + len(points) - points.index(point) <= budget]
    assert found.point == (fitting[0] if fitting else None)
    assert found.size == (40 + len(points) - points.index(fitting[0]) if fitting else 41)
    assert len(tried) <= 8


def test_an_evaluation_set_is_read(tmp_path):
    lines = [
        {"query": "light on", "tools": [], "answers": [{"name": "x"}]},
        {"turns": ["hello", "and now?"], "system": "s", "tools": [{"name": "t"}]},
    ]
    (tmp_path / "set.jsonl").write_text("\n".join([json.dumps(lines[0]), "", json.dumps(lines[1])]))
    assert read_examples(tmp_path / "set.jsonl") == [
        Example(("light on",), None, ""),
        Example(("hello", "and now?"), "s", '[{"name":"t"}]'),
    ]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("", "has no line"),
        ("[]", "line 1: must be a JSON object"),
        ("{", "line 1"),
        ("{}", 'line 1: must have "turns"'),
        ('{"turns": []}', 'line 1: must have "turns"'),
        ('{"turns": ["a", 1]}', 'line 1: must have "turns"'),
        ('{"query": " "}', 'line 1: must have "turns"'),
        ('{"query": "a", "system": 1}', "line 1: system is 1, must be a text"),
        ('{"query": "a", "tools": {}}', "line 1: tools is {}, must be a list"),
    ],
)
def test_a_bad_evaluation_set_is_refused_with_its_line(tmp_path, line, sentence):
    (tmp_path / "set.jsonl").write_text(line)
    with pytest.raises(FamilyError, match=sentence) as refused:
        read_examples(tmp_path / "set.jsonl")
    assert refused.value.code == "bad_evaluation"


def command(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = main(["family", "export", *map(str, words)])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.slow
def test_the_command_writes_member_and_patch_and_says_what_changed(capsys, family, tmp_path):
    code, out, err = command(capsys, family.path, "--out", tmp_path / "new", "--patch-friendly", "--json")
    assert code == 0
    base, made, patch = (
        export_member(family, "base"),
        *((tmp_path / "new" / f"home.{end}").read_bytes() for end in ("cact", "patch")),
    )
    assert apply_patch(base, patch) == made
    assert "home: zero-residual, not the plain export" in out
    assert err.endswith("family: exported 1 model to " + str(tmp_path / "new") + ", 1 of them lossy\n")
    (model,) = json.loads(out.splitlines()[-1])["models"]
    assert (model["bytes"], model["patch_bytes"]) == (len(made), len(patch))
    assert set(model["lossy"]) == {"mode", "gain", "relative_error"}


@pytest.mark.slow
def test_the_command_writes_nothing_where_a_limit_is_passed(capsys, family, tmp_path):
    words = ("--out", tmp_path / "new", "--patch-friendly", "--min-gain", 1.02)
    code, out, err = command(capsys, family.path, *words)
    assert (code, out) == (1, "")
    assert "home: gain is" in err
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--budget", "3GB"], "is no size"),
        (["--budget", "1KB", "--patch-friendly"], "not allowed with"),
        (["--max-kl", "0.1"], "--max-kl: needs --budget or --patch-friendly"),
        (["--patch-friendly", "--max-kl", "0.1"], "--max-kl: needs an evaluation set"),
        (["--patch-friendly", "--eval", "set.jsonl"], "--eval: is the set of one member"),
    ],
)
def test_options_that_make_no_sense_are_refused(capsys, family, tmp_path, words, sentence):
    code, _, err = command(capsys, family.path, "--out", tmp_path / "new", *words)
    assert code == 2
    assert sentence in err
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
def test_a_packed_family_says_which_member_is_lossy(capsys, family, tmp_path):
    text = family.path.read_text().replace('about = "lights"', 'about = "lights"\nbudget = "patch-friendly"')
    text = text.replace("max_new_tokens = 8", "max_new_tokens = 64")
    (tmp_path / "family.toml").write_text(text)
    places = ("--out", tmp_path / "site", "--cache", tmp_path / "cache")
    assert main(["pack", str(tmp_path / "family.toml"), *map(str, places)]) == 0
    first = capsys.readouterr().out
    assert re.search(r"^home +patch, lossy ", first, re.MULTILINE)
    manifest = read_manifest((tmp_path / "site" / "family.json").read_bytes())
    lossy = manifest.specialists[0].lossy
    assert lossy is not None
    assert (lossy.mode, lossy.budget_bytes) == ("zero-residual", None)
    assert lossy.gain == pytest.approx(1, abs=0.01)
    assert main(["verify", str(tmp_path / "site")]) == 0
    capsys.readouterr()
    assert main(["pack", str(tmp_path / "family.toml"), *map(str, places), "--json"]) == 0
    again = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert again["steps"]["made"] == []
    assert [member["lossy"] for member in again["members"]] == [False, True]
    words = ("--out", tmp_path / "out", "--member", "home")
    assert command(capsys, tmp_path / "family.toml", *words)[0] == 0
    assert (
        hashlib.sha256((tmp_path / "out" / "home.cact").read_bytes()).hexdigest()
        == manifest.specialists[0].sha256
    )


@pytest.mark.parametrize("budget", ["small", "0", "3GB", ""])
def test_a_bad_budget_in_the_family_file_is_refused(family, tmp_path, budget):
    text = family.path.read_text().replace('about = "lights"', f'about = "lights"\nbudget = "{budget}"')
    (tmp_path / "family.toml").write_text(text)
    with pytest.raises(FamilyError, match=r"specialists\.0\.budget: .* is no size") as refused:
        load_family(tmp_path / "family.toml")
    assert refused.value.code == "bad_family"
