"""Errors of device plugin servers, without gRPC: programs that need no gRPC handle them, too."""

from __future__ import annotations


class PluginServerError(Exception):
    """The resource cannot be served at all."""


class AlreadyServed(PluginServerError):
    """Another process serves this resource."""
