"""Connection to Ray: supervising actors for ranks, and actors for other work on this machine. Only this file imports
ray.

Either a private Ray (loopback, a token, no dashboard, a private directory), or the user's cluster by its address, which
is never shut down. `ray stop` is never called: it ends every Ray on the node, whoever owns it.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from orchestrator.launchers import private_tmp, process_identity
from orchestrator.launchers.local import fork_servers, processes
from orchestrator.launchers.local.fork_servers import PRELOAD_VARIABLE
from orchestrator.launchers.local.processes import GroupPlan, GroupReport, RankExit, RankProcess
from orchestrator.launchers.private_tmp import make_private_folder, remove_abandoned
from orchestrator.launchers.ray import node_actor
from orchestrator.launchers.ray.node_actor import ForkServerHost, NodeJob, NodeSupervisor, RayJob
from search_spaces.errors import ExternalError
from trials.fork_server import owner
from trials.ranks import kernel_oom, tied_start

RANK_SLOTS = "parlay_rank_slots"
_NAMESPACE = "parlay"
_CONNECT_TIMEOUT_S = 10.0
_CLOSE_TIMEOUT_S = 5.0
_HOST_TIMEOUT_S = 20.0  # Ray takes seconds to start an actor's process
_OBJECT_STORE_BYTES = 80 * 2**20  # for plans and reports only; Ray requires at least 75 MiB


class RayUnavailable(ExternalError):
    """No Ray could be started or reached, perhaps temporarily."""


class WorkLost(Exception):
    """The actor died before its work was done; the message is Ray's own."""


class Work(Protocol):
    """Work for an actor: `run` it to its end; `stop` and `kill`, called from another thread, let it return early.

    It is pickled by name, so its module is imported in the actor.
    """

    def run(self) -> Any: ...
    def stop(self) -> None: ...
    def kill(self) -> None: ...


class Worker:
    """Actor for one piece of work in a separate process, with the starter's environment: Ray's would hide the GPUs."""

    def __init__(self, work: Work, environment: Mapping[str, str]):
        os.environ.clear()
        os.environ.update(environment)
        self._work = work

    def run(self) -> Any:
        return self._work.run()

    def stop(self) -> None:
        self._work.stop()

    def kill(self) -> None:
        self._work.kill()


@dataclass(frozen=True)
class RayWork:
    """A worker and the reference to its result."""

    actor: Any
    result_ref: Any


def _describe_start_error(error: Exception) -> str:
    """Reason why Ray did not start; its own message for a timeout speaks of its parts."""
    if "timed out" in str(error).lower() or isinstance(error, TimeoutError):
        return "it did not start in time on this machine, which may be busy or short of memory"
    return f"{type(error).__name__}: {error}"


SENT_MODULES = (process_identity, private_tmp, kernel_oom, tied_start, processes, owner, fork_servers, node_actor)
"""Modules of the supervisors, pickled by value, since the nodes' Python need not have Parlay."""


class RayRuntime:
    """A connection to Ray. Not thread-safe."""

    def __init__(self, ray: Any, private_folder: Path | None = None):
        self._ray = ray
        self._private_folder = private_folder
        for module in (*SENT_MODULES, sys.modules[__name__]):
            ray.cloudpickle.register_pickle_by_value(module)
        self._actor_class = ray.remote(_Supervisor)
        self._fork_server_hosts: dict[str, Any] = {}

    @classmethod
    def start_loopback(cls, rank_slots: int, num_gpus: int) -> RayRuntime:
        """Start a private Ray on this machine, which ends with this process. Raises RayUnavailable."""
        ray, folder = _import_ray(), _make_private_folder()
        try:
            _secure_loopback(ray)
            with _preserved_signal_handlers(), _servers_in_own_process_groups(ray):
                ray.init(
                    address="local",
                    num_cpus=1,
                    num_gpus=num_gpus,
                    resources={RANK_SLOTS: rank_slots},
                    object_store_memory=_OBJECT_STORE_BYTES,
                    include_dashboard=False,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    _temp_dir=str(folder / "r"),  # Ray's own directory is world-readable; its parent is private
                )
        except Exception as error:  # Ray raises errors of sockets, files, timeouts and its own
            cls(ray, folder).close()
            raise RayUnavailable(_describe_start_error(error)) from error
        return cls(ray, folder)

    @classmethod
    def connect(cls, address: str) -> RayRuntime:
        """Connect to the running cluster at this address. Raises RayUnavailable."""
        ray = _import_ray()
        try:
            _require_listener(address)
            with _preserved_signal_handlers():
                ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except Exception as error:
            raise RayUnavailable(f"{type(error).__name__}: {error}") from error
        return cls(ray)

    @property
    def is_alive(self) -> bool:
        """False once a private Ray has lost one of its two servers; a user's cluster always counts as alive.

        Any call to a dead Ray but `close` blocks for a minute and then ends this process.
        """
        if self._private_folder is None:
            return True
        node = self._ray._private.worker._global_node
        dead = [name for name, _ in node.dead_processes()] if node else ["raylet"]
        return "gcs_server" not in dead and "raylet" not in dead

    def bundle(self, on_gpus: bool, ranks: int) -> dict[str, float]:
        """Return the resources that `ranks` ranks of one node take.

        On a private Ray a CPU rank takes a slot and not a core: this machine may have fewer cores than ranks.
        """
        if on_gpus:
            return {"GPU": ranks}
        return {"CPU" if self._private_folder is None else RANK_SLOTS: ranks}

    def begin(self, work: Work, environment: Mapping[str, str]) -> RayWork:
        """Start this work in an actor of its own, which takes no resources. Returns at once."""
        options = {"num_cpus": 0, "max_restarts": 0, "max_concurrency": 2}  # `stop` is called while `run` runs
        actor = self._ray.remote(Worker).options(**options).remote(work, dict(environment))
        return RayWork(actor, actor.run.remote())

    def done(self, works: Sequence[RayWork]) -> list[RayWork]:
        """Return those that have ended or were lost."""
        by_ref = {work.result_ref: work for work in works}
        if not by_ref:
            return []
        ready, _ = self._ray.wait(list(by_ref), num_returns=len(by_ref), timeout=0)
        return [by_ref[ref] for ref in ready]

    def result(self, work: RayWork) -> Any:
        """Wait for `run` and return its result. Raises WorkLost, and what `run` raised."""
        try:
            return self._ray.get(work.result_ref)
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause if isinstance(error.cause, Exception) else error from None
        except self._ray.exceptions.RayError as error:
            raise WorkLost(str(error)) from None
        finally:
            self._ray.kill(work.actor)

    def submit(self, name: str, plans: Sequence[GroupPlan], bundles: Sequence[Mapping[str, float]]) -> RayJob:
        """Request a node for each plan, all together or none, and run the plans there. Returns at once.

        ValueError when a job of this name is still alive.
        """
        strategy = "STRICT_SPREAD" if len(plans) > 1 else "STRICT_PACK"
        group = self._ray.util.placement_group([dict(bundle) for bundle in bundles], strategy=strategy, name=name)
        may_fork = any(PRELOAD_VARIABLE in plan.environment for plan in plans)
        hosts = self._hosts_of_fork_servers() if may_fork else {}
        job = RayJob(group)
        for index, (plan, bundle) in enumerate(zip(plans, bundles, strict=True)):
            options = _actor_options(self._ray, name, group, index, bundle)
            actor = self._actor_class.options(**options).remote(plan, hosts)
            job.nodes.append(NodeJob(actor, ranks_ref=actor.ranks.remote(), report_ref=actor.report.remote()))
        return job

    def _hosts_of_fork_servers(self) -> dict[str, Any]:
        """Return an actor for each node, by the node's id, that takes no resources and ends with this process."""
        at_node = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        alive = {node["NodeID"] for node in self._ray.nodes() if node["Alive"]}
        for node_id in alive - set(self._fork_server_hosts):
            options = {"num_cpus": 0, "max_restarts": -1, "scheduling_strategy": at_node(node_id, soft=False)}
            self._fork_server_hosts[node_id] = self._ray.remote(ForkServerHost).options(**options).remote()
        return {node_id: host for node_id, host in self._fork_server_hosts.items() if node_id in alive}

    def refresh(self, jobs: Iterable[RayJob]) -> None:
        """Read the new results of these jobs, with one query for all of them."""
        waiting = {ref: node for job in jobs for node in job.nodes for ref in node.pending_refs}
        if waiting:
            ready, _ = self._ray.wait(list(waiting), num_returns=len(waiting), timeout=0)
            for ref in ready:
                self._read_ref(waiting[ref], ref)

    def _read_ref(self, node: NodeJob, ref: Any) -> None:
        try:
            value = self._ray.get(ref)
        except self._ray.exceptions.ActorUnavailableError:
            node.renew(ref)  # unreachable is not dead: Ray reports when it is
            return
        except self._ray.exceptions.RayError as error:
            node.end(lost=str(error))
            return
        if ref is node.ranks_ref:
            node.started_at, ranks = value
            node.ranks = tuple(RankProcess(**rank) for rank in ranks)
            node.start_seen_at = time.monotonic()
        else:
            node.end(GroupReport(**value | {"exits": tuple(RankExit(**e) for e in value["exits"])}))

    def wait(self, jobs: Iterable[RayJob], seconds: float) -> None:
        """Wait until there is a new result of one of these jobs, at most `seconds`."""
        refs = [ref for job in jobs for node in job.nodes for ref in node.pending_refs]
        if refs:
            self._ray.wait(refs, num_returns=1, timeout=seconds)
        else:
            time.sleep(seconds)

    def end_ranks(self, job: RayJob) -> None:
        """Let the supervisors kill their ranks; returns at once."""
        for node in job.nodes:
            if not node.is_ended:
                node.actor.kill.remote()

    def end(self, jobs: Sequence[RayJob], timeout_s: float) -> None:
        """End the jobs and free their nodes; what has not ended then is unreachable.

        Half of the time is for reports on how the ranks ended, half for the supervisors' end.
        """
        for job in jobs:
            self.end_ranks(job)
        nodes = [node for job in jobs for node in job.nodes]
        self._await_reports([node for node in nodes if node.ranks is not None], timeout_s / 2)
        for job in jobs:
            self.release(job)
        self._await_reports(nodes, timeout_s / 2)
        self.refresh(jobs)

    def _await_reports(self, nodes: Iterable[NodeJob], timeout_s: float) -> None:
        refs = [node.report_ref for node in nodes if not node.is_ended]
        if refs:
            self._ray.wait(refs, num_returns=len(refs), timeout=timeout_s)

    def release(self, job: RayJob) -> None:
        """Remove the supervisors and give the nodes back."""
        for node in job.nodes:
            self._ray.kill(node.actor)
        self._ray.util.remove_placement_group(job.placement_group)

    def end_named(self, num_nodes: Mapping[str, int], timeout_s: float) -> bool:
        """End the jobs of these names that an earlier driver may have left; False while one of their actors remains."""
        deadline = time.monotonic() + timeout_s
        while left := [actor for name, nodes in num_nodes.items() for actor in self._named_actors(name, nodes)]:
            for actor in left:
                self._ray.kill(actor)
            if time.monotonic() > deadline:
                return False
            time.sleep(0.1)  # Ray notifies only the process that started the actor
        return True

    def _named_actors(self, name: str, num_nodes: int) -> list[Any]:
        actors = []
        for index in range(num_nodes):
            with suppress(ValueError):
                actors.append(self._ray.get_actor(_actor_name(name, index), namespace=_NAMESPACE))
        return actors

    def close_fork_servers(self) -> None:
        """End the fork servers of all nodes."""
        closed = [host.close.remote() for host in self._fork_server_hosts.values()]
        if closed:
            self._ray.wait(closed, num_returns=len(closed), timeout=_CLOSE_TIMEOUT_S)

    def close(self) -> None:
        """Disconnect; a private Ray ends."""
        if self.is_alive:
            self.close_fork_servers()
        with _preserved_signal_handlers():
            self._ray.shutdown()
        if self._private_folder is not None:
            shutil.rmtree(self._private_folder, ignore_errors=True)


class _Supervisor(NodeSupervisor):
    """Supervisor whose ranks the fork servers of its node may fork; `hosts` are their owners by node id."""

    def __init__(self, plan: GroupPlan, hosts: Mapping[str, Any]):
        super().__init__(replace(plan, stub=_stub(plan, hosts)))


def _stub(plan: GroupPlan, hosts: Mapping[str, Any]) -> tuple[str, ...]:
    host = hosts.get(_import_ray().get_runtime_context().get_node_id()) if hosts else None
    if host is None:
        return ()
    try:
        return tuple(_import_ray().get(host.stub_for.remote(asdict(plan)), timeout=_HOST_TIMEOUT_S))
    except _import_ray().exceptions.RayError:  # of the host's death, or of a node too full to start it
        return ()


@contextmanager
def _preserved_signal_handlers() -> Iterator[None]:
    """Preserve this process's handlers of SIGINT and SIGTERM.

    Ray's start installs its own and a native one, its shutdown the kernel's default. Handlers are set again even where
    Python still reports them, since it does not know of native changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set a handler
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:  # one that was not set by Python cannot be set again
                signal.signal(number, handler)


@contextmanager
def _servers_in_own_process_groups(ray: Any) -> Iterator[None]:
    """Start Ray's servers in process groups of their own.

    A signal to this process's group, as sent by timeout(1), is for this process to handle: if Ray ended with it, it
    could no longer report how the ranks ended, and would end this process. The kernel ends the servers with us.
    """
    services = ray._private.services
    popen = services.ConsolePopen
    services.ConsolePopen = partial(popen, process_group=0)
    try:
        yield
    finally:
        services.ConsolePopen = popen


_LOOPBACK_ENVIRONMENT = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # despite its name: "0" binds every port to 127.0.0.1
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "token",
}


def _secure_loopback(ray: Any) -> None:
    """Bind the Ray of this process and all that it starts to the loopback, with a token.

    Ray reads its environment on import, which another library may have done before: what it has read is corrected as
    well.
    """
    os.environ.update(_LOOPBACK_ENVIRONMENT)
    # Other users may know the shell's token; an empty one lets Ray store one in the home folder.
    os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    ray._private.ray_constants.ENABLE_RAY_CLUSTER = False
    ray._raylet.Config.initialize("")
    ray._raylet.AuthenticationTokenLoader.instance().reset_cache()


def _import_ray() -> Any:
    try:
        import ray
        import ray.util
    except ImportError as error:
        raise RayUnavailable(f"ray cannot be imported: {error}") from error
    return ray


def _require_listener(address: str) -> None:
    """OSError when nothing listens there, for which Ray itself would need minutes."""
    host, colon, port = address.rpartition(":")
    if colon:
        socket.create_connection((host, int(port)), timeout=_CONNECT_TIMEOUT_S).close()


def _make_private_folder() -> Path:
    """Create the folder of a new Ray and remove those of killed processes."""
    try:
        remove_abandoned()
        return make_private_folder()
    except OSError as error:
        raise RayUnavailable(f"no temporary folder for Ray: {error}") from error


def _actor_options(ray: Any, name: str, group: Any, index: int, bundle: Mapping[str, float]) -> dict[str, Any]:
    """Give the actor the whole bundle, so that Ray assigns its GPUs to it alone."""
    strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(group, index)
    custom = {name: amount for name, amount in bundle.items() if name not in ("CPU", "GPU")}
    return {
        "name": _actor_name(name, index),
        "namespace": _NAMESPACE,
        "num_cpus": bundle.get("CPU", 0),
        "num_gpus": bundle.get("GPU", 0),
        "resources": custom,
        "max_restarts": 0,
        "max_concurrency": 4,  # `kill` and `ranks` answer while `report` waits
        "scheduling_strategy": strategy,
    }


def _actor_name(job: str, index: int) -> str:
    return f"{job}.{index}"
