"""Translates security options between Kafka's Java client and librdkafka, which use different names.

Tasks read with the Java client; the driver and the tools use librdkafka. Users may write the names of either client. If
both names of a setting are given, each client gets its own.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

# Options that librdkafka rejects: translated below, or for the JVM only.
_JAVA = re.compile(
    r"sasl\.(jaas\.config|login\..*|client\.callback\.handler\.class|kerberos\.ticket\.renew\..*)"
    r"|sasl\.oauthbearer\.(clock|expected|header|jwks|scope\.claim|sub\.claim)\..*"
    r"|ssl\.(truststore\..*|keystore\.(type|key|certificate\.chain)|enabled\.protocols|protocol|provider)"
    r"|ssl\.(engine\.factory\.class|keymanager\.algorithm|trustmanager\.algorithm|secure\.random\.implementation)"
    r"|security\.providers|socket\.connection\.setup\.timeout\.max\.ms"
)
# Options that the Java client does not have.
_LIBRDKAFKA = re.compile(
    r"sasl\.(mechanisms|username|password|kerberos\.(keytab|principal))"
    r"|sasl\.oauthbearer\.(method|config|scope|extensions|grant\.type|(client|assertion|metadata)\..*)"
    r"|ssl\.(ca|certificate|curves|sigalgs)\..*|ssl\.(key\.(location|pem)|providers|engine\.(location|id))"
    r"|https\.ca\..*|enable\.ssl\..*|enable\.sasl\..*"
    r"|socket\.(timeout|blocking\.max)\.ms|socket\.(send|receive)\.buffer\.bytes|socket\.(keepalive|nagle|max)\..*"
)
_LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_STORE_TYPES = {
    **dict.fromkeys((".pem", ".crt", ".cer", ".cert"), "PEM"),
    **dict.fromkeys((".p12", ".pfx", ".pkcs12"), "PKCS12"),
}
_VALUE = r"""(?:"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|[^\s;"']+)"""
_PAIR = re.compile(rf"([\w.-]+)\s*=\s*({_VALUE})", re.DOTALL)
_ENTRY = re.compile(rf"\s*[\w.$]+\s+\w+\s*((?:[\w.-]+\s*=\s*{_VALUE}\s*)*);", re.DOTALL)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "b": "\b"}


def to_java_config(options: Mapping[str, str]) -> dict[str, str]:
    """`options` with the names of Kafka's Java client."""
    config = {name: value for name, value in options.items() if not _LIBRDKAFKA.fullmatch(name)}
    for name, hint in {
        "enable.ssl.certificate.verification": "trust the broker's certificate by ssl.ca.location=FILE instead",
        "ssl.crl.location": "leave it out: the JVM has its own settings for revoked certificates",
    }.items():
        if options.get(name, "true").lower() != "true":
            raise ConfigError(f"the Java clients of the executors have no {name}", hint=hint)
    if "security.protocol" in config:
        config["security.protocol"] = config["security.protocol"].upper()
    if config.get("ssl.endpoint.identification.algorithm") == "none":
        config["ssl.endpoint.identification.algorithm"] = ""
    _refuse_ciphers(options, openssl=False)
    return config | _java_login(options) | _java_trust(options) | _java_key(options)


def to_librdkafka_config(options: Mapping[str, str]) -> dict[str, str]:
    """`options` with the names of librdkafka."""
    config = {name: value for name, value in options.items() if not _JAVA.fullmatch(name)}
    if config.get("ssl.endpoint.identification.algorithm") == "":
        config["ssl.endpoint.identification.algorithm"] = "none"
    _refuse_ciphers(options, openssl=True)
    if _store_type(options, "ssl.keystore") != "PKCS12":
        for name in ("ssl.keystore.location", "ssl.keystore.password"):
            config.pop(name, None)
    return config | _openssl_login(options) | _openssl_trust(options) | _openssl_key(options)


def sasl_username(options: Mapping[str, str]) -> str | None:
    """The SASL user in the options, if any."""
    return options.get("sasl.username") or _login(options).get("username")


def _mechanism(options: Mapping[str, str]) -> str | None:
    return options.get("sasl.mechanism") or options.get("sasl.mechanisms")


def _java_login(options: Mapping[str, str]) -> dict[str, str]:
    mechanism = _mechanism(options)
    if mechanism is None:
        return {}
    if "sasl.jaas.config" in options:
        return {"sasl.mechanism": mechanism}
    if mechanism not in _LOGIN_MODULES:
        if mechanism == "OAUTHBEARER":
            raise ConfigError(
                "sasl.mechanism=OAUTHBEARER: the Java clients of the executors need sasl.jaas.config",
                hint="give sasl.jaas.config and sasl.login.callback.handler.class in addition to sasl.oauthbearer.…",
            )
        return {"sasl.mechanism": mechanism}
    _require_credentials(options)
    pair = (f'{name}="{_escape(options[f"sasl.{name}"])}"' for name in ("username", "password"))
    return {"sasl.mechanism": mechanism, "sasl.jaas.config": f"{_LOGIN_MODULES[mechanism]} required {' '.join(pair)};"}


def _openssl_login(options: Mapping[str, str]) -> dict[str, str]:
    mechanism = _mechanism(options)
    if mechanism in _LOGIN_MODULES:
        found = _login(options)
        login = {f"sasl.{name}": found[name] for name in ("username", "password") if name in found}
        login |= {name: options[name] for name in ("sasl.username", "sasl.password") if name in options}
        _require_credentials(login)
        return login
    if mechanism == "OAUTHBEARER" and not any(
        name in options for name in ("sasl.oauthbearer.method", "sasl.oauthbearer.config")
    ):
        raise ConfigError(
            "sasl.mechanism=OAUTHBEARER: the driver's client, librdkafka, needs settings of its own",
            hint="sasl.oauthbearer.method=oidc, with sasl.oauthbearer.client.id, .client.secret, .token.endpoint.url",
        )
    return {}


def _require_credentials(options: Mapping[str, str]) -> None:
    missing = [name for name in ("sasl.username", "sasl.password") if name not in options]
    if missing:
        raise ConfigError(
            f"sasl.mechanism needs {missing[0]}, which is not among the options",
            hint="sasl.username and sasl.password, or a sasl.jaas.config with username and password",
        )


def _login(options: Mapping[str, str]) -> dict[str, str]:
    """Parse the options in a JAAS configuration. Never show them: they include the password."""
    text = options.get("sasl.jaas.config")
    if text is None:
        return {}
    entry = _ENTRY.match(text)
    if entry is None:
        raise ConfigError(
            "sasl.jaas.config does not parse: expected a module, a flag, pairs and a semicolon at the end",
            hint="sasl.username and sasl.password are shorter",
        )
    return {name: _unescape(value) for name, value in _PAIR.findall(entry[1])}


def _escape(text: str) -> str:
    for character, escape in {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}.items():
        text = text.replace(character, escape)
    return text


def _unescape(value: str) -> str:
    if value[0] not in "\"'":
        return value
    return re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[1]), value[1:-1], flags=re.DOTALL)


def _store_type(options: Mapping[str, str], store: str) -> str:
    """PEM, PKCS12 or JKS; JKS is Java's default."""
    if f"{store}.type" in options:
        return options[f"{store}.type"].upper()
    if f"{store}.key" in options or f"{store}.certificates" in options:
        return "PEM"
    return _STORE_TYPES.get(Path(options.get(f"{store}.location", "")).suffix.lower(), "JKS")


def _java_trust(options: Mapping[str, str]) -> dict[str, str]:
    if "ssl.truststore.location" in options or "ssl.truststore.certificates" in options:
        return {"ssl.truststore.type": _store_type(options, "ssl.truststore")}
    if "ssl.ca.pem" in options:
        return {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": options["ssl.ca.pem"]}
    file = options.get("ssl.ca.location", "probe")
    if file == "probe":
        return {}
    if Path(file).is_dir():
        raise ConfigError(
            f"ssl.ca.location={file} is a directory: expected a file, for Java", hint=f"cat {file}/*.pem > ca.pem"
        )
    return {"ssl.truststore.type": "PEM", "ssl.truststore.location": file}


def _openssl_trust(options: Mapping[str, str]) -> dict[str, str]:
    if "ssl.ca.location" in options or "ssl.ca.pem" in options:
        return {}
    if "ssl.truststore.certificates" in options:
        return {"ssl.ca.pem": options["ssl.truststore.certificates"]}
    file = options.get("ssl.truststore.location")
    if file is None:
        return {}
    if (store_type := _store_type(options, "ssl.truststore")) != "PEM":
        raise ConfigError(
            f"ssl.truststore.location={file} has the type {store_type}: expected PEM, for the driver's client",
            hint=f"keytool -exportcert -rfc -keystore {file} -alias NAME -file ca.pem, then ssl.ca.location=ca.pem"
            " in its file",
        )
    return {"ssl.ca.location": file}


def _java_key(options: Mapping[str, str]) -> dict[str, str]:
    if "ssl.keystore.location" in options or "ssl.keystore.key" in options:
        return {"ssl.keystore.type": _store_type(options, "ssl.keystore")}
    if "ssl.key.pem" in options and "ssl.certificate.pem" in options:
        chain, key = options["ssl.certificate.pem"], options["ssl.key.pem"]
        return {"ssl.keystore.type": "PEM", "ssl.keystore.certificate.chain": chain, "ssl.keystore.key": key}
    certificate, key = options.get("ssl.certificate.location", ""), options.get("ssl.key.location", "")
    if certificate != key:
        raise ConfigError(
            "the Java clients of the executors expect key and certificate in one file",
            hint=f"cat {key or 'key.pem'} {certificate or 'certificate.pem'} > client.pem,"
            " then ssl.keystore.location=client.pem in the file of both",
        )
    return {"ssl.keystore.type": "PEM", "ssl.keystore.location": key} if key else {}


def _openssl_key(options: Mapping[str, str]) -> dict[str, str]:
    if any(f"ssl.{part}" in options for part in ("key.location", "key.pem", "certificate.location", "certificate.pem")):
        return {}
    if "ssl.keystore.key" in options:
        chain = options.get("ssl.keystore.certificate.chain", "")
        return {"ssl.key.pem": options["ssl.keystore.key"], "ssl.certificate.pem": chain}
    file = options.get("ssl.keystore.location")
    store_type = _store_type(options, "ssl.keystore")
    if file is None or store_type == "PKCS12":
        return {}
    if store_type != "PEM":
        raise ConfigError(
            f"ssl.keystore.location={file} has the type {store_type}: expected PKCS12 or PEM, for the driver's client",
            hint=f"keytool -importkeystore -srckeystore {file} -destkeystore client.p12 -deststoretype PKCS12,"
            " then ssl.keystore.location=client.p12; ssl.keystore.type=… if the file name has another suffix",
        )
    return {"ssl.key.location": file, "ssl.certificate.location": file}


def _refuse_ciphers(options: Mapping[str, str], *, openssl: bool) -> None:
    """ConfigError for ciphers of the other client: librdkafka uses OpenSSL's names, Java TLS_AES_128_GCM_SHA256 etc."""
    suites = options.get("ssl.cipher.suites")
    if suites is not None and suites.lstrip().startswith("TLS_") == openssl:
        expected = "OpenSSL, which the driver's client uses" if openssl else "Java, which the executors use"
        raise ConfigError(f"ssl.cipher.suites: expected names of {expected}", hint="restrict them at the broker")
