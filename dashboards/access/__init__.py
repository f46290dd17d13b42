"""Access to servers on loopback: tokens, browser sessions, ports, request limits."""
