"""Kits: what each party of a federation over a network needs, made by the operator and read by server and silos.

``project`` reads ``project.yaml``; ``authority`` holds the consortium's own certificate authority, the operator's
identity and the register; ``plan`` decides what is new and writes it; ``request`` is a silo that makes its own keys;
``kit`` reads a finished kit: the only part that servers and silos use.
"""
