import pytest

from slurm.environment import (
    RANK_NAMES,
    InheritedOption,
    cluster_key,
    cluster_variables,
    inherited_options,
    query_environment,
    submission_environment,
)

USERS_OWN = {"PATH": "/usr/bin", "HOME": "/home/me", "PYTHONPATH": "/modules/torch", "MLFLOW_TRACKING_URI": "x"}


@pytest.mark.security("environment")
def test_variables_of_other_jobs_and_launchers_do_not_reach_sbatch():
    of_jobs = ("SLURM_JOB_ID", "SLURM_NNODES", "SLURMD_NODENAME", "SLURM_EXIT_ERROR", "SCANCEL_USER", "PMIX_RANK")
    of_commands = ("SBATCH_PARTITION", "SBATCH_CLUSTERS", "SRUN_CPUS_PER_TASK", "SALLOC_PARTITION", "SQUEUE_FORMAT")
    others = ("SACCT_FORMAT", "PMI_FD", "OMPI_COMM_WORLD_SIZE")
    foreign = dict.fromkeys((*RANK_NAMES, *of_jobs, *of_commands, *others), "1")
    finds = {"SLURM_CONF": "/etc/slurm/slurm.conf", "SLURM_CLUSTERS": "big", "SLURM_JWT": "token"}
    assert submission_environment({**USERS_OWN, **foreign, **finds}) == {**USERS_OWN, **finds}


def test_queries_print_utc_whatever_the_user_prefers():
    preferred = {"TZ": "Asia/Tokyo", "SLURM_TIME_FORMAT": "relative", "LC_ALL": "de_DE"}
    ours = {"TZ": "UTC", "SLURM_TIME_FORMAT": "standard", "LC_ALL": "C"}
    assert query_environment({**USERS_OWN, **preferred}) == {**USERS_OWN, **ours}


def test_what_the_environment_would_have_asked_of_sbatch_is_reported_by_our_names():
    environ = {"SBATCH_ACCOUNT": "mine", "SLURM_ACCOUNT": "other", "SBATCH_QOS": "debug", "SBATCH_PARTITION": ""}
    account, qos = InheritedOption("SBATCH_ACCOUNT", "mine"), InheritedOption("SBATCH_QOS", "debug")
    assert inherited_options({**USERS_OWN, **environ}) == {"account": account, "qos": qos}
    assert inherited_options({"SLURM_ACCOUNT": "other"}) == {"account": InheritedOption("SLURM_ACCOUNT", "other")}
    assert inherited_options(USERS_OWN) == {}


@pytest.mark.parametrize(
    ("environ", "options"),
    [
        ({"SBATCH_GPUS_PER_NODE": "2"}, {"gpus_per_node": "2"}),
        ({"SBATCH_GPUS_PER_NODE": "v100:2,a100:1"}, {"gres": "gpu:v100:2,gpu:a100:1"}),
        ({"SBATCH_GPUS_PER_NODE": "v100:2", "SBATCH_GRES": "ssd:1"}, {"gres": "ssd:1,gpu:v100:2"}),
        ({"SBATCH_EXCLUSIVE": ""}, {"exclusive": ""}),  # sbatch takes it for whole nodes
    ],
)
def test_gpus_of_a_kind_and_whom_nodes_are_shared_with_are_carried_as_they_were_meant(environ, options):
    found = inherited_options(environ)
    assert {name: option.value for name, option in found.items()} == options
    assert all(variable in " ".join(option.variable for option in found.values()) for variable in environ)


@pytest.mark.parametrize("variable", ["SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS"])
def test_two_configurations_are_two_clusters(variable):
    assert cluster_key({variable: "/a"}) != cluster_key({variable: "/b"})
    assert cluster_variables({variable: "/a", "SBATCH_CLUSTERS": "b", "SLURM_JOB_ID": "7"}) == {variable: "/a"}
    assert cluster_variables({variable: ""}) == {}
    assert cluster_key(USERS_OWN) == cluster_key({})
