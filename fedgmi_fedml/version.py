"""Two numbers, apart: what a person installs, and what two parties must share to talk.

``__version__`` follows semantic versioning (setuptools reads it from here, so it stays a plain literal).
``WIRE_VERSION`` rises by one whenever a message, a plan or the meaning of one of their fields changes; parties with
different wire versions refuse each other before the first round, whatever their ``__version__``.
"""

from __future__ import annotations

__version__ = "0.1.0"
WIRE_VERSION = 2
