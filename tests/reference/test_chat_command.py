from __future__ import annotations

import json
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from builder.family.family import load_family
from builder.publish.pack import Options, pack
from builder.publish.pages import default_web_folder
from builder.reference import chat_command
from tests.conftest import DEMO

pytestmark = pytest.mark.slow
TOO_MUCH = b"is the lamp on? " * 16
"""What `home` does not come to an end with."""
TALK = b"hello\nturn on the bedroom light\nmake it 22 degrees instead\n\nwhat is 2 plus 2?\ncaf\xc3\xa9 \xff"
FEW = b"hello\nturn on the bedroom light\n"
ANSWERS = [
    "base: Hello! How can I help you today?  [no specialist has a positive score",
    'home: set_light(room="bedroom", state="on")  [chosen with +8',
    'home: set_heat(room="bathroom", degrees=22)  [chosen with +9',
    "error: the message is empty; type something first",
    'home: set_heat(room="bedroom", degrees=23)  [chosen with +8',
    "media: (nothing to do)  [chosen with +",
]


@pytest.fixture(scope="module")
def site(demo_cache, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("chat")
    shutil.copytree(demo_cache, folder / "cache")
    options = Options(8 * 2**20, 1, folder / "cache", default_web_folder())
    pack(load_family(DEMO / "family.toml"), folder / "site", options, lambda step, done, total: None)
    return folder / "site"


def chat(*arguments, said=TALK, **options):
    command = [sys.executable, "-m", "builder", "chat", *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
    options |= {"capture_output": True, "timeout": 200, "check": False, "env": environment}
    return subprocess.run(command, input=said, **options)


@pytest.mark.parametrize("where", [(), ("--reference",)])
def test_each_line_gets_one_line_that_says_who_and_why(site, where):
    done = chat(site, *where)
    lines = done.stdout.decode().splitlines()
    assert [line.startswith(start) for line, start in zip(lines, ANSWERS, strict=True)] == [True] * 6, lines
    assert done.stderr.decode() == "chat: answered: 1 by base, 3 by home, 1 by media, 1 by nobody\n"
    assert done.returncode == 0


@pytest.mark.parametrize("where", [(), ("--reference",)])
def test_a_line_that_the_base_took_over_says_who_was_chosen(site, where):
    done = chat(site, *where, said=TOO_MUCH)
    assert done.stdout.startswith(b"base: A cactus cactus cactus")
    assert b"  [home was chosen" in done.stdout


def test_a_rung_says_the_same_in_both_and_not_what_the_whole_models_say(site):
    whole, *both = (
        [json.loads(line)["answer"] for line in chat(site, "--json", *options, said=FEW).stdout.splitlines()]
        for options in ((), ("--depth", 3), ("--depth", 3, "--reference"))
    )
    for mine, theirs in zip(*both, strict=True):
        assert mine["token_ids"] == theirs["token_ids"]
    assert [answer["text"] for answer in both[0]] != [answer["text"] for answer in whole]


@pytest.mark.parametrize("where", [(), ("--reference",)])
def test_a_depth_that_the_models_do_not_have_is_refused_before_anybody_types(site, where):
    done = chat(site, "--depth", 9, *where)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b": depth: is 9, must be 2 to 6 layers" in done.stderr


def test_json_is_one_document_per_turn_and_the_same_in_both(site):
    both = [chat(site, "--json", *where).stdout.splitlines() for where in ((), ("--reference",))]
    for mine, theirs in zip(*(map(json.loads, lines) for lines in both), strict=True):
        assert mine["answer"]["token_ids"] == theirs["answer"]["token_ids"]
        assert mine["route"]["effective"] == theirs["route"]["effective"]
        assert mine["answer"].keys() == theirs["answer"].keys()


def test_a_seed_makes_sampling_reproducible(site):
    hot = ("--temperature", 5, "--seed")
    first, again, other = (chat(site, *hot, seed, said=b"hello\n") for seed in (7, 7, 8))
    assert first.stdout == again.stdout != other.stdout


def test_a_damaged_specialist_is_named_and_the_base_answers(site, tmp_path):
    broken = Path(shutil.copytree(site, tmp_path / "site"))
    manifest = json.loads((broken / "family.json").read_text())
    part = broken / manifest["specialists"][0]["delivery"]["parts"][0]["path"]
    part.write_bytes(part.read_bytes()[:-1] + b"x")
    done = chat(broken, said=b"turn on the bedroom light\n")
    assert done.stdout.decode().startswith("base: ")
    assert b"home was chosen" in done.stdout
    assert done.stderr.decode().startswith("chat: home: ")
    assert done.returncode == 0


def test_a_damaged_base_is_refused_before_anybody_types(site, tmp_path):
    broken = Path(shutil.copytree(site, tmp_path / "site"))
    manifest = json.loads((broken / "family.json").read_text())
    (broken / manifest["base"]["delivery"]["parts"][0]["path"]).unlink()
    done = chat(broken)
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.decode().startswith("chat: ")
    assert done.stderr.count(b"\n") == 1


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (("no-such-folder",), 1, "family.json: is missing"),
        (("x", "--temperature", "-1"), 2, "--temperature: is -1.0, must be 0 to 1e6"),
        (("x", "--seed", "-1"), 2, "--seed: is -1"),
        (("x", "--temperature", "nan"), 2, "--temperature: is nan"),
    ],
)
def test_what_cannot_work_is_one_sentence(arguments, code, sentence, tmp_path):
    done = chat(*arguments, cwd=tmp_path)
    assert done.returncode == code
    assert sentence in done.stderr.decode()
    assert done.stderr.count(b"\n") == 1


class OnTerminal:
    """The command in a pseudo terminal."""

    def __init__(self, site: Path) -> None:
        # Not pty.fork: this process may have threads (JAX), and forking those is refused.
        self.file, terminal = pty.openpty()
        environment = {**os.environ, "NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "200"}
        command = [sys.executable, "-m", "builder", "chat", str(site)]
        self.process = subprocess.Popen(
            command, stdin=terminal, stdout=terminal, stderr=terminal, env=environment, start_new_session=True
        )
        os.close(terminal)
        self.screen = ""

    def wait_for(self, text: str, seconds: float = 60) -> None:
        end = time.monotonic() + seconds
        while text not in self.screen:
            assert time.monotonic() < end, self.screen
            if select.select([self.file], [], [], 0.2)[0]:
                self.screen += os.read(self.file, 4096).decode(errors="replace").replace("\r\n", "\n")

    def type(self, text: str) -> None:
        self.screen = ""
        os.write(self.file, text.encode())


def test_a_terminal_gets_a_prompt_streamed_answers_and_a_reason(site):
    terminal = OnTerminal(site)
    terminal.wait_for("A small house: base, home, kitchen, media, calendar")
    terminal.wait_for("you: ")
    terminal.type("turn on the bedroom light\n")
    terminal.wait_for('home: set_light(room="bedroom", state="on")\nchosen with +8')
    terminal.wait_for("you: ")
    terminal.type("hello\n")
    terminal.wait_for("base: Hello! How can I help you today?\nno specialist has a positive score")
    terminal.wait_for("you: ")
    terminal.type("\x04")
    terminal.wait_for("chat: answered: 1 by base, 1 by home")
    assert terminal.process.wait(timeout=60) == 0
    os.close(terminal.file)


def test_ctrl_c_asks_an_answer_to_stop_and_ends_the_program_only_if_pressed_again():
    before = signal.getsignal(signal.SIGINT)
    with chat_command._interruptible() as stopped:
        assert not stopped()
        signal.raise_signal(signal.SIGINT)
        assert stopped()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
