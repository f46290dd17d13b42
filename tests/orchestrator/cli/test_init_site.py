"""parlay init --site: a search file for jobs at a site."""

from __future__ import annotations

from orchestrator.cli.main import run


def test_a_site_nobody_knows_or_a_bad_profile_is_refused_and_no_file_is_written(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.toml").write_text('title = "Ours"\nsources = []\n[slurm]\npartion = "gpu"\n')
    assert run(["init", "--site", "lumi", "-o", "good.yaml"]) == 0
    assert "site: lumi" in (tmp_path / "good.yaml").read_text()
    for site, words in (("lummi", "--site: is 'lummi'"), ("bad.toml", "bad.toml: slurm.partion")):
        assert run(["init", "--site", site, "-o", "none.yaml"]) == 2
        assert words in capsys.readouterr().err
    assert not (tmp_path / "none.yaml").exists()
