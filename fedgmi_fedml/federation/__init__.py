"""The processes of a federation over a network: a server without data, and a silo with its own.

Both drive the same ``rounds`` as a simulation does, over a ``transport``; what they add is a clock, a disk that
survives ``kill -9`` at any moment, and reports for their own eyes.
"""

from __future__ import annotations
