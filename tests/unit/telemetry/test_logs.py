import json
import logging

import pytest

from gpuslice.telemetry.logs import LogFormat, Logger, LogLevel, configure_logs


@pytest.fixture(autouse=True)
def leave_logging_as_it_was() -> object:
    yield
    logging.basicConfig(handlers=[], force=True)
    logging.getLogger("gpuslice").setLevel(logging.NOTSET)


def test_text_lines_carry_facts_as_key_value(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs(LogLevel.INFO, LogFormat.TEXT)
    Logger("gpuslice.x").info("offering", gpu=0, model="Tesla T4")
    Logger("gpuslice.x").debug("unseen")
    assert capsys.readouterr().err.rstrip().endswith('Z INFO    offering gpu=0 model="Tesla T4"')


def test_json_lines_are_json(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs(LogLevel.DEBUG, LogFormat.JSON)
    try:
        raise ValueError("wrong")
    except ValueError:
        Logger("gpuslice.x").exception("failed", reason=RuntimeError("x"))
    entry = json.loads(capsys.readouterr().err)
    assert (entry["level"], entry["event"], entry["reason"]) == ("error", "failed", "x")
    assert "ValueError: wrong" in entry["trace"]
