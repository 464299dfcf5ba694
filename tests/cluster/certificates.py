"""Certificates for a test, made by openssl and valid for a day."""

import dataclasses
import pathlib
import shutil
import subprocess

import grpc

KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]


def _openssl(*argv):
    subprocess.run(["openssl", *map(str, argv)], check=True, capture_output=True)


@dataclasses.dataclass
class Identity:
    """The files that one program shows and trusts."""

    cert: pathlib.Path
    key: pathlib.Path
    ca: pathlib.Path

    def flags(self):
        return [
            f"--tls_cert_file={self.cert}",
            f"--tls_key_file={self.key}",
            f"--tls_ca_file={self.ca}",
        ]

    def environment(self):
        return {
            "TESSERA_TLS_CERT_FILE": str(self.cert),
            "TESSERA_TLS_KEY_FILE": str(self.key),
            "TESSERA_TLS_CA_FILE": str(self.ca),
        }

    def credentials(self):
        return grpc.ssl_channel_credentials(
            self.ca.read_bytes(), self.key.read_bytes(), self.cert.read_bytes()
        )

    def channel(self, address):
        return grpc.secure_channel(address, self.credentials())

    def replace_with(self, other):
        """The files get another's contents, each at once."""
        for own, new in ((self.cert, other.cert), (self.key, other.key), (self.ca, other.ca)):
            staged = own.with_suffix(".new")
            shutil.copy(new, staged)
            staged.rename(own)


class Authority:
    def __init__(self, folder, name="ca"):
        self._folder = folder / name
        self._folder.mkdir()
        self.cert = self._folder / "ca.pem"
        self._key = self._folder / "ca.key"
        subject = ["-subj", f"/CN={name}", "-days", 1]
        _openssl("req", "-x509", *KEY, "-keyout", self._key, "-out", self.cert, *subject)

    def issue(self, name, *uris, days=1):
        """An identity of this machine with these URIs. days=-1: it has expired."""
        folder = self._folder / name
        folder.mkdir()
        key, request, cert = folder / "tls.key", folder / "tls.csr", folder / "tls.crt"
        names = ["IP:127.0.0.1", "DNS:localhost", *(f"URI:{uri}" for uri in uris)]
        extensions = folder / "extensions"
        extensions.write_text(f"subjectAltName={','.join(names)}\n", encoding="utf-8")
        _openssl("req", *KEY, "-keyout", key, "-out", request, "-subj", f"/CN={name}")
        by = ["-CA", self.cert, "-CAkey", self._key, "-CAcreateserial"]
        with_names = ["-extfile", extensions]
        _openssl("x509", "-req", "-in", request, *by, "-days", days, *with_names, "-out", cert)
        trusted = folder / "ca.pem"
        shutil.copy(self.cert, trusted)
        return Identity(cert, key, trusted)
