import re
from dataclasses import replace

import pytest

from slurm.options import option_problems, option_warnings
from slurm.request import Container, JobOptions, Launch

FULL = JobOptions(
    account="project_465.x@y",
    partition="boost_usr_prod,dev-g",
    qos="boost_qos_dbg",
    reservation="maint-1",
    constraint="[rack1|rack2]&nvlink*2",
    cpus_per_task=7,
    threads_per_core=1,
    mem="480G",
    gpus_per_node=8,
    gres="nvme:1,fs/scratch:2",
    exclusive=True,
    exclude=("n[1-4,7]", "gpu001"),
    nodelist=("r[1-2]-ib[0-1],login",),
    network="disable_rdzv_get,job_vni",
    licenses="matlab@db:2,x",
    comment="tuning,gpt=7b",
    signal="B:USR1@60",
    modules=("PrgEnv-gnu", "rocm/6.0.2", "gcc/12.2+cuda"),
    env={"NCCL_SOCKET_IFNAME": "hsn0,hsn1", "FREE_TEXT": "a 'b' \"c\" $d `e`; #f"},
    setup_file="/home/me/my setup.sh",
    container=Container(words=("apptainer", "exec", "--nv", "--bind=/a:/b", "image with blank.sif")),
    launch=Launch(
        srun=("--cpu-bind=mask_cpu:fe,fe00", "--hint=nomultithread", "--unbuffered"),
        visible_devices="ROCR_VISIBLE_DEVICES",
        node_folders={"MIOPEN_USER_DB_PATH": "/tmp"},
        address="{host}i",
    ),
    directives=(
        "--switches=1@00:10:00",
        "--gpu-bind=closest",
        "--container-image=docker://nvcr.io/nvidia/pytorch:24.01",
    ),
)
SMUGGLED = ("a b", "a\nb", "a\n", 'a"b', "a'b", "a$b", "a`b", "a;b", "a#b", "a\\b", "-a", "", " a", "a\tb", "ä", "a\0")
TEXT_OPTIONS = (
    *("account", "partition", "qos", "reservation", "constraint", "gres", "mem"),
    *("network", "licenses", "comment", "signal"),
)


def keys(**changes):
    problems = option_problems(replace(JobOptions(), **changes))
    for problem in problems:
        assert problem.rule
        assert problem.fix
    return [problem.key for problem in problems]


def test_what_real_sites_need_passes():
    assert option_problems(FULL) == ()
    assert option_problems(JobOptions()) == ()


@pytest.mark.bad_input(23)
@pytest.mark.security("directive_values")
@pytest.mark.parametrize("key", TEXT_OPTIONS)
@pytest.mark.parametrize("value", SMUGGLED)
def test_a_value_that_could_end_or_hide_a_directive_is_refused(key, value):
    assert keys(**{key: value}) == [key]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("mem", "lots"),
        ("mem", "4 G"),
        ("signal", "USR1@"),
        ("signal", "usr1"),
        ("gres", "gpu:a:1:2"),
        ("account", "a,b"),
    ],
)
def test_a_value_of_another_form_is_refused(key, value):
    assert keys(**{key: value}) == [key]


@pytest.mark.parametrize(("key", "value"), [("gpus_per_node", 0), ("cpus_per_task", -1), ("cpus_per_task", 10**12)])
def test_counts_have_bounds(key, value):
    assert keys(**{key: value}) == [key]


def test_gpus_are_asked_for_once():
    assert keys(gpus_per_node=4, gres="nvme:1,gpu:a100:4") == ["gres"]
    assert keys(gres="gpu:4") == []


@pytest.mark.bad_input(29)
@pytest.mark.parametrize("key", ["exclude", "nodelist"])
@pytest.mark.parametrize("value", ["n[1-", "n[1-100001]", "", "n1;x", "$(hostname)", "-n1"])
def test_what_is_no_host_list_is_refused(key, value):
    assert keys(**{key: ("n1", value)}) == [f"{key}[1]"]


@pytest.mark.bad_input(29)
def test_host_lists_have_a_cap_together():
    assert keys(exclude=("a[1-60000]", "b[1-60000]")) == ["exclude"]


@pytest.mark.bad_input(28)
@pytest.mark.parametrize("module", [*SMUGGLED, "../x", "/abs", "a//b", "a/"])
def test_a_module_with_shell_characters_is_refused(module):
    assert keys(modules=("gcc", module)) == ["modules[1]"]


@pytest.mark.bad_input(26)
@pytest.mark.parametrize("name", ["", "1A", "A-B", "A B", "A=B", "Ä", "A\n", "BASH_FUNC_x%%"])
def test_a_variable_that_no_shell_accepts_is_refused(name):
    assert keys(env={name: "x"}) == [f"env.{name}"]


@pytest.mark.bad_input(26)
@pytest.mark.parametrize(
    "name",
    [
        *("SLURM_CONF", "SBATCH_QOS", "SRUN_CPUS_PER_TASK", "PMI_RANK", "PMIX_X"),
        *("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK"),
    ],
)
def test_variables_of_slurm_and_of_the_ranks_are_refused(name):
    assert keys(env={name: "x"}) == [f"env.{name}"]


@pytest.mark.bad_input(26)
@pytest.mark.parametrize("value", ["a\nb", "a\0b"])
def test_a_variable_of_several_lines_is_refused(value):
    assert keys(env={"A": value}) == ["env.A"]


@pytest.mark.bad_input(26)
def test_variables_that_decide_what_runs_are_allowed_with_a_word():
    options = JobOptions(env={"PATH": "/x", "LD_PRELOAD": "y.so", "A": "b"})
    assert option_problems(options) == ()
    assert {warning.key for warning in option_warnings(options)} == {"env.PATH", "env.LD_PRELOAD"}
    assert option_warnings(FULL) == ()


def test_gpus_of_a_whole_job_are_refused_since_a_step_of_a_pilot_has_a_part_of_its_nodes():
    [problem] = option_problems(JobOptions(directives=("--gpus=8",)))
    assert problem.key == "directives[0]"
    assert (problem.value, problem.fix) == ("--gpus=8", "set gpus_per_node instead")
    assert problem.rule == "GPUs are asked for by the node; --gpus counts those of a whole job"


@pytest.mark.parametrize("path", ["", "setup.sh", "~/setup.sh", "/a\nb"])
def test_a_setup_file_is_an_absolute_path(path):
    assert keys(setup_file=path) == ["setup_file"]


@pytest.mark.bad_input(30)
@pytest.mark.parametrize("container", [("",), ("-x",), ("$(x)",), ("a;b", "c")])
def test_a_container_begins_with_a_command(container):
    assert "container[0]" in keys(container=Container(words=container))


@pytest.mark.parametrize("token", ["", "a\nb", "a\0"])
def test_a_container_is_a_list_of_words(token):
    assert keys(container=Container(words=("apptainer", token))) == ["container[1]"]


@pytest.mark.bad_input(25)
@pytest.mark.parametrize(
    "directive",
    [
        *("", "--exclusive", "-N2", "-p x", "switches=1", "--switches 1", "--switches=", "--=x", "#SBATCH --x=1"),
        *(
            "--switches=1 --uid=0",
            "--switches=1\n#SBATCH --uid=0",
            "--x='a'",
            '--x="a"',
            "--x=$A",
            "--x=`a`",
            "--x=a;b",
        ),
        *("--x=a#b", "--x=a\\b", "--X=1", "--x=ä", "---x=1"),
    ],
)
def test_a_directive_is_one_long_option_with_a_value(directive):
    assert keys(directives=("--switches=1", directive)) == ["directives[1]"]


OWN = [
    "job-name",
    "output",
    "error",
    "array",
    "parsable",
    "wrap",
    "export",
    "nodes",
    "ntasks",
    "ntasks-per-node",
    "time",
]
OWN += ["chdir", "requeue", "no-requeue", "open-mode", "dependency", "uid", "gid", "get-user-env", "clusters", "hold"]


@pytest.mark.bad_input(24, 25)
@pytest.mark.parametrize("key", OWN)
def test_a_directive_may_not_set_what_parlay_sets_nor_who_runs_the_job(key):
    assert keys(directives=(f"--{key}=1",)) == ["directives[0]"]


@pytest.mark.bad_input(24, 25)
@pytest.mark.parametrize("key", ["job-na", "outp", "arr", "ui", "get-user", "depend", "wra", "part", "exclud"])
def test_nor_by_the_beginning_of_a_key_which_sbatch_would_take_for_the_whole(key):
    assert keys(directives=(f"--{key}=1",)) == ["directives[0]"]


@pytest.mark.parametrize("key", ["account", "exclude", "gpus-per-node", "mem", "signal"])
def test_nor_what_has_a_key_of_its_own(key):
    [problem] = option_problems(JobOptions(directives=(f"--{key}=1",)))
    assert key.replace("-", "_") in problem.fix


def test_every_problem_is_told_at_once_in_the_order_of_the_options():
    assert keys(account="a b", cpus_per_task=0, modules=("x y",), directives=("x",)) == [
        "account",
        "cpus_per_task",
        "modules[0]",
        "directives[0]",
    ]


def test_rules_name_no_pattern_but_words():
    problems = option_problems(replace(JobOptions(), **dict.fromkeys(TEXT_OPTIONS, "a b")))
    assert len(problems) == len(TEXT_OPTIONS)
    assert not any(re.search(r"\{0,|\[A-Z", problem.rule) for problem in problems)
