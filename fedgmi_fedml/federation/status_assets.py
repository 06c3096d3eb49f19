"""What the status page consists of besides its figures: one sheet and one small script, served from the page itself.

The sheet is the report's, so that both look alike. Without the script the page reloads itself as a whole.
"""

from __future__ import annotations

from fedgmi_fedml.report.style import STYLE

__all__ = ["REFRESH_SECONDS", "SCRIPT", "SHEET"]

REFRESH_SECONDS = 5

SHEET = (
    STYLE
    + """
header{padding-top:28px}
h1{display:flex;flex-wrap:wrap;align-items:center;gap:6px 14px;margin-bottom:6px;overflow-wrap:anywhere}
.badge{font-size:14px;font-weight:600;letter-spacing:0;line-height:1;padding:6px 11px;border-radius:99px;
border:1px solid var(--line);background:var(--panel);color:var(--soft);white-space:nowrap}
.badge.good{color:var(--good);background:var(--goodbg);border-color:transparent}
.badge.warn{color:var(--warn);background:var(--warnbg);border-color:transparent}
.badge.bad{color:var(--bad);background:var(--badbg);border-color:transparent}
.stage{color:var(--soft);margin-bottom:14px}
.phases{list-style:none;display:flex;flex-wrap:wrap;gap:14px 22px;margin:0 0 18px;padding:0}
.phases li{flex:1 1 150px;min-width:0;font-size:14px;color:var(--soft)}
.phases li.here{color:var(--ink);font-weight:600}
.phases li{display:grid;grid-template-columns:1fr auto;column-gap:8px}
.phases .of{font-variant-numeric:tabular-nums}
progress{display:block;grid-column:1/-1;width:100%;height:8px;margin-top:5px;border:0;border-radius:99px;overflow:hidden;
background:var(--line);appearance:none;-webkit-appearance:none;color:var(--accent)}
progress::-webkit-progress-bar{background:var(--line)}
progress::-webkit-progress-value{background:var(--accent);border-radius:99px}
progress::-moz-progress-bar{background:var(--accent)}
section{padding:26px 0 8px}
.tile b{font-size:23px}
.state{white-space:nowrap}.state::before{content:"";display:inline-block;width:9px;height:9px;border-radius:50%;
margin-right:8px;background:var(--soft)}
.state.good::before{background:var(--good)}.state.warn::before{background:var(--warn)}
.state.bad::before{background:var(--bad)}.state.soft::before{background:none;box-shadow:inset 0 0 0 1.5px var(--soft)}
.state.bad{color:var(--bad)}.state.warn{color:var(--warn)}
td .small{font-size:14px;line-height:1.4}
.when{color:var(--soft);white-space:nowrap;font-variant-numeric:tabular-nums}
.wrap{overflow-wrap:anywhere}
table.log td{border:0;padding:2px 14px 2px 0}table.log th{border:0;padding:2px 14px 2px 0;font-weight:400}
#gone{max-width:1120px;margin:0 auto;padding:0 24px}#gone .note{margin:20px 0 0}
body.gone main,body.gone .tiles{opacity:.55}
footer a{color:var(--accent)}
@media (max-width:760px){.tile{flex-basis:140px;padding:10px 12px}.tile b{font-size:20px}header{padding-top:20px}
.phases{gap:12px}.phases li{flex-basis:120px}.state{white-space:normal}.small{font-size:14px}
table.full{font-size:14px}th,td{padding-right:10px}figure{overflow-x:auto}figure>svg{min-width:440px}}
"""
)

SCRIPT = """"use strict";
(function () {
  var every = EVERY, misses = 0, over = false;
  function opened() {
    return Array.prototype.map.call(document.querySelectorAll("details"), function (d) { return d.open; });
  }
  function show(text) {
    var fresh = new DOMParser().parseFromString(text, "text/html");
    var main = fresh.getElementById("live"), open = opened();
    if (!main) { return; }
    over = !fresh.querySelector("script");
    document.getElementById("live").replaceWith(main);
    document.title = fresh.title;
    var all = document.querySelectorAll("details");
    if (all.length === open.length) {
      all.forEach(function (d, i) { d.open = open[i]; });
    }
  }
  function gone(is) {
    var place = document.getElementById("gone");
    if (is === document.body.classList.contains("gone")) { return; }
    document.body.classList.toggle("gone", is);
    place.textContent = "";
    if (is) {
      var note = document.createElement("p");
      note.className = "note bad";
      note.textContent = "The server no longer answers, or wants its new token: the run may have ended, or the server" +
        " been restarted. What stands below is the last that was heard.";
      place.appendChild(note);
    }
  }
  function busy() {
    var chosen = document.getSelection();
    return document.hidden || (chosen && !chosen.isCollapsed);
  }
  function again() {
    if (busy()) { setTimeout(again, 1000); return; }
    fetch("/", { cache: "no-store", credentials: "same-origin" }).then(function (answer) {
      if (!answer.ok) { throw new Error(answer.status); }
      return answer.text();
    }).then(function (text) {
      misses = 0;
      gone(false);
      show(text);
    }).catch(function () {
      misses += 1;
      if (misses > 1) { gone(true); }
    }).then(function () { if (!over) { setTimeout(again, every); } });
  }
  setTimeout(again, every);
})();
""".replace("EVERY", str(1000 * REFRESH_SECONDS))
