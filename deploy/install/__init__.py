"""Applies the manifests with an image: `python -m deploy.install`."""
