"""The engine in Chromium, through the page's library, against the same engine in wasmtime: routes, tokens and
logits are equal, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builder.family.family import load_family
from builder.publish.pack import Options, pack
from builder.publish.pages import default_web_folder
from builder.publish.site import open_site
from builder.reference.generation import generate
from builder.reference.prompts import PromptTemplate, render_prompt
from builder.runtime.engine import Engine
from builder.runtime.interface import Sampling
from tests.parity.conftest import run_engine
from tests.parity.random_models import GEOMETRIES, write_random_model
from tests.parity.recording import Response, logits_sha256, read_conversations
from tests.web.conftest import EMBED, PART_BYTES

pytestmark = [pytest.mark.browser, pytest.mark.slow]

MEASURED = ("prefill_tps", "decode_tps", "peak_ram_mb")
RUN_ALL = """async (conversations) => {
  const responses = [];
  for (const { id, turns } of conversations) {
    for (let turn = 0; turn < turns.length; turn += 1) {
      const streamed = [];
      const onToken = ({ member, text }) => streamed.push([member, text]);
      const answer = await family.respond(turns.slice(0, turn + 1), { trace: true, onToken });
      const { envelope, route, trace } = answer;
      const logits = trace?.logits_sha256 ?? [];
      responses.push({ name: `${id}[${turn}]`, envelope, route, logits, streamed });
    }
  }
  return responses;
}"""


def without_measurements(envelope: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in envelope.items() if key not in MEASURED}


def answering_logits(response: Response) -> list[str]:
    """Hashes of what the effective answer's ids were drawn from."""
    logs = [log for log in response.sessions if log.drawn_ids and log.member == response.answer.member]
    return [logits_sha256(row) for row in logs[-1].logits] if logs else []


def test_chromium_says_what_wasmtime_says(visit, packed, demo_family, made_once) -> None:
    conversations = read_conversations()
    assert len(conversations) >= 40
    site = open_site(packed)
    for member in demo_family.family.members:
        assert site.member_bytes(member.id) == (demo_family.folder / f"{member.id}.cact").read_bytes()
    expected = run_engine(made_once, demo_family)
    found = visit().embed().page.evaluate(RUN_ALL, conversations)
    assert [there["name"] for there in found] == [here.name for here in expected]
    for here, there in zip(expected, found, strict=True):
        record = here.record.to_json() | {"scores": list(here.record.scores), "ids": list(here.record.ids)}
        assert there["route"] == record, here.name
        assert without_measurements(there["envelope"]) == without_measurements(here.answer.to_json()), (
            here.name
        )
        assert there["logits"] == answering_logits(here), here.name
        said = "".join(text for member, text in there["streamed"] if member == here.answer.member)
        assert said == here.answer.text, here.name


@pytest.fixture(params=[*((name, "exact") for name in GEOMETRIES), ("mixed_bits", "fast")], ids=" ".join)
def random_site(request, tmp_path: Path) -> Path:
    """A family of one random model; in `fast` Chromium runs the relaxed module, wasmtime the plain one."""
    geometry, numerics = request.param
    seed = list(GEOMETRIES).index(geometry)
    write_random_model(tmp_path / "random.cact", GEOMETRIES[geometry], seed)
    toml = '[family]\nname = "random"\ntitle = "Random"\n[base]\ncact = "random.cact"\nmax_new_tokens = 40\n'
    (tmp_path / "family.toml").write_text(toml, "utf-8")
    options = Options(PART_BYTES, 1, tmp_path / "cache", default_web_folder(), numerics=numerics)
    pack(load_family(tmp_path / "family.toml"), tmp_path / "site", options, lambda step, done, total: None)
    (tmp_path / "site" / "embed.html").write_text(EMBED, "utf-8")
    return tmp_path / "site"


def test_random_models_too(visit, serve, random_site) -> None:
    site = open_site(random_site)
    model = Engine().open(site.member_bytes("base"), numerics=site.manifest.numerics)
    embedded = visit(serve(random_site)).embed()
    rng = np.random.default_rng(11)
    for temperature in (0.0, 0.8):
        query = " ".join(rng.choice(("the", "light", "Bach", "20", "日本", "\U0001f4a1", "no?"), 30))
        ids = [model.info.bos_id, *model.encode(render_prompt(PromptTemplate(), [query], 0))]
        sampling = Sampling(temperature=temperature, top_p=0.9, top_k=50, random_state=2**63 + 5)
        made = generate(model, ids, 40, sampling, keep_logits=True)
        answer = embedded.page.evaluate(
            """async ([query, temperature]) => {
              const sampling = { temperature, top_p: 0.9, top_k: 50, seed: 2n ** 63n + 5n };
              const { envelope, trace } = await family.respond([query], { sampling, trace: true });
              return { ids: envelope.token_ids, logits: trace.logits_sha256 };
            }""",
            [query, temperature],
        )
        assert answer["ids"] == made.token_ids
        assert answer["logits"][: len(made.logits)] == [logits_sha256(row) for row in made.logits]
        assert len(set(answer["logits"])) > 10
    variant = "relaxed" if model.numerics == "fast" else "plain"
    assert embedded.call("family.status().engine.variant") == variant
