"""Launchers: start the ranks of an attempt and report how they ended. One package a backend, one interface in
base.py."""
