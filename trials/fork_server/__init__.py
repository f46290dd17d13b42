"""Fork server of a node: a process with torch imported that forks ranks, and the stub that stands for such a rank."""
