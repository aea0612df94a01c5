"""A small page for watching a study: how far it is, who is late, bytes, losses where told, events. Nothing can be done on it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

__all__ = ["PAGE", "watching"]

HERE = ("127.0.0.1", "localhost")
"""What this machine is called by a browser on it, also at the end of a tunnel."""

PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>twofold</title>
<meta name="viewport" content="width=device-width">
<style>
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
progress { width: 100%; height: 1rem } table { border-collapse: collapse; width: 100% }
th, td { text-align: right; padding: .2rem .6rem; border-bottom: 1px solid #8884 } th:first-child, td:first-child { text-align: left }
.late td { font-weight: bold } #loss { width: 100%; height: 8rem } ol { padding-left: 1.2rem }
</style>
<h1 id="name">…</h1><p id="how"></p><progress id="bar" max="1" value="0"></progress>
<p id="told"></p><svg id="loss" viewBox="0 0 100 100" preserveAspectRatio="none" role="img" aria-label="loss by round"></svg>
<table><thead><tr><th>client<th>now<th>rounds absent<th>bytes up<th>bytes down</thead><tbody id="who"></tbody></table>
<h2>Events</h2><ol id="events"></ol>
<script>
const get = id => document.getElementById(id), text = (tag, s) => Object.assign(document.createElement(tag), {textContent: s})
function draw(losses) {
  const svg = get("loss"); svg.replaceChildren(); svg.style.display = losses.length < 2 ? "none" : ""; if (losses.length < 2) return
  const xs = losses.map(l => l[0]), ys = losses.map(l => l[1]), top = Math.max(...ys), low = Math.min(...ys)
  const line = document.createElementNS(svg.namespaceURI, "polyline")
  const across = x => 100 * (x - xs[0]) / (xs.at(-1) - xs[0]), up = y => 95 - 90 * (y - low) / (top - low || 1)
  const look = {fill: "none", stroke: "currentColor", "vector-effect": "non-scaling-stroke"}
  line.setAttribute("points", losses.map(([x, y]) => `${across(x)},${up(y)}`).join(" "))
  for (const name in look) line.setAttribute(name, look[name])
  svg.append(line)
}
function told(now) {
  const loss = now.losses?.at(-1), gap = now.bounds?.at(-1)
  return (loss ? `loss ${loss[1].toPrecision(4)} after round ${loss[0]}` : "no loss: nobody has told one (join --tell loss)") +
    (gap ? `; certified gap ${gap[1].toPrecision(3)} after round ${gap[0]}, tolerance ${now.tolerance}` : "")
}
async function look() {
  try {
    const now = await (await fetch("status.json", {cache: "no-store"})).json()
    const late = (Date.now() / 1000 - now.time), seconds = now.seconds.slice().sort((a, b) => a - b)
    const typical = seconds.length ? `, ${seconds[seconds.length >> 1].toFixed(2)} s a round` : ""
    get("name").textContent = now.study
    get("how").textContent = now.over ? `done after ${now.rounds} rounds` : `round ${now.round} of ${now.rounds}${typical}` +
      (now.masks ? ", behind masks" : ", in the open") + (late > 10 ? `; nothing new for ${late.toFixed(0)} s` : "")
    get("bar").max = now.rounds; get("bar").value = now.round
    const rows = now.clients.map((name, m) => {
      const row = document.createElement("tr"), waited = now.waiting.includes(name)
      row.className = waited ? "late" : ""
      const cells = [name, waited ? "waited for" : "", now.absent?.[m] ?? 0, now.up?.[m] ?? 0, now.down?.[m] ?? 0]
      row.append(...cells.map(c => text("td", c.toLocaleString()))); return row
    })
    get("who").replaceChildren(...rows); get("told").textContent = told(now); draw(now.losses ?? [])
    get("events").replaceChildren(...now.events.slice().reverse().map(e => text("li", e)))
  } catch (error) { get("how").textContent = "no word from the coordinator" }
  setTimeout(look, 1000)
}
look()
</script></html>
"""


@contextmanager
def watching(folder: str | Path, port: int | None) -> Iterator[int | None]:
    """Show the page of a run at a port of this machine while the block runs; nothing where `port` is None."""
    if port is None:
        yield None
        return
    status = Path(folder) / "status.json"

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            # A page of somebody else's may have its own name point here: the browser would then let it read what is told.
            if self.headers.get("host", "").rsplit(":", 1)[0].lower() not in HERE:
                self.send_error(421, "ask for 127.0.0.1 or localhost")
                return
            found = {"/": ("text/html", PAGE.encode()), "/status.json": ("application/json", b"")}.get(self.path)
            if found is None:
                self.send_error(404)
                return
            kind, body = found
            try:
                body = body or status.read_bytes()
            except OSError:
                self.send_error(503, "the study has not begun")
                return
            self.send_response(200)
            self.send_header("content-type", f"{kind}; charset=utf-8")
            self.send_header("content-security-policy", "default-src 'self' 'unsafe-inline'")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Nobody needs to know who looked."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
