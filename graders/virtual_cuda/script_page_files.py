"""The parts of a script's page that are the same for every script: HTML, style sheet, script."""

from __future__ import annotations

from typing import Final

PAGE: Final = """\
<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width,initial-scale=1"><title>$title</title>
<style>
$style</style></head><body><h1>$title</h1>
$body
<script>
$script</script></body></html>
"""
STYLE: Final = """\
:root{color-scheme:light dark;--ground:#fff;--text:#1c2733;--faint:#5c6b7a;--line:#d8dee5;
--lane:#eef1f4;--kernel:#2f7d4f;--copy:#2c6fbb;--issue:#8a98a6;--wait:#c8372d;--memory:#7a5aa8;
--hot:#f08a24;--accent:#1f5fa8}
@media(prefers-color-scheme:dark){:root{--ground:#14191f;--text:#e2e8ee;--faint:#9aa8b5;
--line:#333e49;--lane:#1f272f;--kernel:#55b47d;--copy:#5b9fe6;--issue:#75838f;--wait:#f0685c;
--memory:#a98ad6;--hot:#e07b1a;--accent:#7db4f0}}
*{box-sizing:border-box}
body{font:15px/1.45 system-ui,sans-serif;margin:0 auto;max-width:100em;padding:1em;
background:var(--ground);color:var(--text)}
h1{font-size:1.4em;overflow-wrap:anywhere}h2{font-size:1.1em;margin:1.6em 0 .5em}
h3{font-size:1em;margin:.8em 0 .3em;overflow-wrap:anywhere}
a{color:var(--accent)}code,pre{font:13px/1.5 ui-monospace,monospace}pre{overflow-x:auto}
.sums{display:flex;flex-wrap:wrap;gap:.6em;margin:0}
.sums div{display:flex;flex-direction:column-reverse;justify-content:flex-end;
border:1px solid var(--line);border-radius:6px;padding:.4em .8em;flex:1 1 8em}
.sums dt{color:var(--faint);font-size:.85em}.sums dd{margin:0;font-size:1.3em}
.zoom{display:flex;flex-wrap:wrap;align-items:center;gap:.4em;margin:.3em 0}
.zoom[hidden]{display:none}.zoom span{color:var(--faint);font-size:.85em}
button{font:inherit;min-width:2.2em;border:1px solid var(--line);border-radius:4px;
background:var(--lane);color:inherit;cursor:pointer}
.lanes{display:grid;grid-template-columns:8.5em 1fr;gap:.5em}
.lanes ul{list-style:none;margin:0;padding:0;font-size:.85em;text-align:right;line-height:1.2}
.lanes li{margin-bottom:6px;display:flex;flex-direction:column;justify-content:center}
.drawing{min-width:0;overflow:hidden}
svg{display:block;width:100%;touch-action:pan-y}svg.moving{cursor:grabbing}
.times{display:flex;justify-content:space-between;color:var(--faint);font-size:.8em}
rect.lane{fill:var(--lane)}rect.kernel{fill:var(--kernel)}rect.copy{fill:var(--copy)}
rect.issue{fill:var(--issue)}rect.wait{fill:var(--wait)}path.memory{fill:var(--memory)}
rect[data-line]{cursor:pointer}rect[data-line]:hover{opacity:.7}
.legend{display:flex;flex-wrap:wrap;gap:.2em 1.2em;list-style:none;padding:0;margin:.5em 0;
font-size:.85em}
.legend i{display:inline-block;width:.8em;height:.8em;margin-right:.4em;border-radius:2px}
i.kernel{background:var(--kernel)}i.copy{background:var(--copy)}i.issue{background:var(--issue)}
i.wait{background:var(--wait)}i.memory{background:var(--memory)}
#tip{position:fixed;z-index:3;max-width:min(40em,90vw);padding:.4em .7em;border-radius:4px;
background:var(--text);color:var(--ground);font-size:.85em;white-space:pre-wrap;
overflow-wrap:anywhere;pointer-events:none}
#tip[hidden]{display:none}
.worst{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(22em,100%),1fr));gap:0 2em}
.worst ol{margin:0;padding-left:1.6em}.worst li{margin-bottom:.4em}
.worst li>a,.worst li>code{display:block;overflow:hidden;text-overflow:ellipsis;
white-space:nowrap}
.worst span{color:var(--faint);font-size:.85em}
.worst i{display:block;height:3px;background:var(--hot);min-width:2px}
.choices{display:flex;flex-wrap:wrap;align-items:center;gap:.3em .9em;margin:.3em 0}
.choices label{display:inline-flex;align-items:center;gap:.3em}
.wide{overflow-x:auto;border:1px solid var(--line);border-radius:6px}
table{border-collapse:separate;border-spacing:0;font-size:13px;min-width:100%}
th,td{padding:0 .5em;vertical-align:top}
tr>th:first-child{position:sticky;left:0;z-index:1;background:var(--ground);color:var(--faint);
font-weight:normal;text-align:right}
td:nth-child(2){width:100%;white-space:pre}
tr:not(.used) code{color:var(--faint)}
tr>:last-child{position:sticky;right:0;padding:0;background:var(--ground)}
tr[id]:not(.used)>:last-child{background:none;pointer-events:none}
tr>:last-child>div{display:grid;grid-template-columns:repeat(var(--columns),5.4em);
border-left:1px solid var(--line)}
.figure{text-align:right;padding:0 .5em;line-height:1.5;white-space:nowrap;
font-variant-numeric:tabular-nums;font-weight:normal}
b.figure{color:var(--faint)}
tr.used{--heat:0}
body:has(#by-time:checked) tr.used{--heat:var(--time)}
body:has(#by-memory:checked) tr.used{--heat:var(--memory)}
body:has(#by-waits:checked) tr.used{--heat:var(--waits)}
tr.used>*{background:color-mix(in srgb,var(--hot) calc(var(--heat)*65%),var(--ground))!important}
body:has(#only:checked) tr[id]:not(.used){display:none}
tr:target>*,tr.shown>*{box-shadow:inset 0 1px var(--accent),inset 0 -1px var(--accent)}
@media(max-width:900px){
tr>:last-child>div{grid-template-columns:repeat(2,4.6em)}
.figure{display:none}
body:has(#by-time:checked) .of-time,body:has(#by-memory:checked) .of-memory,
body:has(#by-waits:checked) .of-waits{display:block}
.lanes{grid-template-columns:1fr}.lanes ul{display:flex;flex-wrap:wrap;gap:0 .4em}
.lanes ul:before{content:"from the top:"}
.lanes li{height:auto!important;display:inline;margin:0}
.lanes li:not(:last-child):after{content:","}
}
@media print{.zoom,.choices{display:none}}
"""
SCRIPT: Final = """\
"use strict";
const svg = document.querySelector(".drawing svg");
if (svg) {
  const end = Number(svg.dataset.end);
  const whole = svg.viewBox.baseVal.width;
  const height = svg.viewBox.baseVal.height;
  const tip = document.getElementById("tip");
  const marks = [...document.querySelectorAll(".times span")];
  let left = 0;
  let width = whole;
  for (const title of svg.querySelectorAll("title")) {
    title.parentNode.dataset.told = title.textContent;
    title.remove();
  }
  function told(seconds) {
    const units = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]];
    const unit = units.find(([size]) => width / whole * end >= size) ?? units[3];
    return seconds ? `${Number((seconds / unit[0]).toPrecision(4))} ${unit[1]}` : "0";
  }
  function show(from, size) {
    width = Math.min(Math.max(size, whole / 20000), whole);
    left = Math.min(Math.max(from, 0), whole - width);
    svg.setAttribute("viewBox", `${left} 0 ${width} ${height}`);
    marks.forEach((mark, place) => {
      mark.textContent = told((left + width * place / (marks.length - 1)) / whole * end);
    });
  }
  function zoom(by, at) {
    show(left + width * at * (1 - by), width * by);
  }
  document.querySelector(".zoom").hidden = false;
  for (const button of document.querySelectorAll(".zoom button")) {
    const by = Number(button.dataset.by);
    button.onclick = () => by ? zoom(by, 0.5) : show(0, whole);
  }
  svg.addEventListener("wheel", event => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    const box = svg.getBoundingClientRect();
    zoom(event.deltaY > 0 ? 1.25 : 0.8, (event.clientX - box.left) / box.width);
  }, {passive: false});
  let pressed = null;
  svg.onpointerdown = event => { pressed = {x: event.clientX, left, moved: false}; };
  window.addEventListener("pointerup", () => {
    svg.classList.remove("moving");
    setTimeout(() => { pressed = null; });
  });
  svg.onpointermove = event => {
    if (pressed && Math.abs(event.clientX - pressed.x) > 3) {
      pressed.moved = true;
      svg.classList.add("moving");
      const box = svg.getBoundingClientRect();
      show(pressed.left - (event.clientX - pressed.x) / box.width * width, width);
    }
    const shape = event.target;
    document.querySelector("tr.shown")?.classList.remove("shown");
    tip.hidden = !shape.dataset.told;
    if (tip.hidden) return;
    document.getElementById(shape.dataset.line)?.classList.add("shown");
    tip.textContent = shape.dataset.told;
    const room = document.documentElement.clientWidth - tip.offsetWidth - 8;
    tip.style.left = `${Math.max(Math.min(event.clientX + 12, room), 4)}px`;
    tip.style.top = `${event.clientY + 16}px`;
  };
  svg.onpointerleave = () => { tip.hidden = true; };
  svg.onclick = event => {
    const line = event.target.dataset.line;
    if (line && !pressed?.moved) location.hash = line;
  };
}
"""
