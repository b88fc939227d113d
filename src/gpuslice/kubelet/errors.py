"""Errors of device plugin servers, without gRPC: programs that need no gRPC handle them, too."""

from __future__ import annotations

from gpuslice.codes import Code


class PluginServerError(Exception):
    """The resource cannot be served at all."""

    code = Code.SOCKET_NOT_CREATED


class AlreadyServed(PluginServerError):
    """Another process serves this resource."""

    code = Code.ALREADY_SERVED
