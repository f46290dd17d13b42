"""Work directories that only some launchers can use."""

from __future__ import annotations

import pytest

from orchestrator.config.loader import load_search_file
from orchestrator.lifecycle.create import validate_space
from search_spaces.errors import InputError
from tests.orchestrator.cli.parlay import write_search


@pytest.mark.bad_input(32)
@pytest.mark.parametrize("name", ["runs%j", "50%", "a\\\\b"])
def test_under_slurm_a_work_dir_that_slurm_would_read_as_a_pattern_is_refused(tmp_path, name):
    path = write_search(tmp_path)
    changes = [f'work_dir="{tmp_path}/{name}"']
    assert validate_space(load_search_file(path, changes)).layouts
    with pytest.raises(InputError) as caught:
        validate_space(load_search_file(path, [*changes, "launcher.kind=slurm"]))
    [problem] = caught.value.problems
    assert (problem.code, problem.key, problem.file) == ("work_dir", "work_dir", "--set")
    assert "Slurm" in problem.message
    assert problem.fix


def test_under_slurm_a_work_dir_may_have_blanks_and_quotes(tmp_path):
    changes = [f'work_dir="{tmp_path}/a b\'c"', "launcher.kind=slurm"]
    assert validate_space(load_search_file(write_search(tmp_path), changes)).layouts
