"""Print the pip configuration of this host as one pip.conf for the build stage.

Files and environment variables are merged in the order of pip. Paths of this host do not exist in the container: the
certificate path becomes the container's bundle, and local folders and client certificates are removed. AIRGAP_WHEELS
copies a local folder of wheels.
"""

from __future__ import annotations

import configparser
import os
import sys
from pathlib import Path

BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
URL_KEYS = ("index-url", "extra-index-url", "find-links")


def main() -> None:
    config = merge_config(os.environ, config_files(os.environ))
    for section in config.sections():
        for key in URL_KEYS:
            if key in config[section]:
                remove_local_paths(config[section], key)
        for key in ("client-cert", "cert", "cache-dir", "log", "constraint", "requirement"):
            config[section].pop(key, None)
    config["global"]["cert"] = BUNDLE
    config["global"]["find-links"] = " ".join([*config["global"].get("find-links", "").split(), "/wheels"])
    config.write(sys.stdout)


def config_files(env: os._Environ[str]) -> list[Path]:
    """Return the configuration files of pip. Later files override earlier ones."""
    home = Path.home()
    config_home = Path(env.get("XDG_CONFIG_HOME", home / ".config"))
    named = [Path(env["PIP_CONFIG_FILE"])] if env.get("PIP_CONFIG_FILE") else []
    return [
        Path("/etc/xdg/pip/pip.conf"),
        Path("/etc/pip.conf"),
        home / ".pip/pip.conf",
        config_home / "pip/pip.conf",
        *named,
    ]


def merge_config(env: os._Environ[str], paths: list[Path]) -> configparser.RawConfigParser:
    config = configparser.RawConfigParser()
    config.read(paths)
    if not config.has_section("global"):
        config.add_section("global")
    for name, value in env.items():
        if name.startswith("PIP_") and name not in ("PIP_CONFIG_FILE", "PIP_VERSION"):
            config["global"][name[4:].lower().replace("_", "-")] = value
    return config


def remove_local_paths(section: configparser.SectionProxy, key: str) -> None:
    """Remove the entries of `key` that are paths of this host."""
    remote = [entry for entry in section[key].split() if "://" in entry and not entry.startswith("file:")]
    if remote:
        section[key] = "\n".join(remote)
    else:
        del section[key]


main()
