"""Certificates of an authority that a test makes, by openssl; every one carries the same name."""

import subprocess
from pathlib import Path

from segue.wire.channel import TlsConfig

NAME = "segue-worker"


def certificates(folder: Path) -> TlsConfig:
    """An authority in a new folder, and one certificate that it signed."""
    folder.mkdir()
    (folder / "names").write_text(f"subjectAltName=DNS:{NAME}\n")
    new = ("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    _openssl(
        *new, "-x509", "-days", "2", "-subj", "/CN=authority", "-keyout", "ca.key", "-out", "ca.pem", folder=folder
    )
    _openssl(*new, "-subj", f"/CN={NAME}", "-keyout", "own.key", "-out", "own.csr", folder=folder)
    signing = ("x509", "-req", "-days", "2", "-in", "own.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial")
    _openssl(*signing, "-extfile", "names", "-out", "own.pem", folder=folder)
    return TlsConfig(
        certificate=str(folder / "own.pem"),
        key=str(folder / "own.key"),
        authority=str(folder / "ca.pem"),
        server_name=NAME,
    )


def _openssl(*arguments: str, folder: Path) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)
