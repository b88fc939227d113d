"""One line per event: a reason code, a sentence, and details as key=value."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from enum import Enum

from gpuslice.codes import Code

_CODE = "gpuslice_code"
_FIELDS = "gpuslice_fields"


class LogFormat(Enum):
    TEXT = "text"
    JSON = "json"


class LogLevel(Enum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Logger:
    """`log.info(Code.REGISTERED, "registered with the kubelet", resource=name)`"""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def debug(self, code: Code, event: str, **fields: object) -> None:
        self.log(LogLevel.DEBUG, code, event, **fields)

    def info(self, code: Code, event: str, **fields: object) -> None:
        self.log(LogLevel.INFO, code, event, **fields)

    def warning(self, code: Code, event: str, **fields: object) -> None:
        self.log(LogLevel.WARNING, code, event, **fields)

    def error(self, code: Code, event: str, **fields: object) -> None:
        self.log(LogLevel.ERROR, code, event, **fields)

    def exception(self, code: Code, event: str, **fields: object) -> None:
        self._logger.error(event, exc_info=True, extra={_CODE: code, _FIELDS: fields})

    def log(self, level: LogLevel, code: Code, event: str, **fields: object) -> None:
        number = getattr(logging, level.name)
        if self._logger.isEnabledFor(number):
            self._logger.log(number, event, extra={_CODE: code, _FIELDS: fields})


def configure_logs(level: LogLevel = LogLevel.INFO, style: LogFormat = LogFormat.TEXT) -> None:
    """Call it before gRPC is imported: gRPC's core logs every closed connection otherwise."""
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_TextFormatter() if style is LogFormat.TEXT else _JsonFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("gpuslice").setLevel(level.name)


class _TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        code: Code | None = getattr(record, _CODE, None)
        fields: dict[str, object] = getattr(record, _FIELDS, {})
        sentence = record.getMessage()
        parts = [_timestamp(record), f"{record.levelname:<7}"]
        parts.append(f"{code}: {sentence}" if code else sentence)
        parts += [f"{key}={_quoted(value)}" for key, value in fields.items()]
        line = " ".join(parts)
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        code: Code | None = getattr(record, _CODE, None)
        entry: dict[str, object] = {
            "time": _timestamp(record),
            "level": record.levelname.lower(),
            **({"code": code} if code else {}),
            "event": record.getMessage(),
            **getattr(record, _FIELDS, {}),
        }
        if record.exc_info:
            entry["trace"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


def _timestamp(record: logging.LogRecord) -> str:
    moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{moment}.{int(record.msecs):03d}Z"


def _quoted(value: object) -> str:
    if isinstance(value, dict | list):
        return json.dumps(value, separators=(",", ":"), default=str)
    text = str(value)
    return json.dumps(text) if not text or any(c in text for c in ' "=\n') else text
