"""Status codes: the same in C and Python, and each a sentence of the right class."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from builder.errors import ContainerError, PatchError, RefusedError, SessionError, UsageError
from builder.runtime.status import DONE, STATUS_CODES, Failure

HEADER = Path(__file__).parents[2] / "engine" / "include" / "sg_status.h"


def test_python_and_c_have_the_same_codes():
    found = re.findall(r"X\(([A-Z0-9_]+), (\d+)\)", HEADER.read_text())
    assert {int(value): name.lower() for name, value in found} == STATUS_CODES
    assert len(found) > 30


@pytest.mark.parametrize("status", [status for status in STATUS_CODES if status > DONE])
def test_every_failure_is_one_sentence_with_its_code(status):
    error = Failure(status, "field", 40, 7, 9).exception("a.cact")
    assert error.code == STATUS_CODES[status]
    assert str(error).startswith("a.cact: ")
    assert "\n" not in str(error)
    assert error.exit_code in (1, 2)


@pytest.mark.parametrize(
    ("status", "kind"),
    [(100, ContainerError), (211, PatchError), (300, SessionError), (10, UsageError), (11, RefusedError)],
)
def test_causes_have_the_class_of_their_room(status, kind):
    assert type(Failure(status, "field", 0, 0, 0).exception("it")) is kind


def test_a_failure_without_numbers_is_told_in_words():
    message = str(Failure(203, "header.base_sha256", 12, 0, 0).exception("patch"))
    assert message == "patch: header.base_sha256 at byte 12: wrong base (patch_wrong_base)"


def test_a_number_that_breaks_its_bound_is_named():
    message = str(Failure(102, "header.d_model", 28, 0, 1).exception("base.cact"))
    assert message == "base.cact: header.d_model at byte 28: is 0, must keep to 1 (cact_bad_header)"
