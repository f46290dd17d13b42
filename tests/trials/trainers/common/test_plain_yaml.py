from __future__ import annotations

import json
import math

import pytest
import yaml

from trials.trainers.common.plain_yaml import plain_yaml


@pytest.mark.parametrize("number", [1e-5, -3e-12, 1e22, 0.1, 5.0, 17, math.pi])
def test_every_reader_of_yaml_takes_a_number_for_a_number(number):
    text = plain_yaml({"a": number, "b": [number], "1e-05": "1e-05", 'quote"1e-5': True})
    data = yaml.safe_load(text)
    assert data == json.loads(text) == {"a": number, "b": [number], "1e-05": "1e-05", 'quote"1e-5': True}


def test_not_a_number_is_refused():
    with pytest.raises(ValueError, match="JSON compliant"):
        plain_yaml({"lr": math.nan})
