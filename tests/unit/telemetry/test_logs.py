import json
import logging

import pytest

from gpuslice.codes import Code
from gpuslice.telemetry.logs import LogFormat, Logger, LogLevel, configure_logs


@pytest.fixture(autouse=True)
def restored_logging() -> object:
    yield
    logging.basicConfig(handlers=[], force=True)
    logging.getLogger("gpuslice").setLevel(logging.NOTSET)


def test_a_text_line_has_a_code_a_sentence_and_details(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs(LogLevel.INFO, LogFormat.TEXT)
    Logger("gpuslice.x").info(Code.ADVERTISED, "advertising", gpu=0, model="Tesla T4")
    Logger("gpuslice.x").debug(Code.ADVERTISED, "not logged at this level")
    [line] = capsys.readouterr().err.splitlines()
    assert line.endswith('Z INFO    Advertised: advertising gpu=0 model="Tesla T4"')


def test_a_text_line_has_structured_details_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs(LogLevel.INFO, LogFormat.TEXT)
    Logger("gpuslice.x").warning(Code.GPU_SKIPPED, "skipped", gpus=[0, 1], reason="")
    assert capsys.readouterr().err.endswith('WARNING GPUSkipped: skipped gpus=[0,1] reason=""\n')


def test_a_json_line_has_the_code_and_the_trace(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs(LogLevel.DEBUG, LogFormat.JSON)
    try:
        raise ValueError("wrong")
    except ValueError:
        Logger("gpuslice.x").exception(
            Code.RECONCILE_FAILED, "cannot reconcile", reason=RuntimeError("x")
        )
    entry = json.loads(capsys.readouterr().err)
    assert (entry["level"], entry["code"]) == ("error", "ReconcileFailed")
    assert (entry["event"], entry["reason"]) == ("cannot reconcile", "x")
    assert "ValueError: wrong" in entry["trace"]


@pytest.mark.parametrize("style", LogFormat)
def test_lines_of_libraries_have_no_code(
    capsys: pytest.CaptureFixture[str], style: LogFormat
) -> None:
    configure_logs(LogLevel.INFO, style)
    logging.getLogger("grpc").warning("slow")
    [line] = capsys.readouterr().err.splitlines()
    if style is LogFormat.TEXT:
        assert line.endswith("Z WARNING slow")
    else:
        assert "code" not in json.loads(line)
