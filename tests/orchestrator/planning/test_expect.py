"""Expected speeds: verdicts, causes, published neighbours, and what names a training."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from orchestrator.cli.expect_source import speed_in_log, training_named
from orchestrator.cli.main import main
from orchestrator.planning.expect import SpeedVerdict, answer_of
from orchestrator.planning.expected_rate import Expected, Training, Z
from search_spaces.errors import InputError
from search_spaces.hardware.cluster import ACCELERATORS, Cluster
from search_spaces.layouts.layout import Layout
from search_spaces.tables.published import TABLE, read_published
from tests.kit import gpt

PUBLISHED = next(
    row for row in read_published() if row.model_name == "LLAMA3_70B" and row.cluster.accelerator.name == "h100-80gb"
)
TRAINING = Training(PUBLISHED.model, PUBLISHED.cluster, PUBLISHED.layout)
USUAL = Expected.of(TRAINING).interval[1]
SMALL = Training(gpt(24, 1024, 16), Cluster(ACCELERATORS["h100-80gb"], 8, 1), Layout(data_parallel=8).canonical())


def asked(training: Training, measured: float | None, text: str = ""):
    return answer_of(training, measured, text, None, [])


class TestVerdict:
    def test_a_published_speed_is_normal_and_its_row_the_nearest(self):
        found = asked(TRAINING, PUBLISHED.tokens_per_sec_per_gpu * TRAINING.layout.num_gpus)
        assert (found.verdict, found.causes, found.slow_by) == (SpeedVerdict.NORMAL, [], None)
        assert found.nearest[0].model == "LLAMA3_70B"
        assert found.nearest[0].differs == []

    def test_the_interval_holds_95_percent_around_the_median(self):
        found = asked(TRAINING, None)
        assert found.low * found.high == pytest.approx(found.median**2)
        sd = Expected.of(TRAINING).log_sd
        assert math.log(found.high / found.median) == pytest.approx(Z * sd)
        assert found.verdict is SpeedVerdict.UNKNOWN

    def test_a_slow_one_is_slow_by_the_ends_of_the_interval(self):
        found = asked(TRAINING, USUAL / 4)
        assert found.verdict is SpeedVerdict.SLOW
        assert found.slow_by == pytest.approx([4 * found.low / USUAL, 4 * found.high / USUAL])

    def test_of_a_machine_without_a_data_sheet_too_little_is_known(self):
        unknown = replace(SMALL, cluster=Cluster(ACCELERATORS["cpu"], 8, 1))
        assert asked(unknown, 100.0).verdict is SpeedVerdict.UNKNOWN

    @pytest.mark.parametrize("measured", [0.0, -1.0, 1e9, math.nan, math.inf])
    def test_a_speed_that_cannot_be_is_refused(self, measured):
        with pytest.raises(InputError) as caught:
            asked(TRAINING, measured)
        assert caught.value.problems[0].key == "--tokens-per-sec"

    def test_fp32_may_be_as_fast_as_tf32(self):
        in_fp32 = replace(SMALL, layout=replace(SMALL.layout, precision="fp32").canonical())
        of_peak = 8 * 67e12 / 1e12 / in_fp32.tflops_per_token
        assert asked(in_fp32, of_peak * 1.2).verdict is not None

    def test_a_benchmark_that_releases_repeat_is_told_once(self):
        rows = asked(TRAINING, None).nearest
        assert len({(row.source.split("@")[0], row.model) for row in rows}) == len(rows) == 3


class TestCauses:
    def names(self, training: Training, measured: float, text: str = "") -> list[str]:
        return [cause.cause for cause in asked(training, measured, text).causes]

    def test_a_training_in_16_bits_is_found_where_8_are_asked(self):
        in_16 = replace(TRAINING, layout=replace(TRAINING.layout, matmul_precision="same", quantized_weights=False))
        found = asked(TRAINING, Expected.of(in_16).interval[1] * 0.97)
        assert found.causes[0].cause == "low precision is not active"
        assert found.causes[0].explains

    def test_a_slow_part_is_told_with_its_factor(self):
        slow = Expected.of(
            TRAINING, dict.fromkeys(("collectives", "pipeline", "data_parallel", "sharded", "dispatch"), 6)
        )
        (cause,) = [c for c in asked(TRAINING, slow.interval[1]).causes if c.cause == "a slow network"]
        assert cause.explains
        assert cause.factor == pytest.approx(6, rel=0.01)

    def test_nothing_is_told_without_evidence(self):
        alone = replace(SMALL, layout=Layout(attention_kernel="math").canonical())
        causes = self.names(alone, Expected.of(alone).interval[1] / 10)
        assert causes == [] or causes == ["host-bound launches"]

    @pytest.mark.parametrize(
        ("text", "cause"),
        [
            ("export NCCL_IB_DISABLE=1", "a variable that slows links"),
            ("NCCL_IB_DISABLE set by environment to 1.", "a variable that slows links"),
            ('{"NCCL_NET": "Socket"}', "a variable that slows links"),
            ('os.environ["CUDA_LAUNCH_BLOCKING"] = "1"', "a variable that slows the host"),
            ("--recompute-granularity selective", "recomputation that the layout does not have"),
            ("gradient_checkpointing: true", "recomputation that the layout does not have"),
            ("straggler report", "one slow node"),
        ],
    )
    def test_the_source_and_the_log_are_evidence(self, text, cause):
        assert cause not in self.names(TRAINING, USUAL / 3)
        assert self.names(TRAINING, USUAL / 3, text)[0] == cause

    @pytest.mark.parametrize(
        "text",
        [
            "# export NCCL_IB_DISABLE=1",
            "NCCL_IB_DISABLE=0",
            "gradient_checkpointing: false",
            "done with setup (min, max) time across ranks (ms):",
        ],
    )
    def test_what_says_nothing_or_the_opposite_is_no_evidence(self, text):
        assert self.names(TRAINING, USUAL / 3, text) == self.names(TRAINING, USUAL / 3)


MEGATRON_STEP = (
    " [2026-01-01 00:00:00] iteration {n:8}/ 100 | consumed samples: {n}0 | elapsed time per iteration (ms): {ms} |"
    " throughput per GPU (TFLOP/s/GPU): 700.0 | learning rate: 1.0E-05 | global batch size: {batch} | lm loss: 1.0 |\n"
)

SCRIPT = (
    "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 24 --hidden-size 1024 --num-attention-heads 16"
    " --seq-length 2048 --max-position-embeddings 2048 --micro-batch-size 4 --global-batch-size 64 --bf16"
)


class TestSources:
    def test_a_log_gives_the_median_of_its_last_half(self, tmp_path):
        log, batch = tmp_path / "log", TRAINING.layout.global_batch_size
        times = [90000, 60000, 20000, 21000, 22000]
        log.write_text("".join(MEGATRON_STEP.format(n=n, ms=ms, batch=batch) for n, ms in enumerate(times, start=1)))
        found = speed_in_log(log, TRAINING)
        assert found.tokens_per_sec == TRAINING.tokens_per_step / 21
        assert (found.steps, found.printed_tflops) == (5, 700)

    @pytest.mark.parametrize(
        "text",
        [
            "nothing\n",
            MEGATRON_STEP.format(n=1, ms=1000, batch=7),
            MEGATRON_STEP.format(n=1, ms=0, batch=256),
            MEGATRON_STEP.format(n=1, ms="nan", batch=256),
        ],
    )
    def test_a_log_without_steps_or_of_another_batch_is_refused(self, tmp_path, text):
        (tmp_path / "log").write_text(text)
        with pytest.raises(InputError) as caught:
            speed_in_log(tmp_path / "log", TRAINING)
        assert caught.value.problems[0].key == "--log"

    def test_a_ready_made_search_is_its_baseline_with_what_would_be_tried(self):
        named = training_named("llama3-70b-h100", [])
        assert named.training.layout.pipeline_parallel == 8
        found = named.try_next()
        assert found is not None
        assert found.gain > 1

    def test_what_is_missing_is_asked_for_by_its_key(self, tmp_path):
        script = tmp_path / "train.sh"
        script.write_text(SCRIPT)
        with pytest.raises(InputError) as caught:
            training_named(str(script), [])
        assert [problem.key for problem in caught.value.problems] == ["cluster.accelerator"]

    def test_another_number_of_ranks_than_the_script_starts_is_told(self, tmp_path):
        script = tmp_path / "train.sh"
        script.write_text(SCRIPT)
        here, larger = (training_named(str(script), [f"cluster={name}"]) for name in ("dgx-h100", "selene"))
        assert [note for note in here.notes if "8 ranks" in note] == []
        assert [note for note in larger.notes if "8 ranks" in note] != []
        assert larger.try_next() is None  # no other layout divides its batch


def test_the_verb_prints_the_answer_and_ends_by_the_verdict(capsys):
    expected = Expected.of(training_named("llama3-70b-h100", []).training).interval[1]
    for factor, code in ((1.0, 0), (0.25, 10)):
        assert main(["expect", "llama3-70b-h100", "--tokens-per-sec", str(expected * factor), "--json"]) == code
        answer = json.loads(capsys.readouterr().out)
        assert answer["schema"] == "parlay.expect/1"
        assert answer["verdict"] == ("normal" if code == 0 else "slow")


def test_a_key_beside_a_named_cluster_is_refused_and_not_dropped(tmp_path, capsys):
    (tmp_path / "train.sh").write_text(SCRIPT)
    sets = ["--cluster", "dgx-h100", "--set", "cluster.num_nodes=2", "--json"]
    assert main(["expect", str(tmp_path / "train.sh"), *sets]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["key"] == "cluster.num_nodes"


def test_the_table_is_small_and_each_row_has_its_source():
    assert TABLE.stat().st_size < 1_000_000
    for row in read_published():
        assert row.source.count("@") == 1
        assert row.date.startswith("202")
