"""Fabric check of a search, in words. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from search_spaces.decoding import decode
from search_spaces.hardware.links import Links
from trials.failure_policy import policy_of
from trials.files.text import plural
from trials.ledger.events import SearchRecord
from trials.trial import Trial


def describe_fabric_check(search: SearchRecord) -> list[str]:
    """Findings of the check and their consequences, a sentence each without its full stop; [] without a check."""
    check = search.fabric_check
    if check is None:
        return []
    if check.findings is None:
        return [f"fabric check: {_describe_state(check.trial)}"]
    told = [f"fabric check: {words}" for words in check.findings or ("no node and no group shape is slow",)]
    if check.slow_nodes:
        enough = f"as long as enough of the {check.num_available} nodes are left"
        told.append(f"trials avoid {', '.join(check.slow_nodes)}, {enough}")
    if check.links is not None:
        measured = "; ".join(_describe_links(decode(Links, check.links)))
        nodes = plural(check.trial.layout.num_nodes, "node")
        told.append(f"predictions use the links that the check measured on {nodes}: {measured}")
    return told


def _describe_state(trial: Trial) -> str:
    """State of the check's last attempt, or why it failed."""
    if (last := trial.last_attempt) is None:
        return str(trial.state)
    if last.reason is not None:
        return f"failed, {policy_of(last.reason).label}" + (f": {last.excerpt}" if last.excerpt else "")
    is_in_flight = not last.state.is_ended
    known = " as ".join(filter(None, [str(last.state), last.job_id if is_in_flight else None]))
    return known + (" on " + " ".join(last.nodes) if last.nodes and is_in_flight else "")


def _describe_links(links: Links) -> Iterator[str]:
    """Bandwidth and latency of each domain, and of the fabric."""
    for domain in links.domains:
        yield f"{domain.name} of {domain.num_ranks} ranks {domain.bus_gb_per_s:.3g} GB/s, {domain.latency_us:.3g} us"
    if (fabric := links.fabric) is not None:
        yield f"between nodes {fabric.nic_gb_per_s:.3g} GB/s a node, {fabric.latency_us:.3g} us"
