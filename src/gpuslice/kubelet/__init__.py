"""The kubelet's protocols: device plugin, registration, pod resources."""
