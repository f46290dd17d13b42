from __future__ import annotations

from orchestrator.config.origin_table import origin_lines
from search_spaces.schema.validation import FILL_IN


def test_each_value_with_an_origin_has_a_row_and_one_to_fill_in_says_so():
    values = {"model.num_layers": 24, "model.vocab_size": FILL_IN, "model.gated_mlp": True, "model.norm": "rmsnorm"}
    origins = {
        "model.num_layers": "--num-layers (line 3)",
        "model.gated_mlp": "--swiglu (line 4)",
        "model.vocab_size": "the trainer's default",
    }
    assert origin_lines(values, origins) == [
        "key               value    read from",
        "model.num_layers  24       --num-layers (line 3)",
        "model.vocab_size  FILL_IN  unknown: fill it in",
        "model.gated_mlp   true     --swiglu (line 4)",
    ]


def test_a_long_origin_goes_on_below_itself():
    origin = ", ".join(f"--option-{number} (line {number})" for number in range(8))
    first, *rest = origin_lines({"key": 1}, {"key": origin})[1:]
    column = first.index("--option-0")
    assert rest
    assert all(line[:column].isspace() for line in rest)
    assert " ".join(line[column:] for line in [first, *rest]) == origin
