"""Checks of job options: one table for each rule."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm.option_checks import option_problems, option_warnings
from slurm.request import Container, JobOptions, Launch, Runtime
from slurm.shell_quoting import exports

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
    dependency="afterok:12:34+5,afterany:56",
    modules=("PrgEnv-gnu", "rocm/6.0.2", "gcc/12.2+cuda"),
    env={"NCCL_SOCKET_IFNAME": "hsn0,hsn1", "FREE_TEXT": "a 'b' \"c\" $d `e`; #f"},
    setup_file="/home/me/my setup.sh",
    container=Container(command=("apptainer", "exec", "--nv", "--bind=/a:/b", "image with blank.sif")),
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
SMUGGLED = (
    *("a b", "a\nb", "a\n", 'a"b', "a'b", "a$b", "$HOME", "a`b", "`id`", "a;b", "a#b", "a\\b", "a>b", "-a", "-Aroot"),
    *("", " a", "a\tb", "ä", "a\0"),
)
TEXT_OPTIONS = (
    *("account", "partition", "qos", "reservation", "constraint", "gres", "mem"),
    *("network", "licenses", "comment", "signal", "exclusive", "dependency"),
)
Case = tuple[dict[str, Any], str, object]
"""Options, and the one key and value that are refused."""


def not_refused(*cases: Case) -> list[Case]:
    """Return the cases that are not refused with just this key and value, a rule and a fix."""
    return [case for case in cases if _refused(case[0]) != [(case[1], case[2], True)]]


def _refused(options: dict[str, Any]) -> list[tuple[str, object, bool]]:
    return [(p.key, p.value, bool(p.rule and p.fix)) for p in option_problems(JobOptions(**options))]


def test_what_real_sites_need_passes():
    assert option_problems(FULL) == ()
    assert option_problems(JobOptions()) == ()


@pytest.mark.bad_input(23)
@pytest.mark.security("directive_values")
def test_a_value_that_could_end_or_hide_a_directive_is_refused():
    assert not_refused(*(({key: value}, key, value) for key in TEXT_OPTIONS for value in SMUGGLED)) == []


@pytest.mark.bad_input(23)
@pytest.mark.security("directive_values")
@given(st.sampled_from(TEXT_OPTIONS), st.text())
def test_whatever_passes_is_one_word_that_no_shell_reads(key, value):
    if not option_problems(JobOptions(**{key: value})):
        assert value.isascii()
        assert value.isprintable()
        assert not set(value) & set(" \t\"'`$;#\\<>\n")
        assert value[0] != "-"


def test_a_value_of_another_form_is_refused():
    values = [("mem", "lots"), ("mem", "4 G"), ("signal", "USR1@"), ("signal", "usr1"), ("gres", "gpu:a:1:2")]
    values += [("account", "a,b"), ("exclusive", "mine")]
    assert not_refused(*(({key: value}, key, value) for key, value in values)) == []


def test_counts_have_bounds():
    counts = [("gpus_per_node", 0), ("gpus_per_node", 65), ("cpus_per_task", -1), ("cpus_per_task", 10**12)]
    counts += [("threads_per_core", 0), ("threads_per_core", 9), ("segment", -1), ("segment", 100_001)]
    assert not_refused(*(({key: value}, key, value) for key, value in counts)) == []


def test_gpus_are_asked_for_once():
    both = {"gpus_per_node": 4, "gres": "nvme:1,gpu:a100:4"}
    assert not_refused((both, "gres", both["gres"])) == []
    assert option_problems(JobOptions(gres="gpu:4")) == ()
    assert option_problems(JobOptions(segment=0, exclusive="topo")) == ()


@pytest.mark.bad_input(29)
def test_what_is_no_host_list_is_refused():
    lists = ("n[1-", "n[1-100001]", "n[0-999999]", "n[1-99999999999999]", "", "n1;x", "n 1", "$(hostname)", "-n1")
    cases = (({key: ("n1", text)}, f"{key}[1]", text) for key in ("exclude", "nodelist") for text in lists)
    assert not_refused(*cases) == []


@pytest.mark.bad_input(29)
def test_host_lists_have_a_cap_together():
    assert not_refused(({"exclude": ("a[1-60000]", "b[1-60000]")}, "exclude", 120_000)) == []


@pytest.mark.bad_input(28)
def test_a_module_with_shell_characters_is_refused():
    modules = (*SMUGGLED, "../x", "/abs", "a//b", "a/", "$(id)", "torch; rm -rf x")
    assert not_refused(*(({"modules": ("gcc", module)}, "modules[1]", module) for module in modules)) == []


@pytest.mark.bad_input(26)
def test_a_variable_that_no_shell_accepts_is_refused():
    names = ("", "1A", "A-B", "A B", "A=B", "Ä", "A\n", "BASH_FUNC_x%%")
    assert not_refused(*(({"env": {name: "x"}}, f"env.{name}", name) for name in names)) == []


@pytest.mark.bad_input(26)
def test_variables_of_slurm_and_of_the_ranks_are_refused():
    names = ["SLURM_CONF", "SLURM_NTASKS", "SBATCH_QOS", "SRUN_CPUS_PER_TASK", "PMI_RANK", "PMIX_X"]
    names += ["MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK"]
    assert not_refused(*(({"env": {name: "x"}}, f"env.{name}", "x") for name in names)) == []


@pytest.mark.bad_input(26)
def test_a_variable_of_several_lines_is_refused():
    assert not_refused(*(({"env": {"A": value}}, "env.A", value) for value in ("a\nb", "a\0b"))) == []


@pytest.mark.bad_input(26)
@pytest.mark.security("no_shell")
@given(st.text().filter(lambda text: "\n" not in text and "\0" not in text))
def test_a_variable_arrives_in_a_script_as_it_was_given_whatever_it_holds(value):
    assert not option_problems(JobOptions(env={"A": value}))
    [line] = exports({"A": value})
    assert shlex.split(line) == ["export", f"A={value}"]


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
    assert problem.rule == "GPUs are requested per node; --gpus is the number for a whole job"


def test_a_setup_file_is_an_absolute_path():
    paths = ("", "setup.sh", "~/setup.sh", "/a\nb")
    assert not_refused(*(({"setup_file": path}, "setup_file", path) for path in paths)) == []


@pytest.mark.bad_input(30)
def test_a_container_begins_with_a_command():
    for words in (("",), ("-x",), ("$(x)",), ("a;b", "c"), ("apptainer exec; id",)):
        assert ("container[0]", words[0], True) in _refused({"container": Container(command=words)}), words


@pytest.mark.bad_input(30)
def test_a_container_is_a_list_of_words():
    tokens = ("", "a\nb", "a\0")
    cases = (({"container": Container(command=("apptainer", token))}, "container[1]", token) for token in tokens)
    assert not_refused(*cases) == []


@pytest.mark.bad_input(30)
def test_an_image_or_mount_that_says_more_than_one_thing_is_refused():
    images = (None, "a b", "a,b", "/x.sif; id", "--writable", "/images/../etc/x.sif")
    mounts = ("/data", "/data:/data,/etc:/etc", "/data:/data:ro:rw", "/data:/data:rx", "/a:/b:/c", "data:/data")
    mounts += ("/data:/data/../etc", "/data/../etc:/data", "/my data:/data", "/$HOME:/data")
    cases: list[Case] = [({"image": image}, "image", image) for image in images]
    cases += [({"mounts": ("/a:/b", mount)}, "mounts[1]", mount) for mount in mounts]
    cases += [({"command": ("apptainer",)}, "command", ["apptainer"]), ({"gpus": "nv"}, "gpus", "nv")]
    cases += [({"runtime": Runtime.SHIFTER, "writable": True}, "writable", True)]
    pyxis = {"runtime": Runtime.PYXIS, "image": "x.sqsh"}
    whole = [({"container": Container(**pyxis | given)}, f"container.{key}", value) for given, key, value in cases]
    assert not_refused(*whole) == []


@pytest.mark.bad_input(26)
@pytest.mark.security("no_shell")
def test_a_launch_line_that_parlay_could_not_keep_is_refused():
    words = ("--ntasks=9", "--output=x", "--job-name=x", "--cpu-bind=cores --uid=0", "--cpu-bind=cores; id")
    words += ("--mpi=$(id)", "cpu-bind=cores")
    folders = ("tmp", "/tmp/$USER", "/tmp;id", "/tmp/../etc")
    cases: list[Case] = [({"srun": ("--cpu-bind=cores", word)}, "srun[1]", word) for word in words]
    cases += [({"node_folders": {"TMPDIR": below}}, "node_folders.TMPDIR", below) for below in folders]
    cases += [({"node_folders": {name: "/tmp"}}, f"node_folders.{name}", name) for name in ("RANK", "A-B", "A;B")]
    cases += [({"address": text}, "address", text) for text in ("node1", "{host}{ip}", "{host};id", "{fqdn};id")]
    cases += [({"visible_devices": name}, "visible_devices", name) for name in ("RANK", "X=$(id)")]
    shown_twice = {"visible_devices": "ROCR_VISIBLE_DEVICES", "srun": ("--gpus-per-task=1",)}
    cases.append((shown_twice, "visible_devices", "ROCR_VISIBLE_DEVICES"))
    assert not_refused(*(({"launch": Launch(**given)}, f"launch.{key}", value) for given, key, value in cases)) == []


def not_refused_directives(*directives: str) -> list[Case]:
    return not_refused(*(({"directives": ("--switches=1", text)}, "directives[1]", text) for text in directives))


@pytest.mark.bad_input(25)
def test_a_directive_is_one_long_option_with_a_value():
    shapes = ("", "--exclusive", "-N2", "-N 4", "-p x", "switches=1", "--switches 1", "--switches=", "--=x")
    shapes += ("#SBATCH --x=1", "--switches=1 --uid=0", "--switches=1\n#SBATCH --uid=0")
    signs = ("--x='a'", '--x="a"', "--x=$A", "--x=`a`", "--x=a;b", "--x=a#b", "--x=a\\b", "--X=1", "--x=ä", "---x=1")
    assert not_refused_directives(*shapes, *signs) == []


@pytest.mark.bad_input(24, 25)
def test_a_directive_may_not_set_what_parlay_sets_nor_who_runs_the_job():
    own = ["job-name", "output", "error", "array", "parsable", "wrap", "export", "nodes", "ntasks", "ntasks-per-node"]
    own += ["time", "chdir", "requeue", "no-requeue", "open-mode", "dependency", "clusters", "hold"]
    others = ["uid", "gid", "get-user-env"]
    assert not_refused_directives(*(f"--{key}=1" for key in own + others)) == []


@pytest.mark.bad_input(24, 25)
def test_nor_by_the_beginning_of_a_key_which_sbatch_would_take_for_the_whole():
    beginnings = ("job-na", "outp", "arr", "exp", "ui", "get-user", "depend", "wra", "part", "exclud")
    assert not_refused_directives(*(f"--{key}=1" for key in beginnings)) == []


@pytest.mark.bad_input(24)
@pytest.mark.parametrize("key", ["account", "partition", "exclude", "gpus-per-node", "mem", "signal"])
def test_nor_what_has_a_key_of_its_own(key):
    [problem] = option_problems(JobOptions(directives=(f"--{key}=1",)))
    assert problem.key == "directives[0]"
    assert key.replace("-", "_") in problem.fix


def test_every_problem_is_reported_at_once_in_the_order_of_the_options():
    options = JobOptions(account="a b", cpus_per_task=0, modules=("x y",), directives=("x",))
    assert [problem.key for problem in option_problems(options)] == [
        "account",
        "cpus_per_task",
        "modules[0]",
        "directives[0]",
    ]


def test_rules_name_no_pattern_but_words():
    problems = option_problems(JobOptions(**dict.fromkeys(TEXT_OPTIONS, "a b")))
    assert len(problems) == len(TEXT_OPTIONS)
    assert not any(re.search(r"\{0,|\[A-Z", problem.rule) for problem in problems)


@pytest.mark.parametrize("dependency", ["after:1+10", "afterok:1?afternotok:2", "aftercorr:9", "afterany:1:2:3"])
def test_a_dependency_is_one_of_sbatch_on_jobs(dependency):
    assert option_problems(JobOptions(dependency=dependency)) == ()


@pytest.mark.parametrize("dependency", ["12345", "afterok", "afterok:x", "afterok:1,afterany:2?after:3", "singleton"])
def test_another_dependency_is_refused(dependency):
    [problem] = option_problems(JobOptions(dependency=dependency))
    assert (problem.key, problem.value) == ("dependency", dependency)
