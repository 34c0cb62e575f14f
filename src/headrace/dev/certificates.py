"""Creates a key and a certificate for a dev server with Java's keytool."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from headrace.errors import ConfigError
from headrace.jars import java
from headrace.support.paths import private_directory

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Certificate:
    """A self-signed certificate: clients and servers that trust `authority` accept it."""

    directory: Path
    password: str
    subject: ClassVar[str] = "CN=headrace"

    @property
    def keystore(self) -> Path:
        """The key and the certificate, as PKCS #12."""
        return self.directory / "keystore.p12"

    @property
    def authority(self) -> Path:
        """The certificate alone, as PEM."""
        return self.directory / "ca.pem"

    def make(self) -> None:
        """Create it, unless it exists."""
        if self.authority.exists():
            return
        private_directory(self.directory)
        self.keystore.unlink(missing_ok=True)
        names = "san=ip:127.0.0.1,dns:localhost"
        key_pair = ("-genkeypair", "-keyalg", "EC", "-groupname", "secp256r1", "-validity", "3650")
        self._keytool(*key_pair, "-dname", self.subject, "-ext", names, "-storetype", "PKCS12")
        self._keytool("-exportcert", "-rfc", "-file", str(self.authority))

    def _keytool(self, *arguments: str) -> None:
        tool = java.path().with_name("keytool")
        command = [str(tool), *arguments, "-alias", "headrace", "-keystore", str(self.keystore)]
        # In the environment: all users of the machine can read a command line.
        environment = {**os.environ, "HEADRACE_STORE_PASSWORD": self.password}
        command += ["-storepass:env", "HEADRACE_STORE_PASSWORD"]
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        except OSError as error:
            raise ConfigError(f"{tool} does not run: {error}", hint=java.INSTALL) from error
        if done.returncode != 0:
            raise ConfigError(f"cannot create a certificate: {(done.stderr or done.stdout).strip()}")
