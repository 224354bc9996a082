"""Nothing in the repository depends on the machine it was written on, or names one."""

import re

from tests.repo.sources import texts

# Folders of somebody's machine, as absolute paths. What a system always has (/proc, /dev, /bin, /sys) may be named.
MACHINE_PATH = re.compile(r"(?<![\w.}/~-])/(?:home|root|opt|mnt|tmp|work|workspace|Users|srv|scratch)/")
URL_HOST = re.compile(r"https?://((?:[a-z0-9-]+\.)+[a-z]{2,})")
# The last one stands in every pointer file of git-lfs, which a checkpoint loader must recognise.
KNOWN_HOSTS = {"www.w3.org", "www.apache.org", "arxiv.org", "example.com", "example.org", "git-lfs.github.com"}


def test_no_file_names_a_folder_of_a_machine() -> None:
    found = [f"{path}: {match}" for path, text in texts() for match in MACHINE_PATH.findall(text) if path != _THIS]
    assert not found


def test_no_file_names_a_host_but_the_known_ones() -> None:
    hosts = {(path, host) for path, text in texts() for host in URL_HOST.findall(text)}
    assert not {(path, host) for path, host in hosts if host not in KNOWN_HOSTS}


_THIS = "tests/repo/test_portability.py"
