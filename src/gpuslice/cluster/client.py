"""A connection to the API server."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from gpuslice.cluster.errors import ClusterError

if TYPE_CHECKING:
    from lightkube import AsyncClient
    from lightkube.config.kubeconfig import SingleConfig

FIELD_MANAGER = "gpuslice"


class ApiServer:
    """Created by `connect`. Nothing is sent before the first request."""

    def __init__(self, client: AsyncClient, url: str) -> None:
        self.client = client
        self.url = url

    @property
    def namespace(self) -> str:
        """The namespace of this pod, or that of the context of the kubeconfig."""
        return str(self.client.namespace)

    async def close(self) -> None:
        await self.client.close()

    @contextlib.contextmanager
    def errors(self, operation: str) -> Iterator[None]:
        """Converts every error to a ClusterError that names the operation."""
        import httpx2
        import msgspec
        from lightkube import ApiError
        from lightkube.core.exceptions import ConfigError, NotReadyError

        try:
            yield
        except ClusterError:
            raise
        except ApiError as error:
            status = error.status.code
            raise ClusterError(f"{operation}: {_text(error)} ({self.url})", status) from error
        except httpx2.HTTPStatusError as error:
            status = error.response.status_code
            raise ClusterError(f"{operation}: HTTP status {status} ({self.url})", status) from error
        except (
            # No connection, or a broken one.
            httpx2.HTTPError,
            httpx2.StreamError,
            OSError,
            # A token file or a credential helper that does not work.
            ConfigError,
            # A response of a proxy or a load balancer, not of the API server.
            msgspec.MsgspecError,
            LookupError,
            ValueError,
            TypeError,
            AttributeError,
            NotReadyError,
        ) as error:
            raise ClusterError(f"{operation}: {_text(error)} ({self.url})") from error


def connect(kubeconfig: Path | None = None) -> ApiServer:
    """Uses the kubeconfig, or the service account of the pod without one. Raises ClusterError."""
    import httpx2
    from lightkube import AsyncClient
    from lightkube.config.client_adapter import verify_cluster

    from gpuslice.cluster.transport import Transport

    config = _from_kubeconfig(kubeconfig) if kubeconfig else _from_service_account()
    assert config.user is not None
    try:
        transport = Transport(verify_cluster(config.cluster, config.user, config.abs_file))
        client = AsyncClient(
            config=config,
            timeout=httpx2.Timeout(10.0),
            field_manager=FIELD_MANAGER,
            transport=transport,
        )
    except Exception as error:  # parsers of certificates raise many types
        where = f"kubeconfig {str(kubeconfig)!r}" if kubeconfig else "the pod's service account"
        raise ClusterError(f"{where} cannot be used: {_text(error)}") from error
    return ApiServer(client, config.cluster.server)


def _from_kubeconfig(path: Path) -> SingleConfig:
    import msgspec
    import yaml
    from lightkube.config.kubeconfig import KubeConfig
    from lightkube.config.models import User
    from lightkube.core.exceptions import ConfigError

    try:
        config = KubeConfig.from_file(path).get()
    except (
        OSError,
        ConfigError,
        yaml.YAMLError,
        msgspec.MsgspecError,
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
    ) as error:
        raise ClusterError(
            f"kubeconfig {str(path)!r} cannot be used: {_text(error)}; use a kubeconfig with a "
            "current context, or unset it to use the service account of the pod"
        ) from error
    assert config is not None
    # A context without a user sends anonymous requests.
    return config if config.user is not None else config._replace(user=User())


def _from_service_account() -> SingleConfig:
    from lightkube.config.kubeconfig import KubeConfig
    from lightkube.core.exceptions import ConfigError

    try:
        config = KubeConfig.from_service_account().get()
    except (OSError, ConfigError, KeyError) as error:
        raise ClusterError(
            f"the API server is unknown: this is not a pod with a service account "
            f"({_text(error)}); set kubeconfig"
        ) from error
    assert config is not None
    return config


def _text(error: Exception) -> str:
    """Some network errors have no message."""
    return f"{error}" or type(error).__name__
