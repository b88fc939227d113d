"""Who may talk to the API server: its certificate, a token for every user, kubeconfig files."""

from __future__ import annotations

import secrets
import shutil
import subprocess
from pathlib import Path

import yaml

_NAMES = "DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc"


class Credentials:
    """Files in one directory. Users are added before the API server starts."""

    def __init__(self, directory: Path, address: str) -> None:
        """`address` is the API server's."""
        if shutil.which("openssl") is None:
            raise FileNotFoundError(
                "the API server's certificate is made by openssl, which is not on PATH: install it "
                "(Debian: apt-get install openssl)"
            )
        self.directory = directory
        self.server = f"https://{address}"
        self.certificate = directory / "apiserver.crt"
        self.key = directory / "apiserver.key"
        self.service_account_key = directory / "service-accounts.key"
        self.service_account_public_key = directory / "service-accounts.pub"
        self.tokens = directory / "tokens.csv"
        directory.mkdir()
        directory.chmod(0o700)
        self._make_certificate(address)
        _openssl(*_NEW_KEY, "-out", str(self.service_account_key))
        _openssl("pkey", "-pubout", "-in", str(self.service_account_key),
                 "-out", str(self.service_account_public_key))  # fmt: skip
        self.tokens.touch()

    def add_user(self, name: str, *groups: str) -> Path:
        """Returns the kubeconfig of a new user."""
        token = secrets.token_urlsafe(24)
        with self.tokens.open("a") as rows:
            rows.write(f'{token},{name},{name},"{",".join(groups)}"\n')
        path = self.directory / f"{name.replace(':', '-')}.kubeconfig"
        path.write_text(yaml.safe_dump(self._kubeconfig(name, token)))
        return path

    def add_kubeconfig(self, name: str, token: str, namespace: str) -> Path:
        """Of somebody the API server knows already, as a service account."""
        config = self._kubeconfig(name, token)
        config["contexts"] = [
            {
                "name": "gpuslice",
                "context": {"cluster": "gpuslice", "user": name, "namespace": namespace},
            }
        ]
        path = self.directory / f"{name.replace(':', '-')}.kubeconfig"
        path.write_text(yaml.safe_dump(config))
        return path

    def token_of(self, kubeconfig: Path) -> str:
        token: str = yaml.safe_load(kubeconfig.read_text())["users"][0]["user"]["token"]
        return token

    def _kubeconfig(self, name: str, token: str) -> dict[str, object]:
        cluster = {"server": self.server, "certificate-authority": str(self.certificate)}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "gpuslice", "cluster": cluster}],
            "users": [{"name": name, "user": {"token": token}}],
            "contexts": [{"name": "gpuslice", "context": {"cluster": "gpuslice", "user": name}}],
            "current-context": "gpuslice",
        }

    def _make_certificate(self, address: str) -> None:
        """Self-signed, so that it is the authority that clients trust as well."""
        _openssl(*_NEW_KEY, "-out", str(self.key))
        _openssl(
            "req", "-x509", "-new", "-key", str(self.key), "-out", str(self.certificate),
            "-days", "30", "-subj", "/CN=gpuslice-cluster",
            "-addext", f"subjectAltName={_NAMES},IP:{address}",
            "-addext", "keyUsage=critical,digitalSignature,keyCertSign",
        )  # fmt: skip


_NEW_KEY = ("genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256")


def _openssl(*arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"openssl {' '.join(arguments)}: {done.stderr.strip()}")
