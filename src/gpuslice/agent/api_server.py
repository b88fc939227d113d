"""Whether this agent talks to the API server."""

from __future__ import annotations

from gpuslice.cluster.client import ApiServer, connect
from gpuslice.cluster.errors import ClusterError
from gpuslice.config.errors import ConfigError
from gpuslice.config.startup_options import LabelsMode, StartupOptions
from gpuslice.telemetry.logs import Logger

log = Logger(__name__)


def api_server(options: StartupOptions) -> ApiServer | None:
    """None: the node has no name here, or its name serves nothing but events.

    Raises ConfigError if something that was asked for needs the API server.
    """
    if not options.node_name:
        return None
    try:
        return connect(options.kubeconfig)
    except ClusterError as error:
        if options.config_dir is not None:
            remedy = f"its label chooses the configuration, but {error}"
        elif options.labels in (LabelsMode.NODE, LabelsMode.NODE_FEATURE):
            remedy = f"its labels are to be published, but {error}"
        else:
            log.info("no events about the node", reason=error)
            return None
        raise ConfigError("node-name", options.node_name, remedy) from error
