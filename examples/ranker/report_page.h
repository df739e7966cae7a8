// The demo's HTML page: static text around one JSON value; plots are drawn as SVG by the script below,
// without network.
#pragma once

namespace ranker {

inline constexpr char kReportPage[] = R"HTML(<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>niche: a server that gets faster while it serves</title>
<style>
:root{--ink:#1b1f24;--dim:#66707b;--line:#d8dee4;--a:#0b6bcb;--b:#c4480b;--c:#2a8a4a}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);max-width:1080px;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem;margin:0}h2{font-size:1.1rem;margin:2rem 0 .5rem}p{margin:.3rem 0;color:var(--dim)}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{padding:.3rem .6rem;border-bottom:1px solid var(--line);text-align:right;white-space:nowrap}
th:first-child,td:first-child,td.t,th.t{text-align:left}th{color:var(--dim);font-weight:500}
td.k{font-family:ui-monospace,monospace;font-size:12px;text-align:left}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(200px,1fr));gap:.8rem;margin:1rem 0}
.card{border:1px solid var(--line);border-radius:8px;padding:.7rem 1rem}.card b{display:block;font-size:1.5rem}
.card span{color:var(--dim)}svg{width:100%;height:220px;display:block}.wide{overflow-x:auto}
text{font:11px system-ui,sans-serif;fill:var(--dim)}
</style></head><body>
<h1>A server that gets faster while it serves</h1><p id="sub"></p>
<div class="cards" id="cards"></div>
<h2>Operators</h2><div class="wide"><table id="ops"></table></div>
<h2>Speed-up over the best library form, 95 % interval</h2><div id="speed"></div>
<h2>Latency while kernels are swapped in (ms, per second)</h2><div id="lat"></div>
<h2>Share of calls on evolved kernels</h2><div id="share"></div>
<h2>Events</h2><div class="wide"><table id="ev"></table></div>
<script>
const R = /*DATA*/null;
const el = (id) => document.getElementById(id);
const esc = (s) => String(s).replace(/[&<>"]/g, (c) => ({'&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;'}[c]));
const f = (v, d = 2) => Number(v).toFixed(d);
el('sub').textContent = `${R.machine} · commit ${R.commit} · ${R.date} · trace ${R.trace} · ${f(R.seconds, 0)} s`;
const card = (big, small) => `<div class="card"><b>${esc(big)}</b><span>${esc(small)}</span></div>`;
el('cards').innerHTML = [
  card(f(R.throughput_after_rps / R.throughput_before_rps) + '×',
       `throughput: ${f(R.throughput_before_rps, 1)} → ${f(R.throughput_after_rps, 1)} requests/s`),
  card(`${f(R.p99_before_ms)} → ${f(R.p99_after_ms)} ms`, `p99; while tuning ${f(R.p99_during_ms)} ms`),
  card(f(R.first_swap_s, 1) + ' s', 'from hot to the first live call on an evolved kernel'),
  card(f(100 * R.evolved_call_share, 1) + ' %',
       `of calls on evolved kernels; ${f(100 * R.evolved_call_share_after_restart, 1)} % right after a restart`),
  card(`${R.wrong} wrong, ${R.failed} failed`, `of ${R.requests} requests; ${R.checked} recomputed in fp64`),
  card(`${R.sessions} sessions, ${R.swaps} swaps`, `${R.rollbacks} rollbacks`)].join('');
el('ops').innerHTML = '<tr><th>operator</th><th class="t">problem</th><th class="t">best library form</th><th>share before</th>' +
  '<th>library µs</th><th>evolved µs</th><th>speed-up</th><th>interval</th><th>tried</th><th class="t">rejected at</th><th class="t">kernel</th></tr>' +
  R.operators.map((o) => `<tr><td>${esc(o.op)}</td><td class="t">${esc(o.problem)}</td><td class="t">${esc(o.fallback)}</td>` +
    `<td>${f(100 * o.share_before, 1)} %</td><td>${f(o.fallback_us, 1)}</td><td>${o.kernel ? f(o.evolved_us, 1) : '–'}</td>` +
    `<td>${o.kernel ? f(o.speedup) + '×' : '1.00×'}</td><td>${o.kernel ? f(o.ci_low) + '–' + f(o.ci_high) : esc(o.note)}</td>` +
    `<td>${o.tried}</td><td class="t">${esc(Object.entries(o.rejected).filter((e) => e[1]).map((e) => e.join(' ')).join(', '))}</td>` +
    `<td class="k">${esc(o.kernel)}</td></tr>`).join('');
const W = 1000, H = 220, L = 46, B = 24;
function frame(x1, y1, unit) {
  let s = '';
  for (let i = 0; i <= 4; ++i) {
    const y = H - B - (H - B - 10) * i / 4;
    s += `<line x1="${L}" x2="${W}" y1="${y}" y2="${y}" stroke="var(--line)"/><text x="0" y="${y + 4}">${f(y1 * i / 4, y1 < 10 ? 1 : 0)}${unit}</text>`;
  }
  for (let i = 0; i <= 5; ++i) s += `<text x="${L + (W - L - 30) * i / 5}" y="${H - 6}">${f(x1 * i / 5, 0)} s</text>`;
  return s;
}
function lines(id, series, unit) {
  const n = R.samples.length;
  if (!n) { el(id).innerHTML = '<p>no samples</p>'; return; }
  const x1 = R.samples[n - 1].at_s, all = series.flatMap((s) => R.samples.map(s.get));
  const y1 = Math.max(...all, 1e-9) * 1.05;
  const X = (v) => L + (W - L) * v / x1, Y = (v) => H - B - (H - B - 10) * v / y1;
  let s = frame(x1, y1, unit);
  for (const e of R.events) s += `<line x1="${X(e.at_s)}" x2="${X(e.at_s)}" y1="10" y2="${H - B}" stroke="var(--line)" stroke-dasharray="2 3"><title>${esc(e.text)}</title></line>`;
  series.forEach((q, i) => {
    s += `<polyline fill="none" stroke="${q.color}" stroke-width="1.6" points="${R.samples.map((p) => X(p.at_s) + ',' + Y(q.get(p))).join(' ')}"/>` +
      `<text x="${L + 8 + 90 * i}" y="18" style="fill:${q.color}">${q.name}</text>`;
  });
  el(id).innerHTML = `<svg viewBox="0 0 ${W} ${H}" role="img">${s}</svg>`;
}
lines('lat', [{name: 'p50', color: 'var(--a)', get: (p) => p.p50_ms}, {name: 'p99', color: 'var(--b)', get: (p) => p.p99_ms}], '');
lines('share', [{name: 'evolved', color: 'var(--c)', get: (p) => 100 * p.evolved_share}], ' %');
(function () {
  const ops = R.operators, h = 24, top = Math.max(...ops.map((o) => o.kernel ? o.ci_high : 1), 1.2);
  const X = (v) => 330 + (W - 340) * Math.log(Math.max(v, 0.5) / 0.5) / Math.log(top / 0.5);
  let s = `<line x1="${X(1)}" x2="${X(1)}" y1="0" y2="${ops.length * h}" stroke="var(--dim)"/>`;
  ops.forEach((o, i) => {
    const y = i * h + h / 2;
    s += `<text x="0" y="${y + 4}">${esc(o.op)} ${esc(o.problem)}</text>`;
    if (o.kernel) s += `<line x1="${X(o.ci_low)}" x2="${X(o.ci_high)}" y1="${y}" y2="${y}" stroke="var(--a)" stroke-width="3"/>` +
      `<circle cx="${X(o.speedup)}" cy="${y}" r="5" fill="var(--a)"/><text x="${X(o.ci_high) + 8}" y="${y + 4}">${f(o.speedup)}×</text>`;
    else s += `<circle cx="${X(1)}" cy="${y}" r="4" fill="none" stroke="var(--dim)"/><text x="${X(1) + 10}" y="${y + 4}">library</text>`;
  });
  el('speed').innerHTML = `<svg viewBox="0 0 ${W} ${ops.length * h + 4}" style="height:${ops.length * h + 4}px" role="img">${s}</svg>`;
})();
el('ev').innerHTML = R.events.map((e) => `<tr><td>${f(e.at_s, 1)} s</td><td class="t">${esc(e.text)}</td></tr>`).join('');
</script></body></html>
)HTML";

}  // namespace ranker
