"""Debian packages: named by the missing programs, installed without starting services."""

from __future__ import annotations

import pytest

from slurm.sandbox.apt_packages import InstallFailed, install_packages, missing_packages

APT_GET = """\
#!/bin/sh
echo "$@" >> {folder}/asked
sh {folder}/policy
echo "policy $?" >> {folder}/asked
[ "$1" = update ] && exit 100
echo "E: {words}" >&2
exit {code}
"""


@pytest.fixture
def apt_get(tmp_path, monkeypatch):
    """Put an apt-get on the PATH that records its arguments, and whether services may start then."""

    def put(code: int = 0, words: str = "") -> None:
        program = tmp_path / "bin" / "apt-get"
        program.parent.mkdir()
        program.write_text(APT_GET.format(folder=tmp_path, code=code, words=words))
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")

    return put


def test_missing_programs_are_named_by_package_and_no_service_starts_while_they_are_installed(apt_get, tmp_path):
    apt_get()
    install_packages(["munge", "slurmd"], tmp_path / "policy")
    update, policy, install, policy_again = (tmp_path / "asked").read_text().splitlines()
    assert (update, policy, policy_again) == ("update -qq", "policy 101", "policy 101")
    assert install == "install --yes -qq --no-install-recommends munge slurmd"
    assert not (tmp_path / "policy").exists()
    assert missing_packages(False, path="/nonexistent") == ("munge", "slurmctld", "slurmd", "slurm-client")
    assert missing_packages(True, path="/nonexistent")[4:] == ("slurmdbd", "mariadb-server-core")


def test_a_refusal_is_in_apt_gets_words(apt_get, tmp_path):
    apt_get(code=100, words="Unable to locate package slurmd")
    with pytest.raises(InstallFailed, match="could not install slurmd: E: Unable to locate package slurmd"):
        install_packages(["slurmd"], tmp_path / "policy")
    assert not (tmp_path / "policy").exists()
