"""Reason codes are stable names, so nothing but real ones may be in the list."""

from __future__ import annotations

import re
from pathlib import Path

import gpuslice
from gpuslice.codes import Code

SOURCE = Path(gpuslice.__file__).parent


def test_every_code_is_used() -> None:
    text = "\n".join(path.read_text() for path in SOURCE.rglob("*.py") if path.name != "codes.py")
    assert [code for code in Code if f"Code.{code.name}" not in text] == []


def test_a_code_is_one_word_in_camel_case_and_has_a_sentence() -> None:
    for code in Code:
        assert re.fullmatch(r"[A-Z][A-Za-z]+", code), code
        assert code.meaning.endswith("."), code
        words = code.name.replace("_", "").lower()
        assert words == code.lower(), code


def test_codes_can_be_compared_with_text() -> None:
    assert Code("SpansGPUs") is Code.SPANS_GPUS  # type: ignore[call-arg]
    assert f"{Code.SPANS_GPUS}: x" == "SpansGPUs: x"
