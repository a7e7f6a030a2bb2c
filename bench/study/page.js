"use strict";
// Two panels over the same seconds: what the client saw, and what went on in the background. 0 is its beginning.
(() => {
  const COLOURS = ["#0b6bcb", "#c43b1d", "#2c8a3c", "#8d4bbd", "#b8860b", "#00838f", "#d81b77", "#5d4037"];
  const W = 1120, H = 250, LEFT = 64, RIGHT = 12, TOP = 22, BOTTOM = 26;
  const CLIENT = { "mean latency, ms": 2, "p99 latency, ms": 3, "IOPS": 1 };
  const root = document.getElementById("charts");
  if (!DATA.cells.length) { root.textContent = "Nothing was measured yet."; return; }
  const escape = s => String(s).replace(/[&<>"]/g, c => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" }[c]));
  const uniq = list => [...new Set(list)];
  const options = list => list.map(([v, t]) => `<option value="${escape(v)}">${escape(t)}</option>`).join("");
  const scenarios = uniq(DATA.cells.map(c => c.scenario));
  root.innerHTML = `<div><select id="scenario">${options(scenarios.map(s => [s, DATA.titles[s]]))}</select>
    <select id="repeat"></select><select id="what">${options(Object.keys(CLIENT).map(k => [k, k]))}</select>
    <select id="job"></select><label><input type="checkbox" id="log"> logarithmic</label></div>
    <div class="legend"></div><div id="top"></div><div id="bottom"></div><div class="tip"></div>`;
  const at = id => document.getElementById(id), legend = root.querySelector(".legend"), tip = root.querySelector(".tip");
  const hidden = new Set();
  const colours = {}, name = c => `${c.target}, ${c.profile}`;
  uniq(DATA.cells.map(name)).forEach((n, i) => { colours[n] = [COLOURS[i % COLOURS.length], i >= COLOURS.length]; });

  const shown = () => DATA.cells.filter(c => c.scenario === at("scenario").value && String(c.repeat) === at("repeat").value);
  const number = v => v === null || v === undefined ? "–" : Math.abs(v) >= 100 ? v.toFixed(0) : v.toFixed(2);

  function ticks(from, to, n) {
    const rough = (to - from) / n || 1, power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map(k => k * power).find(s => s >= rough);
    const out = [];
    for (let v = Math.ceil(from / step) * step; v <= to + step / 1e6; v += step) out.push(+v.toPrecision(12));
    return out;
  }

  function panel(where, title, lines, x0, x1, log) {
    const values = lines.flatMap(l => l.points.map(p => p[1])).filter(v => v !== null && (!log || v > 0));
    let y1 = Math.max(...values, log ? 1e-3 : 0) * 1.05 || 1, y0 = log ? Math.min(...values, y1 / 10) : Math.min(0, ...values);
    const sx = v => LEFT + (v - x0) / (x1 - x0 || 1) * (W - LEFT - RIGHT);
    const f = v => log ? Math.log10(Math.max(v, y0)) : v;
    const sy = v => H - BOTTOM - (f(v) - f(y0)) / (f(y1) - f(y0) || 1) * (H - TOP - BOTTOM);
    let s = `<svg viewBox="0 0 ${W} ${H}"><text class="axis" x="${LEFT}" y="14" font-weight="bold">${escape(title)}</text>`;
    const marks = log ? ticks(Math.floor(f(y0)), Math.ceil(f(y1)), 6).map(e => 10 ** e).filter(v => v >= y0 && v <= y1) : ticks(y0, y1, 5);
    for (const v of marks) s += `<line class="grid" x1="${LEFT}" x2="${W - RIGHT}" y1="${sy(v)}" y2="${sy(v)}"/><text class="axis" text-anchor="end" x="${LEFT - 6}" y="${sy(v) + 4}">${number(v).replace(/\.?0+$/, m => m.startsWith(".") ? "" : m)}</text>`;
    for (const v of ticks(x0, x1, 12)) s += `<text class="axis" text-anchor="middle" x="${sx(v)}" y="${H - 8}">${v} s</text>`;
    if (x0 <= 0 && x1 >= 0) s += `<line class="zero" x1="${sx(0)}" x2="${sx(0)}" y1="${TOP}" y2="${H - BOTTOM}"/>`;
    for (const l of lines) {
      let d = "", pen = "M";
      for (const [x, v] of l.points) {
        if (v === null || (log && v <= 0)) { pen = "M"; continue; }
        d += `${pen}${sx(x).toFixed(1)} ${sy(v).toFixed(1)}`; pen = "L";
      }
      s += `<path d="${d}" fill="none" stroke="${l.colour[0]}" stroke-width="1.7"${l.colour[1] ? ' stroke-dasharray="6 3"' : ""}/>`;
    }
    at(where).innerHTML = s + `<line class="zero cross" x1="0" x2="0" y1="${TOP}" y2="${H - BOTTOM}" visibility="hidden"/></svg>`;
  }

  function lines(points) {
    return shown().filter(c => !hidden.has(name(c))).map(c => ({ label: name(c), colour: colours[name(c)], points: points(c) }));
  }

  let state = {};
  function draw() {
    const column = CLIENT[at("what").value], job = at("job").value;
    const top = lines(c => c.client.map(p => [p[0], p[column]]));
    const bottom = lines(c => job === "server cores" ? c.cores : (c.jobs[job] || []));
    const xs = shown().flatMap(c => c.client.map(p => p[0]));
    const x0 = Math.min(...xs), x1 = Math.max(...xs);
    const unit = DATA.units[job] ? `, ${DATA.units[job]}/s` : job === "server cores" ? "" : ", IOPS";
    panel("top", at("what").value + " of the client", top, x0, x1, at("log").checked);
    panel("bottom", job + unit, bottom.map(l => ({ ...l, points: l.points.filter(p => p[0] >= x0 && p[0] <= x1) })), x0, x1, false);
    state = { top, bottom, x0, x1, what: at("what").value, job };
  }

  function near(points, x) {
    let best = null;
    for (const p of points) if (Math.abs(p[0] - x) <= 1.5 && (best === null || Math.abs(p[0] - x) < Math.abs(best[0] - x))) best = p;
    return best ? best[1] : null;
  }

  function hover(event) {
    const svg = event.target.closest("svg");
    if (!svg) { leave(); return; }
    const box = svg.getBoundingClientRect(), px = (event.clientX - box.left) / box.width * W;
    if (px < LEFT || px > W - RIGHT) { leave(); return; }
    const x = state.x0 + (px - LEFT) / (W - LEFT - RIGHT) * (state.x1 - state.x0);
    root.querySelectorAll(".cross").forEach(l => { l.setAttribute("x1", px); l.setAttribute("x2", px); l.setAttribute("visibility", "visible"); });
    let rows = "";
    state.top.forEach((l, i) => {
      rows += `<tr><td style="color:${l.colour[0]}">${escape(l.label)}</td><td>${number(near(l.points, x))}</td><td>${number(near(state.bottom[i].points, x))}</td></tr>`;
    });
    tip.innerHTML = `<table><tr><td>${x.toFixed(1)} s</td><td>${escape(state.what)}</td><td>${escape(state.job)}</td></tr>${rows}</table>`;
    tip.style.display = "block";
    const r = root.getBoundingClientRect(), left = event.clientX - r.left;
    tip.style.left = `${left + 16 + tip.offsetWidth > r.width ? left - 16 - tip.offsetWidth : left + 16}px`;
    tip.style.top = `${event.clientY - r.top + 12}px`;
  }
  function leave() {
    tip.style.display = "none";
    root.querySelectorAll(".cross").forEach(l => l.setAttribute("visibility", "hidden"));
  }

  function choose() {
    const cells = DATA.cells.filter(c => c.scenario === at("scenario").value);
    at("repeat").innerHTML = options(uniq(cells.map(c => c.repeat)).sort((a, b) => a - b).map(r => [r, `round ${r}`]));
    at("job").innerHTML = options([...uniq(cells.flatMap(c => Object.keys(c.jobs))), "server cores"].map(j => [j, j]));
    legend.innerHTML = uniq(cells.map(name)).map(n => `<label><input type="checkbox" value="${escape(n)}"${hidden.has(n) ? "" : " checked"}>` +
      `<i style="border-color:${colours[n][0]};border-top-style:${colours[n][1] ? "dashed" : "solid"}"></i>${escape(n)}</label>`).join("");
    draw();
  }
  legend.addEventListener("change", e => { e.target.checked ? hidden.delete(e.target.value) : hidden.add(e.target.value); draw(); });
  at("scenario").addEventListener("change", choose);
  for (const id of ["repeat", "what", "job", "log"]) at(id).addEventListener("change", draw);
  root.addEventListener("mousemove", hover);
  root.addEventListener("mouseleave", leave);
  choose();
})();
