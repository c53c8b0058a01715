"""The connections that docs/cluster.md describes: encrypted, and closed to strangers."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import dask
import pytest
from gpudojo.model.errors import NoCluster

from tests.gpudojo.classes.cluster.machines import Machines, grade, rows

pytestmark = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="certificates are made with openssl"
)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    words = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=dojo -keyout key.pem -out "
        "cert.pem"
    )
    subprocess.run(words.split(), cwd=folder, check=True, capture_output=True)
    return folder


@pytest.mark.slow
def test_a_class_over_tls(
    slow: Path, slow_rows: dict[str, Any], known: Path, tmp_path: Path, certificate: Path
) -> None:
    names = {"ca-file": "cert.pem", "cert": "cert.pem", "key": "key.pem"}
    words = [
        word for name, file in names.items() for word in (f"--tls-{name}", str(certificate / file))
    ]
    with Machines(tmp_path, "tls") as machines:
        machines.scheduler(*words, "--protocol", "tls")
        machines.worker(*words, "--no-nanny", threads=2, recalls=known)
        with pytest.raises(NoCluster, match="cannot be connected to"):
            grade(slow, tmp_path / "out", machines.address)
        with pytest.raises(NoCluster, match="cannot be reached"):
            grade(slow, tmp_path / "out", machines.address.replace("tls", "tcp"), wait=1)
        client = {"cert": str(certificate / "cert.pem"), "key": str(certificate / "key.pem")}
        with dask.config.set(
            {
                "distributed.comm.tls.ca-file": str(certificate / "cert.pem"),
                "distributed.comm.tls.client": client,
            }
        ):
            _, _, results = grade(slow, tmp_path / "out", machines.address)
    assert rows(results) == slow_rows
