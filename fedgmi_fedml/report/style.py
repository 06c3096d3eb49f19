"""The page's style: one sheet for light, dark and paper. No script, no font, no request to anywhere."""

from __future__ import annotations

__all__ = ["STYLE"]

_LIGHT = """
--page:#f7f7f4;--panel:#fff;--ink:#1d2125;--soft:#5b636c;--line:#dfe0db;--band:#f2f2ee;--accent:#2458a6;
--heat:#2458a6;--bad:#a8322d;--badbg:#fbeceb;--warn:#8a5a00;--warnbg:#fdf4de;--good:#23704c;--goodbg:#e8f4ee;
--c0:#2458a6;--c1:#c8641b;--c2:#23805a;--c3:#8350a5;--c4:#b23a48;--c5:#1f8597;--c6:#7b7320;--c7:#b0508d;"""

_DARK = """
--page:#14171a;--panel:#1c2024;--ink:#e7e9eb;--soft:#a2abb4;--line:#343a40;--band:#22272c;--accent:#7fb0f0;
--heat:#5d97e6;--bad:#f0928c;--badbg:#3a1f1e;--warn:#e9bd62;--warnbg:#352b16;--good:#7fcfa8;--goodbg:#17302a;
--c0:#6ea6ee;--c1:#f0a05c;--c2:#62c497;--c3:#bd93dd;--c4:#ee8791;--c5:#5fc2d3;--c6:#c9be57;--c7:#e592c3;"""

_COLOURS = "".join(
    f".s-c{i}{{stroke:var(--c{i});fill:var(--c{i})}}.t-c{i}{{fill:var(--c{i})}}.f-c{i}{{fill:var(--c{i})}}"
    f".b-c{i}{{background:var(--c{i})}}"
    for i in range(8)
)

STYLE = (
    f":root{{color-scheme:light dark;{_LIGHT}}}@media (prefers-color-scheme:dark){{:root{{{_DARK}}}}}"
    + """
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);
font:16px/1.5 system-ui,-apple-system,"Segoe UI","Liberation Sans",sans-serif}
main,header,nav,footer{max-width:1120px;margin:0 auto;padding:0 24px}
header{padding-top:40px}
.kind{display:inline-block;font-size:13px;font-weight:600;color:var(--soft);margin:0 0 4px}
h1{font-size:34px;line-height:1.15;margin:0 0 12px;letter-spacing:-.01em}
h2{font-size:23px;margin:0 0 12px;letter-spacing:-.005em}
h3{font-size:16px;margin:0}section>h3{margin-top:22px}
p{margin:0 0 10px;max-width:74ch}
.verdict{font-size:19px;line-height:1.45;max-width:70ch;margin-bottom:18px}
.lead,figcaption p,footer,.small{color:var(--soft)}
figcaption p{font-size:14px;margin:2px 0 0;max-width:96ch}
nav{display:flex;flex-wrap:wrap;gap:4px 20px;padding-top:14px;padding-bottom:14px;font-size:15px}
nav a{color:var(--accent);text-decoration:none}nav a:hover{text-decoration:underline}
section{padding:30px 0 8px;border-top:1px solid var(--line)}
.tiles{display:flex;flex-wrap:wrap;gap:1px;background:var(--line);
border:1px solid var(--line);border-radius:8px;overflow:hidden;margin:6px 0 8px}
.tile{background:var(--panel);padding:12px 16px;flex:1 1 210px}
.tile b{display:block;font-size:25px;line-height:1.2;font-weight:650;font-variant-numeric:tabular-nums}
.tile span{font-size:14px;color:var(--soft);line-height:1.3;display:block}
.note{border-left:4px solid var(--accent);background:var(--panel);padding:12px 16px;
border-radius:0 8px 8px 0;margin:0 0 16px}
.note p:last-child,.note ul:last-child{margin-bottom:0}
.note.bad{border-color:var(--bad);background:var(--badbg)}.note.warn{border-color:var(--warn);background:var(--warnbg)}
.note.good{border-color:var(--good);background:var(--goodbg)}
.note ul{margin:4px 0 0;padding-left:20px}
.grid2{display:grid;grid-template-columns:repeat(2,minmax(0,1fr));gap:18px;margin:16px 0}
figure{margin:0;background:var(--panel);border:1px solid var(--line);border-radius:8px;padding:16px 18px;min-width:0}
figure.wide{grid-column:1/-1}
.grid3{grid-template-columns:repeat(3,minmax(0,1fr))}
figure svg{display:block;width:100%;height:auto;margin-top:10px;overflow:visible}
details{margin-top:10px;font-size:14px}summary{cursor:pointer;color:var(--accent)}
.scroll{overflow-x:auto;max-width:100%}
table{border-collapse:collapse;font-size:14.5px;font-variant-numeric:tabular-nums;margin:8px 0}
caption{text-align:left;color:var(--soft);padding-bottom:4px}
th,td{padding:5px 14px 5px 0;border-bottom:1px solid var(--line);text-align:left;vertical-align:top}
thead th{color:var(--soft);font-weight:600}tbody th{font-weight:500}
.n{text-align:right;white-space:nowrap}
table.full{width:100%}.cost figure{margin:18px 0}
.yes{color:var(--bad);font-weight:600}.no{color:var(--good);font-weight:600}.part{color:var(--warn);font-weight:600}
.legend{display:flex;flex-wrap:wrap;gap:4px 18px;font-size:14px;margin-top:8px}
.legend i{display:inline-block;width:11px;height:11px;border-radius:3px;margin-right:6px}
.legend i.rule{height:0;width:16px;border-radius:0;border-top:2.5px solid var(--ink);vertical-align:4px}
.sheet{display:grid;grid-template-columns:minmax(110px,max-content) 1fr;gap:12px 18px;align-items:center;
margin-top:12px}
.sheet img{image-rendering:pixelated;width:100%;height:auto;border-radius:4px;display:block}
.chip{display:inline-block;width:11px;height:11px;border-radius:3px;margin-right:7px}
code{font:13.5px ui-monospace,Menlo,Consolas,"Liberation Mono",monospace;overflow-wrap:anywhere}
footer{padding-top:18px;padding-bottom:40px;font-size:14px}
svg text{font:12px system-ui,-apple-system,"Segoe UI","Liberation Sans",sans-serif;fill:var(--ink)}
svg .ax{fill:var(--soft);font-size:11.5px}svg .lab{font-weight:600}
svg .mid{text-anchor:middle}svg .end{text-anchor:end}
svg .grid{stroke:var(--line);stroke-width:1}svg .band{fill:var(--band)}
svg .mark{stroke:var(--soft);stroke-width:1;stroke-dasharray:3 3}
svg .series path{stroke-width:2;fill:none;stroke-linejoin:round}svg .series circle{stroke:none}
svg .seg{stroke:var(--panel);stroke-width:.6}
svg .truth{stroke:var(--panel);stroke-width:5}svg .truth.inner{stroke:var(--ink);stroke-width:2.2}
svg .cell{fill:color-mix(in srgb,var(--heat) calc(var(--v)*100%),var(--band))}
svg .cell.none{fill:none;stroke:var(--line)}svg .cell.out{stroke:var(--ink);stroke-width:2}
svg .val{font-size:12.5px;font-variant-numeric:tabular-nums}svg .val.on{fill:var(--panel)}
svg .open{fill:var(--panel);stroke-width:1.8}svg .ceiling{fill:none;stroke:var(--soft);stroke-dasharray:4 3}
@media (max-width:1000px){.grid3{grid-template-columns:repeat(2,minmax(0,1fr))}}
@media (max-width:760px){.grid2,.grid3{grid-template-columns:minmax(0,1fr)}h1{font-size:27px}
figure.wide .scroll>svg{min-width:680px}
main,header,nav,footer{padding-left:16px;padding-right:16px}
.sheet{grid-template-columns:1fr;gap:6px}}
@media print{:root{"""
    + _LIGHT.replace("--page:#f7f7f4", "--page:#fff")
    + """}body{font-size:12.5px}nav,details{display:none}
figure,.tiles,.note,tr{break-inside:avoid}h2,h3{break-after:avoid}
section{padding-top:16px}*{-webkit-print-color-adjust:exact;print-color-adjust:exact}}
"""
    + "".join(f"svg text.t-c{i}{{fill:var(--c{i})}}" for i in range(8))
    + _COLOURS
)
