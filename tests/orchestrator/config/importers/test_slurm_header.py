"""Slurm headers of launch scripts, and the ranks that their commands start."""

import pytest
import yaml

from orchestrator.config.importers.bash.script import read_script
from orchestrator.config.importers.launch_script import read_launch_script
from orchestrator.config.importers.slurm_header import Size, job_variables, read_slurm_header
from orchestrator.config.init import render_from
from search_spaces.errors import InputError
from search_spaces.schema.validation import FILL_IN


def read(*directives, commands=("echo start",)):
    """The header of a script with these directives, whose last command trains."""
    text = "\n".join(["#!/bin/bash", *(f"#SBATCH {d}" for d in directives), *commands])
    script = read_script(text)
    return read_slurm_header(text, script.commands[-1] if script.commands else (), script.commands, script.exported)


def section_of(header):
    return header.launcher.get("slurm", {})


HOSTS = {"exclude": ["n[1,2]", "n9"], "nodelist": ["m1"]}


@pytest.mark.parametrize(
    ("directives", "nodes", "gpus", "section"),
    [
        *((option, 2, None, {}) for option in ("--nodes=2", "--nodes 2", "-N 2", "-N2", "-N2 # two", "--nodes='2'")),
        ("--nodes=2-2", 2, None, {}),
        ("--nodes=2-4", None, None, {}),
        ("--nodes=2\n-A first\n-N 4 --account=second", 4, None, {"account": "second"}),
        ("<SLURM OPTIONS> --nodes=128 --exclusive", 128, None, {"exclusive": True}),
        ("-N 2\nhetjob\n-N 3", 2, None, {}),
        ("--gres=gpu:8", None, 8, {"gpus_as": "gres"}),
        ("--gres=gpu:a100:4", None, 4, {"gres": "gpu:a100:4"}),
        ("--gres=nvme:1,gres/gpu:4", None, 4, {"gres": "nvme:1,gpu:4"}),
        ("--gres=gpu:a100", None, 1, {"gres": "gpu:a100"}),
        ("--gres=nvme:1 --gpus-per-node=4", None, 4, {"gres": "nvme:1"}),
        ("--gpus-per-node=a100:4", None, 4, {"gres": "gpu:a100:4"}),
        ("-G 64 -N 8", 8, 8, {}),
        ("-G 64 -N 7", 7, None, {}),
        ("--gpus-per-task=1 --tasks-per-node=8", None, 8, {}),
        ("--gpus-per-task=1 -n 16 -N 4", 4, 4, {}),
        ("--segment=16 --threads-per-core=1", None, None, {"segment": 16, "threads_per_core": 1}),
        ("--ntasks-per-node=1 -c 96 --gpus-per-node=8", None, 8, {"cpus_per_task": 12}),
        ("-c 96", None, None, {}),
        ("--mem=64GB -x n[1,2],n9 -w m1", None, None, {"mem": "64G"} | HOSTS),
        ("--hint=nomultithread -S 2", None, None, {"directives": ["--hint=nomultithread", "--core-spec=2"]}),
    ],
)
def test_the_header_gives_the_size_and_the_section_of_the_job(directives, nodes, gpus, section):
    header = read(*directives.split("\n"))
    assert (header.job.nodes.count, header.job.gpus.count, section_of(header)) == (nodes, gpus, section)


def test_directives_end_at_the_first_command_and_each_value_has_its_origin():
    text = "#!/bin/bash\n# a comment\n##SBATCH -N 3\n# SBATCH -N 5\n#SBATCH -N 2 -A lab\n\ncd /x\n#SBATCH -N 9\n"
    header = read_slurm_header(text, (), (), {})
    assert header.job.nodes == Size(2, "#SBATCH --nodes (line 5)")
    assert header.origins == {"launcher.slurm.account": "#SBATCH --account (line 5)"}


def test_a_search_file_has_the_section_and_asks_for_a_number_of_gpus_that_is_a_placeholder(tmp_path):
    options = (
        "-N2 --gres=gpu:your_own_gpu_per_node --exclusive=user -x n[001-004],n9 --comment=0x1f --mem=0 -C 'gpu&80g'"
    )
    (tmp_path / "job.sh").write_text(f"#!/bin/bash\n#SBATCH {options}\nsrun python {PRETRAINING}\n")
    found = yaml.safe_load(render_from(tmp_path / "job.sh")[0])
    hosts = {"exclude": ["n[001-004]", "n9"], "gres": FILL_IN, "constraint": "gpu&80g", "mem": "0"}
    assert found["launcher"]["slurm"] == {"exclusive": "user", "comment": "0x1f"} | hosts
    assert (found["cluster"]["num_nodes"], found["cluster"]["gpus_per_node"]) == (2, FILL_IN)


def test_an_accelerator_is_read_where_its_name_says_the_memory():
    assert [read(f"--gres=gpu:{kind}:8").accelerator for kind in ("h100", "a100")] == ["h100-80gb", None]


SECRET = "hf_abcdefghijklmnopqrstuvwxyz"


@pytest.mark.parametrize(
    ("option", "command", "named"),
    [
        ("--comment='a secret remark'", "", "launcher.slurm.comment"),
        (f"--licenses={SECRET}", "", "launcher.slurm.licenses"),
        ("-J name --acount=x", "", "-J, --acount"),
        ("--time=24:00:00", "", "--time was left out: the time limit is derived from measure.time_limit"),
        ("--container-mounts=/a", "", "--container-mounts"),
        ("hetjob", "", "line 3"),
        ("a 'quote", "", "line 3"),
        ("--constraint=" + "&".join(map(str, range(2000))), "", "--constraint"),
        (" ".join(f"--o{i}=1" for i in range(1000)), "", "and 980 more"),
        ("", "module swap gcc gcc/12", "the set-up of line 4 (launcher.slurm.setup_file takes a file with it)"),
        ("", "conda activate x", "the set-up of line 4 (launcher.slurm.setup_file takes a file with it)"),
        ("", "srun shifter --image=org/img:1 python x.py", "shifter (line 4)"),
    ],
)
def test_what_is_not_read_is_named_in_one_note_without_its_value(option, command, named):
    header = read("-p gpu", option, commands=[command or "echo start"])
    assert section_of(header) == {"partition": "gpu"}
    [note] = header.notes
    assert named in note
    assert len(note) < 500
    assert not any(value in note for value in ("remark", SECRET))


@pytest.mark.parametrize("value", ["<your account>", "$ACCOUNT", "CHANGE_ME"])
def test_what_the_script_leaves_to_its_user_is_to_be_filled_in(value):
    header = read(f"-A '{value}'", commands=["module load a $C", "srun --container-image=$IMAGE python x.py"])
    container = {"runtime": "pyxis", "image": FILL_IN}
    assert section_of(header) == {"account": FILL_IN, "modules": ["a", FILL_IN], "container": container}
    for key in header.launcher["slurm"]:
        assert any(note.startswith(f"launcher.slurm.{key} of ") and "fill it in" in note for note in header.notes)


def test_exported_variables_are_kept_for_a_job_if_they_matter_to_speed_and_named_otherwise():
    kept = {"NCCL_IB_HCA": "mlx5", "OMP_NUM_THREADS": "4"}
    others = {"UCX_TLS": "$TLS", "WANDB_API_KEY": "s3cr3t", "NVTE_FUSED_ATTN": "0", "CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    exports = "".join(f"export {name}={value}\n" for name, value in (kept | others).items())
    found = launched(f"{exports}srun python")
    notes = " ".join(found.notes)
    assert found.launcher["slurm"] == {"env": kept}
    assert [name for name in (*kept, *others) if name in notes] == [*others][:-1]
    assert "s3cr3t" not in notes


APPTAINER = {"runtime": "apptainer", "image": "/img.sif", "mounts": ["/a:/b"], "gpus": "nv"}
PYXIS = {"runtime": "pyxis", "image": "/i.sqsh", "mounts": ["/a:/a"]}
BINDING = {"srun": ["--cpu-bind=cores", "--gpu-bind=closest"]}


@pytest.mark.parametrize(
    ("commands", "section"),
    [
        ("module load a b/1.2", {"modules": ["a", "b/1.2"]}),
        ("ml old; ml list; module purge; module load cuda/12", {"modules": ["cuda/12"]}),
        ("srun -N 2 apptainer exec --nv -B /a:/b /img.sif python x.py", {"container": APPTAINER}),
        ("srun hostname; srun -l --container-image /i.sqsh --container-mounts /a python x.py", {"container": PYXIS}),
        ("srun --cpu-bind=cores --gpu-bind closest python x.py --cpu-bind=no", {"launch": BINDING}),
        ("srun --exclusive -w n1 --mem=0 python x.py", {}),
    ],
)
def test_commands_give_modules_container_and_options_of_the_step(commands, section):
    assert section_of(read("-N2", commands=commands.split("; "))) == section


def test_the_container_of_the_header_and_of_the_step_is_one_and_what_takes_a_part_of_the_job_is_named():
    header = read("--container-image=/i.sqsh", commands=["srun --container-mounts=/a --exclusive python x.py"])
    assert section_of(header) == {"container": PYXIS}
    origin = "#SBATCH --container-image (line 2), srun --container-mounts (line 3)"
    assert header.origins["launcher.slurm.container"] == origin
    assert "--exclusive of srun" in " ".join(header.notes)


def test_the_variables_of_the_job_follow_from_its_header():
    found = job_variables("#SBATCH -N 2\n#SBATCH --gres=gpu:a100:4\n#SBATCH --ntasks-per-node=4\n")
    counts = "NNODES=2 JOB_NUM_NODES=2 GPUS_ON_NODE=4 NTASKS=8 NPROCS=8 NTASKS_PER_NODE=4"
    assert found == {f"SLURM_{name}": value for name, value in (each.split("=") for each in counts.split())}
    assert job_variables("") == {}


def test_a_script_without_a_header_has_no_launcher_and_an_srun_asks_for_nodes_itself():
    header = read(commands=["srun -N 4 --gpus-per-node=8 -p batch --exclusive python x.py"])
    assert (header.job.nodes.count, header.job.gpus.count, header.notes) == (4, 8, ())
    assert header.launcher == {"kind": "slurm", "slurm": {"partition": "batch", "exclusive": True}}
    header = read(commands=["module load a"])
    assert (header.launcher, header.notes) == ({}, ("The script has no #SBATCH header: its modules were left out.",))


JOB_OF_FOUR = "#SBATCH --nodes=4\n#SBATCH --gpus-per-node=8\n"
PRETRAINING = "pretrain_gpt.py --num-layers 8 --hidden-size 512 --micro-batch-size 1"
PREPARING = "srun -N 1 -n 1 python tools/prepare.py --a 1 --b 2 --c 3"


def launched(command: str, header: str = JOB_OF_FOUR):
    return read_launch_script(f"#!/bin/bash\n{header}{command} {PRETRAINING}")


def test_what_a_branch_adds_to_the_step_is_asked_for():
    found = launched('A="--label"\nif [ -n "$X" ]; then A="$A -N 2 --ntasks 8"; fi\nsrun $A python')
    assert (found.num_nodes, found.gpus_per_node) == (None, None)
    for name in ("nodes", "ntasks"):
        assert f"--{name} does not say a whole number of at least 1: fill in what follows from it." in found.notes


@pytest.mark.parametrize(
    ("command", "ranks", "without_header"),
    [
        ("torchrun --nnodes 4 --nproc-per-node 8", (4, 8), (4, 8)),
        ("torchrun --standalone --nproc-per-node 8", (1, 8), (1, 8)),
        ("srun torchrun --nproc-per-node=gpu --nnodes $SLURM_JOB_NUM_NODES", (4, 8), (None, None)),
        ("torchrun --nproc-per-node 8", (1, 8), (1, 8)),
        ("torchrun --nnodes 4", (4, 1), (4, 1)),
        ("python -m torch.distributed.run --nnodes 2 --nproc_per_node 4", (2, 4), (2, 4)),
        ("torchrun --nnodes $NNODES --nproc-per-node 8", (4, 8), (None, 8)),
        ("N=${SLURM_NNODES:-1}\ntorchrun --nnodes $N --nproc-per-node 8", (4, 8), (None, 8)),
        ("export CUDA_VISIBLE_DEVICES=0,1\ntorchrun --nproc-per-node=gpu", (1, 2), (1, 2)),
        ("export CUDA_VISIBLE_DEVICES=0,1\ndeepspeed", (1, 2), (1, 2)),
        ("deepspeed --num_gpus 8", (1, 8), (1, 8)),
        ("deepspeed", (1, 8), (1, None)),
        ("deepspeed --hostfile hosts", (4, 8), (None, None)),
        ("deepspeed --hostfile hosts --num_nodes 2", (2, 8), (2, None)),
        ("accelerate launch --num_processes 16 --num_machines 4", (4, 4), (4, 4)),
        ("accelerate launch --num_processes 8", (1, 8), (1, 8)),
        (f"{PREPARING}\nsrun --ntasks-per-node=8 python", (4, 8), (None, 8)),
        ("srun -n 16 python", (4, 4), (None, None)),
        ("mpirun -np 16 --map-by ppr:4:node python", (4, 4), (4, 4)),
        ("mpirun -np 16 python", (4, 4), (None, None)),
        ("mpiexec -n 8 -ppn 8 python", (1, 8), (1, 8)),
        ("python", (1, 1), (None, None)),
        ("$LAUNCHER python", (4, 8), (None, None)),
    ],
)
def test_the_ranks_are_those_that_the_command_starts(command, ranks, without_header):
    found, alone = launched(command), launched(command, header="")
    assert (found.num_nodes, found.gpus_per_node) == ranks
    assert (alone.num_nodes, alone.gpus_per_node) == without_header
    for name, count, whole in zip(("num_nodes", "gpus_per_node"), ranks, (4, 8), strict=True):
        note = f"cluster.{name} is {count}, as the command starts"
        assert any(each.startswith(note) for each in found.notes) == (count < whole)


def test_the_number_of_tasks_is_noted_where_the_script_does_not_say_it_and_more_than_the_job_has_refused():
    note = "The number of tasks is not in the script: one for each GPU is assumed."
    commands = ("srun python", "srun --ntasks-per-node=8 python", "srun torchrun --nnodes 4 --nproc-per-node 8")
    assert [note in launched(command).notes for command in commands] == [True, False, False]
    part = launched("srun -N 2 -n 8 python", f"{JOB_OF_FOUR}#SBATCH --ntasks-per-node=8\n")
    assert (part.num_nodes, part.gpus_per_node) == (2, 4)
    by = "as the command starts its ranks (srun --nodes (line 5))"
    assert f"cluster.num_nodes is 2, {by}; the job has 4." in part.notes
    more = {
        "srun -N 8 python": r"num_nodes is 8 in the command \(srun --nodes .* and 4 in the job",
        "srun --ntasks-per-node=8 --gpus-per-node=4 python": r"gpus_per_node is 8 in .*--ntasks-per-node .* and 4 in",
        "torchrun --nnodes 4 --nproc-per-node 16": r"gpus_per_node is 16 in .*\(--nproc-per-node .* and 8 in the job",
    }
    for command, words in more.items():
        with pytest.raises(InputError, match=words):
            launched(command)
