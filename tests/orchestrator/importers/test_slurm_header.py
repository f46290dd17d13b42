"""Slurm headers of launch scripts, and the ranks that their commands start."""

from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.config.draft import Draft, render
from orchestrator.config.loader import load_search_file
from orchestrator.importers.accelerate import read_accelerate
from orchestrator.importers.gpt_neox import read_gpt_neox
from orchestrator.importers.imported_config import ImportedConfig
from orchestrator.importers.launch_script import read_launch_script
from orchestrator.importers.megatron_bridge.config import read_bridge_config
from orchestrator.importers.slurm_directives import read_directives
from orchestrator.importers.slurm_header import job_variables, read_slurm_header
from orchestrator.importers.slurm_options import SBATCH_LETTERS, SBATCH_OPTIONS, SRUN_LETTERS, SRUN_OPTIONS
from search_spaces.errors import InputError
from tests.orchestrator.importers.config_tables import require_one_handling_of_each_key
from tests.orchestrator.importers.samples import BRIDGE, GPT_NEOX


def read(*directives, commands=(), exported=None):
    text = "\n".join(["#!/bin/bash", *(f"#SBATCH {d}" for d in directives), "echo start"])
    return read_slurm_header(
        read_directives(text), [(20 + i, c.split()) for i, c in enumerate(commands)], exported or {}
    )


@pytest.mark.parametrize(
    "written", ["--nodes=2", "--nodes 2", "-N 2", "-N2", "-N2 # two", "--nodes='2'", "--nodes=2-2"]
)
def test_an_option_is_read_as_getopt_reads_it(written):
    assert read(written).num_nodes == 2


def test_of_two_options_the_last_one_counts_and_directives_end_at_the_first_command():
    header = read("--nodes=2", "-A first", "-N 4 --account=second")
    assert (header.num_nodes, header.slurm["account"]) == (4, "second")
    assert header.origins["launcher.slurm.account"] == "#SBATCH --account (line 4)"
    text = "#!/bin/bash\n# a comment\n##SBATCH -N 3\n# SBATCH -N 5\n#SBATCH -N 2\n\ncd /x\n#SBATCH -N 9\n"
    assert read_slurm_header(read_directives(text), [], {}).num_nodes == 2
    header = read("<SLURM OPTIONS> --nodes=128 --exclusive")
    assert (header.num_nodes, header.slurm) == (128, {"exclusive": True})
    assert "is no option" in header.notes[0]


@pytest.mark.parametrize(
    ("directives", "gpus", "section"),
    [
        (["--gres=gpu:8"], 8, {"gpus_as": "gres"}),
        (["--gres=gpu:a100:4"], 4, {"gres": "gpu:a100:4"}),
        (["--gpus-per-node=a100:4"], 4, {"gres": "gpu:a100:4"}),
        (["-G 64", "-N 8"], 8, {}),
        (["-G 64", "-N 7"], None, {}),
        (["--gpus-per-task=1", "--ntasks-per-node=8"], 8, {}),
        (["--gpus-per-task=1", "-n 16", "-N 4"], 4, {}),
    ],
)
def test_gpus_of_a_node_follow_from_the_header(directives, gpus, section):
    header = read(*directives)
    assert header.gpus_per_node == gpus
    assert header.slurm == section


def test_an_accelerator_is_read_where_its_name_says_the_memory_and_one_of_two_sizes_asked_about():
    assert read("--gres=gpu:h100:8").accelerator == "h100-80gb"
    assert read("--constraint=h100").accelerator == "h100-80gb"
    header = read("--gres=gpu:a100:8")
    assert header.accelerator is None
    assert any("a100-40gb or a100-80gb" in note for note in header.notes)


def test_a_segment_is_kept_and_cores_are_divided():
    assert read("--segment=16", "--nodes=32").slurm == {"segment": 16}
    assert read("--ntasks-per-node=1", "-c 96", "--gpus-per-node=8").slurm["cpus_per_task"] == 12
    assert read("--ntasks-per-node=8", "-c 12", "--gpus-per-node=8").slurm["cpus_per_task"] == 12
    assert "cpus_per_task" not in read("-c 96").slurm


@pytest.mark.parametrize("value", ["<your_account>", "$ACCOUNT", "CHANGE_ME"])
def test_a_placeholder_is_asked_about_and_not_believed(value):
    header = read(f"--account='{value}'")
    assert "account" not in header.slurm
    assert any("launcher.slurm.account" in note for note in header.notes)


@pytest.mark.parametrize(
    ("written", "note"),
    [
        ("--time=24:00:00", "--time was left out: it limits the whole training"),
        ("--acount=x", "did you mean account?"),
        ("hetjob", "several components"),
        ("--account='x", "a quote in it is not closed"),
    ],
)
def test_what_is_left_out_has_a_note(written, note):
    assert note in " ".join(read(written).notes)


def test_what_a_search_does_not_take_is_left_out_by_name():
    header = read("--comment='a secret remark'", "-p gpu")
    assert header.slurm == {"partition": "gpu"}
    assert any("launcher.slurm.comment" in note for note in header.notes)
    assert "remark" not in " ".join(header.notes)
    kept = {"NCCL_IB_HCA": "mlx5", "OMP_NUM_THREADS": "4"}
    others = {"UCX_TLS": "$TLS", "CUDA_DEVICE_MAX_CONNECTIONS": "1", "WANDB_API_KEY": "s3cr3t"}
    header = read("-N1", exported=kept | others)
    assert header.slurm["env"] == kept
    notes = " ".join(header.notes)
    assert "UCX_TLS, WANDB_API_KEY" in notes
    assert "s3cr3t" not in notes
    assert "CUDA_DEVICE" not in notes


def test_modules_are_those_that_are_loaded_in_the_end():
    for commands, modules in (
        (["module load a b/1.2"], ["a", "b/1.2"]),
        (["module load old", "module purge", "module load cuda/12"], ["cuda/12"]),
        (["module load gcc/11 b", "module swap gcc gcc/12"], ["b", "gcc/12"]),
    ):
        assert read("-N1", commands=commands).slurm["modules"] == modules


def test_the_container_of_the_launch_line_is_read():
    of_apptainer = {"runtime": "apptainer", "image": "/img.sif", "mounts": ["/a:/b"], "gpus": "nv"}
    for command, container in (
        ("srun -N 2 apptainer exec --nv -B /a:/b /img.sif python x.py", of_apptainer),
        ("srun shifter --image=org/img:1 python x.py", {"runtime": "shifter", "image": "org/img:1"}),
        ("srun --container-image=$IMAGE python x.py", None),
    ):
        assert read("-N1", commands=[command]).slurm.get("container") == container


def test_the_launch_line_has_binding_and_container_and_what_only_takes_a_part_of_the_job_is_noted():
    header = read("--container-image=/i.sqsh", commands=["srun --container-mounts=/a python x.py"])
    assert header.slurm["container"] == {"runtime": "pyxis", "image": "/i.sqsh", "mounts": ["/a:/a"]}
    origin = "#SBATCH --container-image (line 2), srun --container-mounts (line 20)"
    assert header.origins["launcher.slurm.container"] == origin
    header = read(
        "-N1", commands=["srun hostname", "srun --cpu-bind=cores --mpi pmix -l python train.py --cpu-bind=no"]
    )
    assert header.slurm["launch"] == {"srun": ["--cpu-bind=cores", "--mpi=pmix"]}
    assert header.origins["launcher.slurm.launch"] == "srun (line 21)"
    header = read("-N4", commands=["srun --exclusive -w n1 --mem=0 python x.py"])
    assert header.slurm == {}
    assert header.notes == (
        "Options of srun were left out, since a trial's step has its whole job: --exclusive, --nodelist, --mem.",
    )


@pytest.mark.parametrize(
    ("options", "variables"),
    [
        (["-N 4", "--gpus-per-node=8"], "NNODES=4 JOB_NUM_NODES=4 GPUS_ON_NODE=8 GPUS_PER_NODE=8"),
        (["-N 2", "--gres=gpu:a100:4"], "NNODES=2 JOB_NUM_NODES=2 GPUS_ON_NODE=4"),
        (["-N 2", "--ntasks-per-node=4"], "NNODES=2 JOB_NUM_NODES=2 NTASKS=8 NPROCS=8 NTASKS_PER_NODE=4"),
        ([], ""),
    ],
)
def test_the_variables_of_the_job_follow_from_its_header(options, variables):
    text = "".join(f"#SBATCH {option}\n" for option in options)
    expected = dict(variable.split("=") for variable in variables.split())
    assert job_variables(text) == {f"SLURM_{name}": value for name, value in expected.items()}


def test_a_script_without_a_header_has_no_launcher_and_an_srun_asks_for_nodes_itself():
    words = ["srun", "-N", "4", "--gpus-per-node=8", "-p", "batch", "--exclusive", "python", "x.py"]
    header = read_slurm_header(read_directives(""), [(1, words)], {})
    assert (header.num_nodes, header.gpus_per_node) == (4, 8)
    assert header.launcher == {"kind": "slurm", "slurm": {"partition": "batch", "exclusive": True}}
    assert header.notes == ()
    header = read_slurm_header(read_directives("module load a\n"), [(1, ["module", "load", "a"])], {})
    assert header.launcher == {}
    assert header.notes == ("The script has no #SBATCH header: its modules were left out.",)


@pytest.mark.parametrize(
    "script",
    [
        "sbatch <<EOT\n#!/bin/bash\n#SBATCH -N 4\n#SBATCH --gpus-per-node=8\n#SBATCH -A abc\n{}\nEOT\n",
        "sbatch -N 4 -A abc <<'EOT'\n#!/bin/bash\n#SBATCH -N 2\n#SBATCH --gpus-per-node=8\n{}\nEOT\n",
        "cat > job.sh <<EOT\n#!/bin/bash\n#SBATCH -N 4\n#SBATCH --gpus-per-node=8\n{}\nEOT\nsbatch -A abc job.sh\n",
    ],
)
def test_the_job_that_a_script_submits_has_its_options(script):
    training = "srun --ntasks-per-node=8 python pretrain_gpt.py --num-layers 8 --hidden-size 512"
    found = read_launch_script(f"#!/bin/bash\n{script.format(training)}")
    assert (found.num_nodes, found.gpus_per_node) == (4, 8)
    assert found.launcher == {"kind": "slurm", "slurm": {"account": "abc"}}


TRAINING = "python pretrain_gpt.py --num-layers 8 --hidden-size 512"
FOUR_OF_EIGHT = "#SBATCH -N 4\n#SBATCH --gpus-per-node=8\n#SBATCH --ntasks-per-node=8\n"


@pytest.mark.parametrize(
    "script",
    [
        FOUR_OF_EIGHT + f"srun -N 1 -n 1 python tools/prepare.py --a 1 --b 2 --c 3 --d 4\nsrun bash -c '{TRAINING}'",
        f"#SBATCH -N 1\n#SBATCH --gpus-per-node=1\nsbatch <<'E'\n{FOUR_OF_EIGHT}srun {TRAINING}\nE",
        f"sbatch <<'E'\n{FOUR_OF_EIGHT}srun {TRAINING}\nE\nsbatch -N 1 --gpus-per-node=4 --wrap 'python evaluate.py'",
    ],
)
def test_the_step_and_the_job_are_those_of_the_training(script):
    found = read_launch_script(f"#!/bin/bash\n{script}\n")
    assert (found.num_nodes, found.gpus_per_node) == (4, 8)
    assert not [note for note in found.notes if "the command starts its ranks" in note]


def test_a_number_of_tasks_on_the_launch_line_prevails_over_the_headers_for_each_node():
    found = read_launch_script(f"#!/bin/bash\n{FOUR_OF_EIGHT}srun -N 2 -n 8 {TRAINING}\n")
    assert (found.num_nodes, found.gpus_per_node) == (2, 4)
    assert "srun --nodes is 2, as the command starts its ranks; the job has 4." in found.notes


@pytest.mark.parametrize(("table", "letters"), [(SBATCH_OPTIONS, SBATCH_LETTERS), (SRUN_OPTIONS, SRUN_LETTERS)])
def test_every_option_is_in_one_group_with_a_reason(table, letters):
    require_one_handling_of_each_key(table)
    assert {*letters.values()} <= {*table.group_of}


FULL = (
    *("-A proj123_g", "-p gpu,long", "-q regular", "-C 'gpu&hbm80g'", "-N 4", "--gres=gpu:h100:8", "-c 96 -n 4"),
    *("--mem=0", "--exclusive", "-x n[001-004],n9", "-t 24:00:00", "-J pretrain", "--hint=nomultithread", "-L scratch"),
    *("--comment=0x1f", "--switches=1", "--mem-bind=local", "--exclusive=user", "-o log.txt", "--reservation=acc"),
)


@pytest.mark.parametrize("site", [None, "perlmutter"])
def test_a_search_file_with_a_full_header_loads(site, tmp_path: Path):
    header = read(
        *FULL,
        commands=["module load cuda/12.4", "srun --cpu-bind=cores --container-image=/i.sqsh --container-writable x"],
        exported={"OMP_NUM_THREADS": "1", "NCCL_IB_DISABLE": "0", "NCCL_SOCKET_IFNAME": "=hsn0:1"},
    )
    sizes = {"num_layers": 4, "hidden_size": 128, "num_attention_heads": 4, "vocab_size": 512, "seq_length": 128}
    cluster = {"accelerator": header.accelerator, "gpus_per_node": header.gpus_per_node, "num_nodes": 4}
    space = {"tensor_parallel": 1, "pipeline_parallel": 1, "micro_batch_size": 1, "engine": "torch"}
    search = {"name": "x", "model": sizes, "cluster": cluster, "global_batch_size": 64, "space": space, "site": site}
    text = render(Draft(title="A test.", launcher=header.launcher, **search))
    path = tmp_path / "search.yaml"
    path.write_text(text)
    section = load_search_file(path).launcher.slurm
    assert (section.account, section.exclusive, section.exclude) == ("proj123_g", "user", ["n[001-004]", "n9"])
    assert section.env.items() >= header.slurm["env"].items()
    assert (section.gres, section.cpus_per_task, section.comment) == ("gpu:h100:8", 12, "0x1f")
    assert section.launch.srun == ["--cpu-bind=cores", "--mem-bind=local"]
    assert section.container.image == "/i.sqsh"
    assert section.site == site


JOB_OF_FOUR = "#SBATCH --nodes=4\n#SBATCH --gpus-per-node=8\n"
PRETRAINING = "pretrain_gpt.py --num-layers 8 --hidden-size 512 --micro-batch-size 1"
TORCHRUN_OF_ALL = "torchrun --nproc-per-node=gpu"


def launched(command: str, header: str = JOB_OF_FOUR):
    return read_launch_script(f"#!/bin/bash\n{header}{command} {PRETRAINING}")


@pytest.mark.parametrize(
    ("command", "ranks"),
    [
        ("torchrun --nnodes 4 --nproc-per-node 8", (4, 8)),
        ("torchrun --standalone --nproc-per-node 8", (1, 8)),
        ("srun torchrun --nproc-per-node=gpu --nnodes $SLURM_JOB_NUM_NODES", (4, 8)),
        ("torchrun --nproc-per-node 8", (1, 8)),
        ("torchrun --nnodes 4", (4, 1)),
        ("python -m torch.distributed.run --nnodes 2 --nproc_per_node 4", (2, 4)),
        ("deepspeed --num_gpus 8", (1, 8)),
        ("deepspeed", (1, 8)),
        ("deepspeed --hostfile hosts", (4, 8)),
        ("deepspeed --hostfile hosts --num_nodes 2", (2, 8)),
        ("srun --ntasks-per-node=4 python", (4, 4)),
        ("srun -n 16 python", (4, 4)),
        ("srun --ntasks-per-node=8 singularity exec image.sif run.sh", (4, 8)),
        ("mpirun -np 16 --map-by ppr:4:node python", (4, 4)),
        ("mpiexec -n 8 -ppn 8 python", (1, 8)),
        ("python", (1, 1)),
        ("$LAUNCHER python", (4, 8)),
    ],
)
def test_the_ranks_are_those_that_the_command_starts(command, ranks):
    found = launched(command)
    assert (found.num_nodes, found.gpus_per_node) == ranks
    for name, count, whole in zip(("num_nodes", "gpus_per_node"), ranks, (4, 8), strict=True):
        notes = [note for note in found.notes if note.startswith(f"cluster.{name} is {count}, as the command starts")]
        assert len(notes) == (count < whole)


@pytest.mark.parametrize(
    ("command", "ranks"),
    [
        ("torchrun --nproc-per-node 8", (1, 8)),
        ("torchrun --nnodes $NNODES --nproc-per-node 8", (None, 8)),
        ("mpirun -np 16 python", (None, None)),
        ("python", (None, None)),
        *((f"export CUDA_VISIBLE_DEVICES=0,1\n{command}", (1, 2)) for command in ("deepspeed", TORCHRUN_OF_ALL)),
    ],
)
def test_ranks_of_a_script_without_a_header(command, ranks):
    found = launched(command, header="")
    assert (found.num_nodes, found.gpus_per_node) == ranks


def test_the_number_of_tasks_is_noted_where_the_script_does_not_say_it_and_more_than_the_job_has_refused():
    note = "The number of tasks is not in the script: one for each GPU is assumed."
    assert note in launched("srun python").notes
    assert note not in launched("srun --ntasks-per-node=8 python").notes
    assert note not in launched("srun torchrun --nnodes 4 --nproc-per-node 8").notes
    with pytest.raises(InputError, match=r"gpus_per_node is 16 in the command \(--nproc-per-node .* and 8 in the job"):
        launched("torchrun --nnodes 4 --nproc-per-node 16")


_COMMAND = (
    "torchrun --nproc_per_node 4 pretrain_gpt.py --num-layers 4 --tensor-model-parallel-size 2 --sequence-parallel"
)
_ACCELERATE = """distributed_type: MEGATRON_LM
megatron_lm_config: {megatron_lm_tp_degree: 2, megatron_lm_sequence_parallelism: true}
"""


@pytest.mark.parametrize(
    ("trainer", "read", "text", "degree"),
    [
        ("Megatron-LM", read_launch_script, _COMMAND, "--tensor-model-parallel-size 2"),
        ("Megatron-Bridge", read_bridge_config, BRIDGE, "tensor_model_parallel_size: 2"),
        ("GPT-NeoX", read_gpt_neox, GPT_NEOX, '"model_parallel_size": 2'),
        ("accelerate", read_accelerate, _ACCELERATE, "tp_degree: 2"),
    ],
)
def test_sequences_are_not_split_without_tensor_parallelism(
    trainer: str, read: Callable[[str], ImportedConfig], text: str, degree: str
):
    note = f"Sequence parallelism is on in the file; with tensor_parallel 1 {trainer} trains without it."
    assert text.count(degree) == 1
    split, whole = read(text), read(text.replace(degree, degree.replace("2", "1")))
    assert (split.layout["sequence_parallel"], whole.layout["sequence_parallel"]) == (True, False)
    assert note not in split.notes
    assert note in whole.notes
