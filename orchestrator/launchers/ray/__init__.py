"""Ray launcher, on a loopback Ray or the user's cluster. runtime.py is the only file that imports ray."""
