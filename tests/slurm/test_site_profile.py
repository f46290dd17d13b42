"""Site profiles: those that come with Parlay, and errors in a user's own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurm.site_profile import MAX_BYTES, SITES, PartitionLimits, Reference, SiteProfileError, read_site, site_names

SMALLEST = 'title = "Ours"\nsources = []\n'


def profile(folder: Path, text: str) -> Path:
    path = folder / "ours.toml"
    path.write_text(text)
    return path


def faults(folder: Path, text: str) -> list[str]:
    path = profile(folder, text)
    with pytest.raises(SiteProfileError) as caught:
        read_site(path)
    assert caught.value.file == str(path)
    assert all(problem.rule and problem.fix for problem in caught.value.problems)
    return [problem.key for problem in caught.value.problems]


def test_profiles_that_come_with_parlay_say_where_each_word_of_them_is_from():
    names = ["frontier", "juwels-booster", "leonardo", "lumi", "perlmutter", "plain"]
    assert site_names() == names
    for name in names:
        found = read_site(SITES / f"{name}.toml")
        assert (found.name, bool(found.title), "account" in found.slurm) == (name, True, False)
        assert len(found.sources) >= 2
        assert all(source.url.startswith("https://") for source in found.sources)
        assert (SITES / f"{name}.toml").read_text().startswith("# Community knowledge, verified by nobody")


def test_a_whole_profile_is_read(tmp_path):
    text = SMALLEST.replace("[]", '[{url = "https://ours", read = "2026-11-22"}]') + (
        'notes = ["ask Ada"]\n[slurm]\npartition = "gpu"\n[slurm.env]\nA = "b"\n[limits.gpu]\nmax_nodes = 4\n'
    )
    found = read_site(profile(tmp_path, text))
    assert found.sources == (Reference("https://ours", "2026-11-22"),)
    assert found.notes == ("ask Ada",)
    assert found.slurm == {"partition": "gpu", "env": {"A": "b"}}
    assert found.limits == {"gpu": PartitionLimits(max_nodes=4)}


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("sources = []\n", "title"),
        ('title = "Ours"\nsources = [{url = "https://ours", read = "last week"}]\n', "sources[0].read"),
        (SMALLEST + 'notes = "ask Ada"\n', "notes"),
        (SMALLEST + 'slurm = "gpu"\n', "slurm"),
        (SMALLEST + "[limits.gpu]\nmax_hours = 4\n", "limits.gpu.max_hours"),
        (SMALLEST + "[limits.gpu]\nmax_nodes = 0\n", "limits.gpu.max_nodes"),
        ("verified = true\n[limits.gpu]\nmax_nodes = -1\n", "verified title sources limits.gpu.max_nodes"),
    ],
)
def test_all_that_is_wrong_in_a_profile_is_named(tmp_path, text, key):
    assert faults(tmp_path, text) == key.split()


@pytest.mark.parametrize("text", ["title = Ours\n", SMALLEST + f'notes = ["{"x" * MAX_BYTES}"]\n'])
def test_what_is_no_toml_or_too_large_is_a_fault_of_the_file(tmp_path, text):
    assert faults(tmp_path, text) == [""]


def test_what_is_no_file_is_a_fault_of_its_path_and_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.toml")
    for name, words in (("none.toml", "cannot be read"), ("pipe.toml", "a profile is a file")):
        with pytest.raises(SiteProfileError, match=words) as caught:
            read_site(tmp_path / name)
        assert caught.value.file == str(tmp_path / name)


def test_jobs_beyond_what_is_known_of_their_partitions_and_qos_are_named():
    lumi = read_site(SITES / "lumi.toml")
    assert lumi.limit_warnings(("standard-g",), num_nodes=1024, minutes=60, jobs=200) == []
    assert lumi.limit_warnings(("standard-g", "nosuch"), num_nodes=1025, minutes=3000, jobs=1) == [
        "standard-g allows 1024 nodes per job, 1025 requested",
        "standard-g allows 2880 minutes per job, 3000 requested",
    ]
    assert lumi.limit_warnings(("dev-g",), num_nodes=1, minutes=5, jobs=4) == [
        "dev-g allows 1 running jobs per user, 4 requested",
        "dev-g allows 2 running and pending jobs per user, 4 requested",
    ]
