"""Fabric check of a search, in words. Pure."""

from __future__ import annotations

from trials.failure_policy import policy_of
from trials.files.text import plural
from trials.ledger.events import FabricCheck, SearchRecord
from trials.trial import TrialState


def describe_fabric_check(search: SearchRecord) -> list[str]:
    """Findings of the check and their consequences, a sentence each without its full stop; [] without a check."""
    check = search.fabric_check
    if check is None:
        return []
    if check.attempt.state is not TrialState.MEASURED:
        return [f"fabric check: {describe_check_state(check)}"]
    told = [f"fabric check: {words}" for words in check.findings or ("no node and no group shape is slow",)]
    if check.slow_nodes:
        enough = f"as long as enough of the {check.num_available} nodes are left"
        told.append(f"trials avoid {', '.join(check.slow_nodes)}, {enough}")
    if check.links is not None:
        told.append(f"predictions use the links that the check measured on {plural(check.attempt.num_nodes, 'node')}")
    return told


def describe_check_state(check: FabricCheck) -> str:
    """State of the check's job, or why it failed."""
    attempt = check.attempt
    if attempt.reason is None:
        known = " as ".join(filter(None, [str(attempt.state), attempt.job_id if check.is_in_flight else None]))
        return known + (" on " + " ".join(attempt.nodes) if attempt.nodes and check.is_in_flight else "")
    return f"failed, {policy_of(attempt.reason).label}" + (f": {attempt.excerpt}" if attempt.excerpt else "")
