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
from slurm.srun_command import exported

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


@pytest.mark.parametrize(
    "options",
    [
        *(FULL, JobOptions(), JobOptions(gres="gpu:4"), JobOptions(segment=0, exclusive="topo")),
        *(JobOptions(dependency=f"after{one}") for one in (":1+10", "ok:1?afternotok:2", "corr:9", "any:1:2:3")),
    ],
)
def test_what_real_sites_need_passes(options):
    assert option_problems(options) == ()


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


TOKENS = ("", "a\nb", "a\0")
BOTH = {"gpus_per_node": 4, "gres": "nvme:1,gpu:a100:4"}
NO_LISTS = ("n[1-", "n[1-100001]", "n[0-999999]", "n[1-99999999999999]", "", "n1;x", "n 1", "$(hostname)", "-n1")
NO_MODULES = (*SMUGGLED, "../x", "/abs", "a//b", "a/", "$(id)", "torch; rm -rf x")
NO_NAMES = ("", "1A", "A-B", "A B", "A=B", "Ä", "A\n", "BASH_FUNC_x%%")
NO_DEPENDENCIES = ("12345", "afterok", "afterok:x", "afterok:1,afterany:2?after:3", "singleton")
OF_OTHERS = (
    *("SLURM_CONF", "SLURM_NTASKS", "SBATCH_QOS", "SRUN_CPUS_PER_TASK", "PMI_RANK", "PMIX_X"),
    *("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK"),
)
FORMS = {
    "mem": ("lots", "4 G"),
    "signal": ("USR1@", "usr1"),
    "gres": ("gpu:a:1:2",),
    "account": ("a,b",),
    "exclusive": ("mine",),
    "setup_file": ("", "setup.sh", "~/setup.sh", "/a\nb"),
    "gpus_per_node": (0, 65),
    "cpus_per_task": (-1, 10**12),
    "threads_per_core": (0, 9),
    "segment": (-1, 100_001),
    "dependency": NO_DEPENDENCIES,
}
"""Values of a wrong form or out of bounds, by option."""


@pytest.mark.bad_input(23, 26, 28, 29, 30)
@pytest.mark.parametrize(
    "cases",
    [
        [({key: value}, key, value) for key, values in FORMS.items() for value in values],
        [(BOTH, "gres", BOTH["gres"])],
        [({key: ("n1", text)}, f"{key}[1]", text) for key in ("exclude", "nodelist") for text in NO_LISTS],
        [({"exclude": ("a[1-60000]", "b[1-60000]")}, "exclude", 120_000)],
        [({"modules": ("gcc", module)}, "modules[1]", module) for module in NO_MODULES],
        [({"env": {name: "x"}}, f"env.{name}", name) for name in NO_NAMES],
        [({"env": {name: "x"}}, f"env.{name}", name) for name in OF_OTHERS],
        [({"env": {"A": value}}, "env.A", value) for value in TOKENS[1:]],
        [({"container": Container(command=("apptainer", one))}, "container[1]", one) for one in TOKENS],
    ],
    ids=["form", "gpus twice", "hosts", "too many", "module", "name", "of others", "lines", "container"],
)
def test_what_no_script_may_hold_is_refused(cases):
    assert not_refused(*cases) == []


@pytest.mark.bad_input(26)
@pytest.mark.security("no_shell")
@given(st.text().filter(lambda text: "\n" not in text and "\0" not in text))
def test_a_variable_arrives_in_a_script_as_it_was_given_whatever_it_holds(value):
    assert not option_problems(JobOptions(env={"A": value}))
    [line] = exported({"A": value})
    assert shlex.split(line) == ["export", f"A={value}"]


@pytest.mark.bad_input(26)
def test_variables_that_decide_what_runs_are_allowed_with_a_word():
    options = JobOptions(env={"PATH": "/x", "LD_PRELOAD": "y.so", "A": "b"})
    assert option_problems(options) == ()
    assert {warning.key for warning in option_warnings(options)} == {"env.PATH", "env.LD_PRELOAD"}
    assert option_warnings(FULL) == ()


@pytest.mark.bad_input(30)
def test_a_container_begins_with_a_command():
    for words in (("",), ("-x",), ("$(x)",), ("a;b", "c"), ("apptainer exec; id",)):
        assert ("container[0]", words[0], True) in _refused({"container": Container(command=words)}), words


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


OF_PARLAY = (
    *("job-name", "output", "error", "array", "parsable", "wrap", "export", "nodes", "ntasks", "ntasks-per-node"),
    *("time", "chdir", "requeue", "no-requeue", "open-mode", "dependency", "clusters", "hold"),
)
BEGINNINGS = ("job-na", "outp", "arr", "exp", "ui", "get-user", "depend", "wra", "part", "exclud")
"""Of keys; sbatch takes them for the whole."""
OF_AN_OPTION = ("account", "partition", "exclude", "gpus-per-node", "mem", "signal", "gpus")
SHAPES = (
    *("", "--exclusive", "-N2", "-N 4", "-p x", "switches=1", "--switches 1", "--switches=", "--=x"),
    *("#SBATCH --x=1", "--switches=1 --uid=0", "--switches=1\n#SBATCH --uid=0"),
)
SIGNS = ("--x='a'", '--x="a"', "--x=$A", "--x=`a`", "--x=a;b", "--x=a#b", "--x=a\\b", "--X=1", "--x=ä", "---x=1")
KEYS = (*OF_PARLAY, "uid", "gid", "get-user-env", *BEGINNINGS, *OF_AN_OPTION)


@pytest.mark.bad_input(24, 25)
@pytest.mark.parametrize("directives", [SHAPES, SIGNS, [f"--{key}=1" for key in KEYS]])
def test_a_directive_is_one_long_option_that_sets_nothing_of_parlay_nor_who_runs_the_job(directives):
    cases = (({"directives": ("--switches=1", text)}, "directives[1]", text) for text in directives)
    assert not_refused(*cases) == []


@pytest.mark.bad_input(24)
@pytest.mark.parametrize("key", OF_AN_OPTION)
def test_a_directive_that_has_a_key_of_its_own_is_told_which(key):
    [problem] = option_problems(JobOptions(directives=(f"--{key}=8",)))
    assert {"gpus": "gpus_per_node"}.get(key, key.replace("-", "_")) in problem.fix


def test_every_problem_is_reported_at_once_in_the_order_of_the_options():
    options = JobOptions(account="a b", cpus_per_task=0, modules=("x y",), directives=("x",))
    keys = ["account", "cpus_per_task", "modules[0]", "directives[0]"]
    assert [problem.key for problem in option_problems(options)] == keys
    rules = [problem.rule for problem in option_problems(JobOptions(**dict.fromkeys(TEXT_OPTIONS, "a b")))]
    assert len(rules) == len(TEXT_OPTIONS)
    assert not any(re.search(r"\{0,|\[A-Z", rule) for rule in rules), "a pattern is no rule for people"
