"""Grids of data × mixture × variant × method × K × seed: run, resumed, and drawn up as tables and figures.

definition   a file of configs/experiments/ → cells, each a whole configuration
cell         one method on one configuration → one JSON, which holds all that the report needs
run          all cells that are not there yet, some at a time
report       tables (Markdown, LaTeX) and figures (SVG) from the JSON alone
"""

from __future__ import annotations
