"""HTML and SVG as values: everything that is not markup already is escaped."""

from __future__ import annotations

import html
from collections.abc import Sequence

__all__ = ["Markup", "figure", "join", "table", "tag"]

_VOID = frozenset({"img", "meta", "br", "hr", "rect", "line", "path", "circle", "col"})


class Markup(str):
    """Text that is markup and must not be escaped again."""

    __slots__ = ()


def _text(child: object) -> str:
    if child is None:
        return ""
    if isinstance(child, Markup):
        return child
    if isinstance(child, (list, tuple)):
        return "".join(map(_text, child))
    return html.escape(str(child), quote=False)


def tag(name: str, /, *children: object, **attributes: object) -> Markup:
    """``<name attributes>children</name>``.

    Children are strings (escaped), ``Markup``, ``None`` (nothing) or lists of these. In attribute names a trailing
    ``_`` is dropped and other ``_`` become ``-``; a value of ``None`` leaves the attribute out.
    """
    parts = [name]
    for key, value in attributes.items():
        if value is not None:
            parts.append(f'{key.rstrip("_").replace("_", "-")}="{html.escape(str(value))}"')
    head = " ".join(parts)
    if name in _VOID and not children:
        return Markup(f"<{head}/>")
    return Markup(f"<{head}>{_text(children)}</{name}>")


def join(*children: object) -> Markup:
    """Children one after the other."""
    return Markup(_text(children))


def table(head: Sequence[object], rows: Sequence[Sequence[object]], caption: str = "", kind: str = "") -> Markup:
    """A table with a header row; the first cell of each row is its header. Cells that read as numbers align right."""
    numeric = [len(rows) > 0 and all(_is_number(row[i]) for row in rows) for i in range(len(head))]
    css = ["n" if right else None for right in numeric]
    header = tag("tr", [tag("th", cell, scope="col", class_=css[i]) for i, cell in enumerate(head)])
    body = [
        tag(
            "tr", tag("th", row[0], scope="row"), [tag("td", cell, class_=css[i + 1]) for i, cell in enumerate(row[1:])]
        )
        for row in rows
    ]
    title = tag("caption", caption) if caption else None
    return tag(
        "div",
        tag("table", title, tag("thead", header) if any(head) else None, tag("tbody", body), class_=kind or None),
        class_="scroll",
    )


def _is_number(cell: object) -> bool:
    text = _text(cell).strip()
    return text in ("", "–") or (text[0] in "0123456789.<+−-≈" and any(c.isdigit() for c in text))


def figure(title: str, picture: Markup, note: str = "", data: Markup | None = None, wide: bool = False) -> Markup:
    """A figure with its title above, a note below and, folded away, the same figures as a table."""
    return tag(
        "figure",
        tag("figcaption", tag("h3", title), tag("p", note) if note else None),
        picture,
        tag("details", tag("summary", "Show as a table"), data) if data is not None else None,
        class_="wide" if wide else None,
    )
