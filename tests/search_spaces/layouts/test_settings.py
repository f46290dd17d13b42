"""Settings: their text, the command and options that they become, and their place in layouts and tables."""

from __future__ import annotations

from dataclasses import replace

import pytest

from search_spaces.errors import InputError
from search_spaces.layouts.layout import Layout
from search_spaces.layouts.settings import Settings, as_numbers, combinations, setting_axes
from search_spaces.layouts.table import LayoutTable

SETTINGS = Settings({"NCCL_ALGO": None, "XLA_FLAGS": "--a --b=1", "OMP_NUM_THREADS": "2"}, {"cpu_bind": "cores"})
TEXT = "-env.NCCL_ALGO env.OMP_NUM_THREADS=2 'env.XLA_FLAGS=--a --b=1' launch.cpu_bind=cores"


def test_the_text_is_sorted_quoted_and_read_back_and_gives_the_ranks_their_command():
    assert SETTINGS.text == TEXT
    assert Settings.parse(TEXT) == SETTINGS
    assert Settings.parse("") == Settings()
    assert SETTINGS.prefix == ("env", "-u", "NCCL_ALGO", "OMP_NUM_THREADS=2", "XLA_FLAGS=--a --b=1")
    assert SETTINGS.srun_options == ("--cpu-bind=cores",)
    assert Settings({}, {"cpu_bind": "cores"}).prefix == ()


@pytest.mark.parametrize(
    "text",
    [
        *("env.B=1 env.A=1", "NAME=1", "launch.cpu_bind", "-launch.cpu_bind", "env.A=1  env.B=1", "'env.A=1'", "'"),
        *("'env.A B=1'", "env.=1", "env.9A=1", "-env.", "launch.uid=0", "'env.A=a\x1b[31m'", "'env.A=a\nb'"),
    ],
)
def test_any_other_text_a_name_that_is_none_and_what_a_terminal_would_act_on_are_refused(text):
    with pytest.raises(ValueError, match=r".+"):
        Settings.parse(text)
    with pytest.raises(InputError, match="settings is"):
        Layout(settings=text)


def test_a_layout_has_the_searchs_software_or_that_of_an_experiments_other_side():
    other = Layout(settings="env.A=1").with_software({"python": "/opt/b c/python"})
    assert other.settings == "env.A=1 'software.python=/opt/b c/python'"
    assert other.of_trial.software == {"python": "/opt/b c/python"}
    assert other.axis_values["software.python"] == "/opt/b c/python"
    assert other.with_software({}) == Layout(settings="env.A=1")
    with pytest.raises(ValueError, match=r"software\.torch=2"):
        Settings.parse("software.torch=2")


def test_a_layout_without_settings_has_the_key_that_it_had():
    layout = Layout(settings=TEXT)
    assert layout.key == f"{Layout().key}.{TEXT}"
    assert layout.key_parts["settings"] == TEXT
    assert "settings" not in Layout().key_parts
    assert layout.without_settings == Layout()
    assert layout.axis_values["env.NCCL_ALGO"] is None
    assert Layout.from_json(layout.to_json()) == layout


def test_every_combination_has_a_text():
    found = list(combinations({"A": ("1", None)}, {"cpu_bind": (None, "cores")}))
    assert found == ["env.A=1", "env.A=1 launch.cpu_bind=cores", "-env.A", "-env.A launch.cpu_bind=cores"]
    assert setting_axes(found) == {"env.A": ["1", "1", None, None], "launch.cpu_bind": [None, "cores", None, "cores"]}


def test_rows_of_a_table_sort_by_their_text_whatever_was_seen_before():
    first, last = (replace(Layout(), settings=text) for text in ("env.Z_FIRST=1", "env.Z_SECOND=1"))
    LayoutTable.of([last])
    table = LayoutTable.of([last, first, Layout(), last])
    assert table.distinct().layouts() == [Layout(), first, last]


def test_whole_numbers_are_compared_as_such():
    assert as_numbers(["8", "16", None]) == [8, 16, None]
    assert as_numbers(["8", "auto"]) == ["8", "auto"]
    assert as_numbers(["-1"]) == ["-1"]
