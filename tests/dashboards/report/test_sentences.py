"""Words of the report's page."""

from __future__ import annotations

import pytest

from dashboards.report.sentences import format_field


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("bucket_mib", 25, "bucket 25 MiB"),
        ("bucket_mib", None, "bucket default"),
        ("zero_stage", 1, "ZeRO 1"),
        ("overlap_comm", True, "overlap on"),
    ],
)
def test_a_field_is_named_with_its_value_and_unit(name, value, words):
    assert format_field(name, value) == words
