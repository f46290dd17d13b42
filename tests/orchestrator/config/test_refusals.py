"""Refusals of a search file: what is changed in a valid one, and the key that is named with a rule or a fix.

Values of `launcher.slurm` are in tests/slurm/test_option_checks.py, the syntax of a file in
tests/search_spaces/schema/test_yaml_document.py.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.diagnostics.doctor.finding import Area, Severity
from orchestrator.diagnostics.doctor.run import check_search, findings_with_timeout
from orchestrator.diagnostics.preflight.search import validate_space
from orchestrator.planning.candidates import candidates_of
from search_spaces import search_space
from search_spaces.errors import InputError, Problem
from tests.kit import MINIMAL, loaded, refusal, refusals

LINES = MINIMAL.count("\n")
CPUS = "cluster={accelerator: cpu, gpus_per_node: 4, num_nodes: 1}"
A100S = "cluster={accelerator: a100-40gb, gpus_per_node: 4, num_nodes: 1}"
MODEL = "num_layers: 2, hidden_size: 32, num_attention_heads: 4, vocab_size: 8, seq_length: 8"
EXPERTS = f"model={{{MODEL}, num_experts: 8, experts_per_token: 2}}"
WORDS = "--tp {tensor_parallel} --ga {grad_accum_steps}"
PATTERNS = "{step_time_s: 'took (.+) s'}"
COMMAND = f"trainer={{kind: command, template: 'train {WORDS}', patterns: {PATTERNS}}}"
SLURM = "launcher.kind=slurm"
MEGATRON = "trainer={kind: megatron-lm, script: pretrain_gpt.py}"

FILES = [
    # lines after those of a valid file, key
    ("serch: {}", "serch"),
    ("search: {max_trails: 3}", "search.max_trails"),
    ("baseline: {tensor_paralel: 2}", "baseline.tensor_paralel"),
    ("  data_parallel: 2", "space.data_parallel"),
    ("tracking: {enabled: yes}", "tracking.enabled"),
    ("search: {seed: 08}", "search.seed"),
    ("trainer: {python: 3.11}", "trainer.python"),
    ("constraints:", "constraints"),
    ("  candidates: table.csv", "space.tensor_parallel"),
    ("  micro_batch_size: [1, 2, 1]", "space.micro_batch_size"),
    ("objective: []", "objective"),
    ("objective: [tokens_per_sec, tokens_per_sec]", "objective"),
    ("objective: [tokens_per_sec, speed]", "objective[1]"),
    ("objective: [tokens_per_sec, joules_per_token]", "objective"),
    ("baseline: {tensor_parallel: 3}", "baseline"),
    ("baseline: {micro_batch_size: 5}", "baseline"),
    ("baseline: {pipeline_parallel: 2, pipeline_schedule: interleaved_1f1b}", "baseline.pipeline_schedule"),
    ("  pipeline_schedule: [1f1b, interleaved_1f1b]", "space.pipeline_schedule"),
    ("  pipeline_schedule: zbv", "space.pipeline_schedule"),
    ("  recompute_modules: ops", "space.recompute_modules"),
    ("  recompute_layers: 2", "space.recompute_layers"),
    ("measure: {max_steps: 10, max_warmup_steps: 10}", "measure.max_warmup_steps"),
    ("measure: {max_steps: 6, min_steps: 7}", "measure.min_steps"),
    ("measure: {min_steps: 4}", "measure.min_steps"),
    ("measure: {ci_relative_width: 0}", "measure.ci_relative_width"),
    ("measure: {warm_start: maybe}", "measure.warm_start"),
    ("measure: {routing: balanced}", "measure.routing"),
    ("constraints: {min_free_memory_gib: 1}", "constraints.min_free_memory_gib"),
    ("launcher: {kind: simulated}", "launcher.table"),
    ("launcher: {kind: local, address: 'h:1'}", "launcher.address"),
    ("launcher: {kind: ray, table: t.csv}", "launcher.table"),
    ("launcher: {kind: pbs}", "launcher.kind"),
    ("launcher: {kind: slurm, slurm: {time: 1}}", "launcher.slurm.time"),
    ("launcher: {kind: slurm, slurm: {exclusive: mine}}", "launcher.slurm.exclusive"),
    ('launcher: {kind: slurm, slurm: {qos: "a\\nb"}}', "launcher.slurm.qos"),
    ('launcher: {kind: slurm, slurm: {env: {A: "a\\0b"}}}', "launcher.slurm.env.A"),
    ("trainer: {kind: megatron-lm}", "trainer.script"),
    ("trainer: {kind: nanotron, script: a.py, template: {}}", "trainer.template"),
    ("trainer: {kind: megatron}", "trainer.kind"),
    ("trainer: {script: a.py}", "trainer.script"),
    ("trainer: {kind: megatron-lm, script: a.py, data: {kind: tokens, path: x}}", "trainer.data"),
    (
        "trainer: {kind: megatron-lm, script: a.py, arguments: [--lr, '1', --micro-batch-size=4]}",
        "trainer.arguments[2]",
    ),
    ("trainer: {kind: megatron-deepspeed, script: a.py, arguments: [--save, /c]}", "trainer.arguments[0]"),
    (
        "trainer: {kind: gpt-neox, script: a, template: {a: 1}, arguments: [--megatron_config, b]}",
        "trainer.arguments[0]",
    ),
    ("trainer: {kind: nanotron, script: a.py, template: {a: 1}, arguments: [--config-file=b]}", "trainer.arguments[0]"),
    ("trainer: {kind: megatron-lm, script: a.py, log_rank: -1}", "trainer.log_rank"),
    ("trainer: {kind: megatron-lm, script: a.py, log_rank: 4}", "trainer.log_rank"),
    ("trainer: {kind: command, template: t, patterns: megatron}", "trainer.patterns"),
    ("trainer: {kind: command, template: t, patterns: {step_time_s: '(a'}}", "trainer.patterns.step_time_s"),
    ("trainer: {kind: command, template: t, patterns: {loss: '(a)'}}", "trainer.patterns"),
    ("trainer: {kind: command, template: 't {tensor}', patterns: deepspeed}", "trainer.template"),
    ("trainer: {kind: command, template: 3, patterns: deepspeed}", "trainer.template"),
    ("trainer: {data: {kind: tokens}}", "trainer.data.path"),
    ("trainer: {data: {kind: tokens, path: a, checksum: abc}}", "trainer.data.checksum"),
]


@pytest.mark.bad_input(1, 6, 7, 10, 16, 17, 19, 23, 26, 29, 30, 39, 40, 50)
@pytest.mark.parametrize(("lines", "key"), FILES)
def test_a_line_of_a_file_is_refused_where_it_stands(tmp_path: Path, lines: str, key: str):
    problem = refusal(tmp_path, f"{MINIMAL}{lines}\n")
    assert (problem.key, problem.file) == (key, str(tmp_path / "search.yaml"))
    assert problem.line == (LINES if key == "space.tensor_parallel" else LINES + 1)
    assert problem.rule or problem.fix


@pytest.mark.parametrize(
    ("change", "fix"),
    [
        ("trainer={lora_rank: 8}", "did you mean adapters.rank?"),
        (f"model={{{MODEL}, lora_rank: 8}}", "did you mean adapters.rank?"),
        ("space.adapters={rank: 8}", "did you mean adapters?"),
    ],
)
def test_a_key_of_adapters_elsewhere_or_by_a_librarys_name_leads_to_theirs(tmp_path: Path, change: str, fix: str):
    assert refusal(tmp_path, MINIMAL, change).fix == fix


CHANGES = [
    # changes of a valid file, key
    (["schema=parlay.search/2"], "schema"),
    (["model=gpt2-tinny"], "model"),
    (["search.sampler=deephiper"], "search.sampler"),
    *(([f"name={json.dumps(name)}"], "name") for name in ("..", "-a", "A", "a_b", "a b", "a" * 42, "", "x$(id)")),
    (['name="x\\n"'], "name"),
    *(
        ([f"launcher.address='{it}'"], "launcher.address")
        for it in ("h:0", "h:65536", "-h:1", "h", "", "h:1 ", "http://h:1")
    ),
    (["global_batch_size=null"], "global_batch_size"),
    (["search.seed=true"], "search.seed"),
    (["measure.time_limit=false"], "measure.time_limit"),
    (["space.tensor_parallel=[null]"], "space.tensor_parallel[0]"),
    *(([f"measure.time_limit={text}"], "measure.time_limit") for text in ("soon", "0", "-5")),
    *(([SLURM, f"launcher.slurm.poll_interval={text}"], "launcher.slurm.poll_interval") for text in ("0", "-1s")),
    (['tracking.mlflow_uri=""'], "tracking.mlflow_uri"),
    (["ledger.url=mysql://db/l"], "ledger.url"),
    *(
        ([f"tracking.mlflow_uri='{uri}'"], "tracking.mlflow_uri")
        for uri in ("file:///tmp/mlruns", "htttp://127.0.0.1:5000", "http://")
    ),
    (["work_dir=~nobody-here/x"], "work_dir"),
    ([CPUS, "cluster.num_gpus=3"], "cluster.num_gpus"),
    ([CPUS, "cluster.gpus_per_node=100000", "cluster.num_nodes=11"], "cluster.num_nodes"),
    ([f"model={{{MODEL}}}", "model.num_layers=10001"], "model.num_layers"),
    (["constraints.min_free_memory_gib=8", "measure.memory_limit_gib=8"], "constraints.min_free_memory_gib"),
    ([A100S, "constraints.min_free_memory_gib=38"], "constraints.min_free_memory_gib"),
    (["constraints.min_free_memory_gib=1", MEGATRON], "constraints.min_free_memory_gib"),
    ([MEGATRON, "measure.memory_limit_gib=1"], "measure.memory_limit_gib"),
    ([MEGATRON, "space.engine=[megatron-lm, torch]"], "space.engine"),
    (["space.engine=nanotron"], "space.engine"),
    *(
        (
            [f"trainer={{kind: accelerate, script: a, arguments: ['{word}'], patterns: {PATTERNS}}}"],
            "trainer.arguments[0]",
        )
        for word in ("{micro_batch}", "--mixed_precision")
    ),
    ([A100S, "constraints.min_free_memory_gib=4", COMMAND], "constraints.min_free_memory_gib"),
    (["space.engine=[torch, megatron-core]"], "space.engine"),
    (["space.engine=megatron-core", "baseline={engine: torch}"], "baseline.engine"),
    (["objective=[tokens_per_sec, joules_per_token]", A100S, MEGATRON], "objective"),
    (["search.against=b", "launcher={kind: simulated, table: t.csv}"], "search.against"),
    (["search.against=/opt/b/bin/python", "search.parallel_trials=2"], "search.against"),
    (["search.against=b", "launcher={kind: slurm, slurm: {container: [shifter, --]}}"], "search.against"),
    (["search.against_layouts=4"], "search.against_layouts"),
    (["measure.warm_start=true", "launcher.kind=slurm"], "measure.warm_start"),
    ([EXPERTS, "measure.routing=even"], "measure.routing"),
    ([EXPERTS, "measure.routing=skewed(5)"], "measure.routing"),
    ([EXPERTS, COMMAND, "measure.routing=skewed(2)"], "measure.routing"),
    ([SLURM, "space.launch={hint: nomultithread, cpu_bind: cores}"], "space.launch.hint"),
    (["space.env={RANK: [0, 1]}"], "space.env.RANK"),
    ([A100S, "space.env={CUDA_DEVICE_MAX_CONNECTIONS: 1}"], "space.env.CUDA_DEVICE_MAX_CONNECTIONS"),
    (["space.env={NCCL_ALGO: [null, Ring]}"], "space.env.NCCL_ALGO"),
    (["baseline={env: {PYTORCH_CUDA_ALLOC_CONF: a}}"], "baseline.env.PYTORCH_CUDA_ALLOC_CONF"),
    ([SLURM, "launcher.slurm.env={FI_PROVIDER: cxi}", "space.env={FI_PROVIDER: [cxi, tcp]}"], "space.env.FI_PROVIDER"),
    (["space.launch={cpu_bind: [none, sockets]}"], "space.launch.cpu_bind"),
    (["search.parallel_trials=2", "space.launch={cpu_bind: cores}"], "space.launch.cpu_bind"),
    (["space.launch={cpu_bind: core}"], "space.launch.cpu_bind"),
    (["space.launch={cpu: cores}"], "space.launch"),
    (["space.env={9X: 1}"], "space.env"),
    (["space.env={X: true}"], "space.env.X"),
    (
        [A100S, MEGATRON, "space.options={--tensor-model-parallel-size: 2}"],
        "space.options.--tensor-model-parallel-size",
    ),
    ([A100S, MEGATRON, "space.options={model.x: 2}"], "space.options.model.x"),
    ([A100S, MEGATRON, "space.options={--x: [true, false]}"], "space.options.--x"),
    ([A100S, MEGATRON, "baseline={options: {-x: 1}}"], "baseline.options"),
    ([A100S, MEGATRON.replace("}", ", arguments: [--x=1]}"), "space.options={--x: 2}"], "space.options.--x"),
    ([A100S, COMMAND, "space.options={--x: 2}"], "space.options.--x"),
    ([A100S, "space.options={--x: 2}"], "space.options.--x"),
    *(
        ([f"launcher={{kind: slurm, slurm: {{container: {container}}}}}"], f"launcher.slurm.container{key}")
        for container, key in {
            "{image: x}": ".runtime",
            "{runtime: pyxis}": ".image",
            "{runtime: pyxis, image: x, mount: ['/a:/b']}": ".mount",
            "{runtime: pyxis, image: x, mounts: ['/a:/b,/etc:/etc']}": ".mounts[0]",
            "{runtime: apptainer, image: x, gpus: cuda}": ".gpus",
            "[1]": ".command",
        }.items()
    ),
]


@pytest.mark.bad_input(8, 20, 21, 26, 30, 31, 34, 35, 40, 48, 49, 52, 53)
@pytest.mark.parametrize(("changes", "key"), CHANGES, ids=lambda value: str(value)[:60])
def test_a_change_is_refused_with_key_rule_and_fix(tmp_path: Path, changes: list[str], key: str):
    problem = next(problem for problem in refusals(tmp_path, MINIMAL, *changes) if problem.key == key)
    assert problem.file in ("--set", None)
    assert problem.rule or problem.fix


COUNTS = (
    *("global_batch_size", "space.tensor_parallel", "space.micro_batch_size", "cluster.gpus_per_node"),
    *("search.max_trials", "search.parallel_trials", "search.finalist_repeats"),
)
NO_COUNTS = {"0": 0, "-1": -1, "2.0": 2.0, "true": True, "'2'": "2", "1_000": "1_000", "1e12": 1e12, ".nan": None}
"""Values and how they are read, None where it equals nothing."""


@pytest.mark.bad_input(12, 13, 18)
@pytest.mark.parametrize("key", COUNTS)
def test_a_count_is_a_whole_number_in_its_bounds(tmp_path: Path, key: str):
    for text, value in NO_COUNTS.items():
        problem = refusal(tmp_path, MINIMAL, CPUS, f"{key}={text}")
        assert (problem.key, problem.code in ("bounds", "type")) == (key, True), text
        assert value is None or problem.value == value
        assert problem.rule
        assert problem.fix


@pytest.mark.bad_input(13, 18)
@pytest.mark.parametrize(
    "key", ["search.budget_node_hours", "measure.memory_limit_gib", "constraints.min_free_memory_gib"]
)
def test_an_amount_is_a_finite_number_above_0(tmp_path: Path, key: str):
    for text in ("0", "-1", ".nan", ".inf", "-.inf", "1e12", "true", "4GiB", "1_000"):
        problem = refusal(tmp_path, MINIMAL, "measure.memory_limit_gib=8", f"{key}={text}")
        assert (problem.key, problem.code in ("bounds", "type")) == (key, True), text
        assert problem.fix


@pytest.mark.bad_input(27, 34, 35)
@pytest.mark.security("secrets")
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("ledger.url", "postgresql://me:hunter2@db/parlay"),
        ("tracking.mlflow_uri", "http://me:hunter2@mlflow.example"),
        ("launcher.slurm.env", "{WANDB_API_KEY: hunter2}"),
    ],
)
@pytest.mark.parametrize("where", ["file", "set"])
def test_a_secret_is_refused_and_not_repeated(tmp_path: Path, key: str, value: str, where: str):
    *sections, last = key.split(".")
    value = value if value[0] in "[{" else json.dumps(value)
    line = "".join(f"{section}: {{" for section in sections) + f"{last}: {value}" + "}" * len(sections)
    found = (
        refusals(tmp_path, f"{MINIMAL}{line}\n") if where == "file" else refusals(tmp_path, MINIMAL, f"{key}={value}")
    )
    [problem] = [problem for problem in found if problem.code in ("secret", "ledger_url")]
    assert (problem.key or "").startswith(key)
    assert problem.rule
    assert problem.fix
    assert "hunter2" not in json.dumps([problem.to_json() for problem in found])


def test_all_problems_of_all_sections_are_reported_at_once_in_the_files_order(tmp_path: Path):
    text = """\
name: Bad Name
model: {num_layers: four, hidden_size: 10, num_attention_heads: 3, vocab_size: 8}
cluster: {accelerator: abacus, gpus_per_node: 0, num_nodes: 1}
global_batch_size: 0
space:
  tensor_parallel: [1, 1]
  zero_stage: 4
search: {max_trails: 3}
tracking: {mlflow_uri: ./mlruns}
"""
    assert [(problem.key, problem.line) for problem in refusals(tmp_path, text)] == [
        ("name", 1),
        ("model.num_layers", 2),
        ("model.seq_length", 2),
        ("cluster.accelerator", 3),
        ("cluster.gpus_per_node", 3),
        ("global_batch_size", 4),
        ("space.tensor_parallel", 6),
        ("space.zero_stage", 7),
        ("search.max_trails", 8),
        ("tracking.mlflow_uri", 9),
    ]


@pytest.mark.parametrize(
    ("change", "key", "instead"),
    [
        (
            "space.expert_overlap=[false, true]",
            "space.expert_overlap",
            "give --overlap-moe-expert-parallel-comm in space.options",
        ),
        (
            "space.offloaded_layers=[0, 4]",
            "space.offloaded_layers",
            "give --cpu-offloading-num-layers in space.options",
        ),
        (
            "space.layers_in_16_bits=1",
            "space.layers_in_16_bits",
            "give --first-last-layers-bf16, --num-layers-at-start-in-bf16 and",
        ),
        (
            "baseline={context_inner: 2}",
            "baseline.context_inner",
            "give --hierarchical-context-parallel-sizes in baseline.options",
        ),
    ],
)
def test_a_former_axis_is_refused_with_the_option_in_its_place(tmp_path: Path, change: str, key: str, instead: str):
    problem = refusal(tmp_path, MINIMAL, change)
    assert problem.key == key
    assert (problem.rule or "").startswith(instead)


ACCEPTED = [
    # changes near to those refused above
    [f"name={'a' * 41}"],
    ["launcher.address=node-1.cluster:65535"],
    ["ledger.url=postgresql+psycopg://db/l"],
    ["tracking.mlflow_uri=databricks"],
    ["space.pipeline_schedule=[1f1b, interleaved_1f1b]", "space.virtual_pipeline_stages=[1, 2]"],
    ["space.pipeline_schedule=[1f1b, zbv]", "space.virtual_pipeline_stages=[1, 2]"],
    ["space.recompute_modules=core_attn", "space.activation_checkpointing=[none, selective]"],
    ["space.recompute_layers=2", "space.activation_checkpointing=[none, full]"],
    ["space.engine=[torch, megatron-core]", A100S],
    ["space.engine=megatron-core", "baseline={engine: torch}", A100S],
    [A100S, "constraints.min_free_memory_gib=37"],
    [A100S, "constraints.min_free_memory_gib=4", COMMAND, "trainer.patterns.memory_gib='peak ([0-9.]+)'"],
    [EXPERTS, "measure.routing=skewed(4)"],
]


@pytest.mark.parametrize("changes", ACCEPTED, ids=lambda value: str(value)[:60])
def test_a_valid_change_is_accepted(tmp_path: Path, changes: list[str]):
    assert candidates_of(loaded(tmp_path, MINIMAL, *changes)).layouts


ONE_TENSOR = ("space.tensor_parallel=1", "space.pipeline_parallel=2")
SMALL = f"model={{{MODEL.replace('heads: 4', 'heads: 2')}}}"
CORE = "space.engine=megatron-core"
SPACES = [
    (["space.tensor_parallel=7"], "world"),
    ([SMALL, "space.tensor_parallel=2", "model.ffn_hidden_size=33"], "ffn"),
    ([SMALL, "space.tensor_parallel=2", "model.num_key_value_heads=1"], "kv_heads"),
    ([SMALL, "space.tensor_parallel=2", "model.vocab_size=63"], "vocab"),
    ([SMALL, *ONE_TENSOR, "space.virtual_pipeline_stages=4"], "interleave"),
    ([SMALL, *ONE_TENSOR, "model.num_layers=1"], "layers"),
    (["space.micro_batch_size=3"], "batch"),
    ([CPUS, "cluster.gpus_per_node=8", "space.tensor_parallel=8"], "heads"),
    (
        [
            f"model={{{MODEL}}}",
            CPUS,
            "cluster={accelerator: cpu, gpus_per_node: 2, num_nodes: 2}",
            "space.tensor_parallel=4",
        ],
        "tp_across_nodes",
    ),
    ([CORE, SMALL, *ONE_TENSOR, "model.num_layers=3"], "megatron-core.layers"),
    ([CORE, SMALL, "model.position_embedding=rotary", "model.hidden_size=34"], "megatron-core.rotary"),
    ([CORE, "space.attention_kernel=flash", "space.precision=bf16"], "gpu_only"),
    ([CORE, "space.zero_stage=2", "space.tensor_parallel=1"], "megatron-core.zero_stage"),
]


@pytest.mark.bad_input(7, 8, 9, 10, 11, 14, 21, 54)
@pytest.mark.parametrize(("changes", "rule"), SPACES, ids=lambda value: str(value)[:60])
def test_a_space_of_which_nothing_is_left_is_told_which_rule_took_how_many(
    tmp_path: Path, changes: list[str], rule: str
):
    problem = not_searched(tmp_path, *changes)
    assert (problem.key, problem.file, problem.line) == ("space", str(tmp_path / "search.yaml"), 5)
    assert f"{rule} rejected " in problem.message
    assert f"{rule}: " in (problem.fix or "")
    assert rule != "tp_across_nodes" or "set space.allow_tensor_parallel_across_nodes" in problem.fix


def not_searched(folder: Path, *changes: str) -> Problem:
    """The problem of a file that is read, and whose space cannot be searched."""
    with pytest.raises(InputError) as caught:
        candidates_of(loaded(folder, MINIMAL, *changes))
    [problem] = caught.value.problems
    return problem


@pytest.mark.bad_input(15)
def test_a_space_over_a_million_points_needs_the_switch_and_is_drawn_by_the_seed(tmp_path: Path, monkeypatch):
    axes = [
        f"space.{axis}={{min: 1, max: 64, step: 1}}" for axis in ("num_nodes", "tensor_parallel", "micro_batch_size")
    ]
    axes.append("space.pipeline_parallel={min: 1, max: 64, step: 1}")
    problem = not_searched(tmp_path, "cluster={accelerator: cpu, gpus_per_node: 4, num_nodes: 64}", *axes)
    assert "16777216 combinations of 64 num_nodes x 64 tensor_parallel" in problem.message
    assert "search.sample_space" in problem.fix
    monkeypatch.setattr(search_space, "MAX_POINTS", 50)
    monkeypatch.setattr(search_space, "SAMPLED_POINTS", 50)
    axes = ["space.tensor_parallel=[1, 2, 4]", "space.micro_batch_size={min: 1, max: 30, step: 1}"]
    drawn = [loaded(tmp_path, MINIMAL, *axes, "search.sample_space=true", f"search.seed={seed}") for seed in (1, 1, 2)]
    one, again, other = (candidates_of(spec) for spec in drawn)
    assert one.is_sampled
    assert one.rejected_by_rule == again.rejected_by_rule != other.rejected_by_rule


@pytest.mark.bad_input(10)
def test_a_baseline_of_another_global_batch_is_refused(tmp_path: Path):
    problem = not_searched(tmp_path, "baseline={micro_batch_size: 1, grad_accum_steps: 3}")
    assert "= 12, but global_batch_size is 16" in problem.message
    assert (problem.key, problem.file) == ("baseline", "--set")


IN_THE_FOLDER = {
    "windows": b"#!/bin/sh\r\necho\r\n",
    "bare": b"echo\n",
    "setup.sh": b"module load x\r\n",
    "train.sh": b"#!/bin/sh\n",
    "pretrain_gpt.py": b"",
}
"""Files of which all but the last can be executed."""
HERE = [
    # changes that only the files of this machine forbid; {folder} is that of the search file
    (["trainer={kind: megatron-lm, script: gone.py}"], "trainer.script"),
    ([MEGATRON, "space.precision=bf16", "space.zero_stage=[0, 2]"], "trainer.script"),
    *(
        ([f"trainer={{kind: command, template: '{program} {WORDS}', patterns: deepspeed}}"], "trainer.template")
        for program in ("{folder}/windows", "{folder}/bare", "no-such-program", "./train.sh")
    ),
    ([SLURM, "launcher.slurm.setup_file=gone.sh"], "launcher.slurm.setup_file"),
    ([SLURM, "launcher.slurm.setup_file=setup.sh"], "launcher.slurm.setup_file"),
    (
        ["launcher={kind: slurm, slurm: {container: {runtime: apptainer, image: none.sif}}}"],
        "launcher.slurm.container.image",
    ),
    (
        ["launcher={kind: slurm, slurm: {container: {runtime: pyxis, image: x, mounts: ['/tmp:/a', '/none:/b']}}}"],
        "launcher.slurm.container.mounts[1]",
    ),
    *(
        (
            ["launcher={kind: slurm, slurm: {container: {runtime: pyxis, image: x}}}", f"work_dir='{{folder}}/{name}'"],
            "work_dir",
        )
        for name in ("a:b", "a b")
    ),
    *(([SLURM, f"work_dir={{folder}}/{name}"], "work_dir") for name in ("runs%j", "50%", "a\\b")),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Folder of the search file, with IN_THE_FOLDER."""
    for name, content in IN_THE_FOLDER.items():
        (tmp_path / name).write_bytes(content)
        (tmp_path / name).chmod(0o644 if name == "pretrain_gpt.py" else 0o755)
    return tmp_path


@pytest.mark.bad_input(30, 32, 38)
@pytest.mark.security("setup_file")
@pytest.mark.parametrize(("changes", "key"), HERE, ids=lambda value: str(value)[-60:])
def test_what_is_not_on_this_machine_is_refused_before_anything_runs(folder: Path, changes, key):
    spec = loaded(
        folder, MINIMAL, f"work_dir={folder}/runs", *(change.replace("{folder}", str(folder)) for change in changes)
    )
    with pytest.raises(InputError) as caught:
        validate_space(spec)
    [problem] = caught.value.problems
    assert (problem.key, problem.file) == (key, "--set")
    assert problem.fix
    if key.startswith("trainer."):
        [finding] = findings_with_timeout(Area.SEARCH, lambda: check_search(spec))
        assert (finding.name, finding.level) == (problem.code, Severity.ERROR)


@pytest.mark.bad_input(30, 32, 38)
@pytest.mark.parametrize(
    "changes",
    [
        [MEGATRON],
        [MEGATRON, "space.precision=bf16", "space.zero_stage=[0, 1]"],
        *(
            [f"trainer={{kind: command, template: '{program} {WORDS}', patterns: deepspeed}}"]
            for program in ("sh", "{python}", "{folder}/train.sh")
        ),
        [SLURM, "launcher.slurm.setup_file=train.sh", 'work_dir="{folder}/a b\'c"'],
        [SLURM, "launcher.slurm.container=[enroot, x]", "work_dir={folder}/a:b"],
        ["launcher={kind: slurm, slurm: {container: {runtime: apptainer, image: bare, mounts: ['/tmp:/data']}}}"],
        ["launcher={kind: slurm, slurm: {container: {runtime: pyxis, image: 'nvcr.io#nvidia/pytorch:24.01'}}}"],
        ["work_dir={folder}/runs%j"],
    ],
    ids=lambda value: str(value)[-60:],
)
def test_what_is_on_this_machine_is_taken(folder: Path, changes: list[str]):
    changes = [change.replace("{folder}", str(folder)) for change in changes]
    assert validate_space(loaded(folder, MINIMAL, f"work_dir={folder}/runs", *changes)).layouts
