"""Whether a program connects to the API server."""

from __future__ import annotations

from gpuslice.cluster.client import ApiServer, connect
from gpuslice.cluster.errors import ClusterError
from gpuslice.codes import Code
from gpuslice.config.errors import ConfigError
from gpuslice.config.startup_options import LabelsMode, StartupOptions
from gpuslice.telemetry.logs import Logger

log = Logger(__name__)


def connect_if_needed(options: StartupOptions) -> ApiServer | None:
    """None: the options name no node, or they need the API server only for events.

    Raises ConfigError if the options need the API server and there is none.
    """
    if not options.node_name:
        return None
    try:
        return connect(options.kubeconfig)
    except ClusterError as error:
        if options.config_dir is not None:
            remedy = f"the label of this node selects the configuration, but {error}"
        elif options.labels in (LabelsMode.NODE, LabelsMode.NODE_FEATURE):
            remedy = f"labels of this node are published, but {error}"
        else:
            log.info(Code.NO_EVENTS, "events of the node are not recorded", reason=error)
            return None
        raise ConfigError("node-name", options.node_name, remedy) from error
