"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  root.classList.add("scripted");
  const coarse = matchMedia("(pointer: coarse)");
  const hovers = matchMedia("(hover: hover)");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const colour = name => getComputedStyle(root).getPropertyValue(name).trim();
  const faint = (hex, alpha) => `rgba(${[1, 3, 5].map(i => parseInt(hex.slice(i, i + 2), 16)).join(",")},${alpha})`;
  const finite = values => values.filter(v => v !== null && Number.isFinite(v));
  const pooled = index => (index === null || index === undefined ? null : data.pool[index]);

  function element(tag, attributes = {}, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    node.append(...children);
    return node;
  }

  // "p_w", "L^w", "M^(-1/2)": pieces of text, those after _ and ^ lowered and raised.
  const marks = /([_^])(?:\(([^()]*)\)|([\p{L}\p{N}]+))/gu;
  const html = text => text.replace(/&/g, "&amp;").replace(/</g, "&lt;")
    .replace(marks, (_, mark, inside, word) => (mark === "_" ? `<sub>${inside ?? word}</sub>` : `<sup>${inside ?? word}</sup>`));

  function nodes(text) {
    const out = [];
    let end = 0;
    for (const match of text.matchAll(marks)) {
      out.push(text.slice(end, match.index), element(match[1] === "_" ? "sub" : "sup", {}, match[2] ?? match[3]));
      end = match.index + match[0].length;
    }
    return [...out, text.slice(end)];
  }

  function swatch(style, dotted) {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    for (const [name, value] of Object.entries({ width: 28, height: 10, viewBox: "0 0 28 10", "aria-hidden": "true" })) {
      svg.setAttribute(name, value);
    }
    const line = document.createElementNS(svg.namespaceURI, "path");
    line.setAttribute("d", "M1 5H27");
    line.setAttribute("style", `stroke:var(--c-${style.colour});stroke-width:2.6;fill:none`);
    const dash = dotted ? "2 3" : { dash: "7 4", dot: "2 3", dashdot: "8 3 2 3", longdash: "11 4" }[style.dash];
    if (dash) line.setAttribute("stroke-dasharray", dash);
    svg.append(line);
    return svg;
  }

  class Figure {
    constructor(node, spec) {
      this.node = node;
      this.spec = spec;
      this.hidden = new Set();
      this.state = { x: spec.axes[0].key, gap: true, y: null, across: spec.across };
      this.follow(spec.series[0]);
      this.drawn = false;
      this.build();
    }

    // --- what is chosen ----------------------------------------------------------------------------------------------

    matches(at, except) {
      return this.spec.selectors.every(({ key }) => key === except || this.state[key] === "*" ||
        !(key in at) || at[key] === this.state[key]);
    }

    follow(series) {
      for (const { key, values } of this.spec.selectors) this.state[key] = series.at[key] ?? values[0];
    }

    choose(key, value) {
      this.state[key] = value;
      if (this.chosen().length === 0) {
        // Not run together with the other choices: the nearest that was run.
        const agree = s => this.spec.selectors.filter(c => s.at[c.key] === this.state[c.key]).length;
        const there = this.spec.series.filter(s => s.at[key] === value);
        this.follow(there.reduce((best, s) => (agree(s) > agree(best) ? s : best)));
      }
      this.refresh();
      this.draw();
    }

    chosen() { return this.spec.series.filter(s => this.matches(s.at)); }

    get withGap() { return this.state.gap && this.chosen().some(s => s.gap !== undefined); }

    get scale() { return this.state.y || (this.withGap ? "log" : this.metric.scale); }

    get metric() { return this.spec.metrics[this.state.metric] || this.spec.metrics[this.spec.series[0].at.metric]; }

    get axis() {
      const usable = this.spec.axes.filter(a => this.chosen().some(s => s.x[a.key] !== undefined));
      return usable.find(a => a.key === this.state.x) || usable[0] || this.spec.axes[0];
    }

    // --- controls ----------------------------------------------------------------------------------------------------

    build() {
      const { spec } = this;
      this.controls = this.node.querySelector(".controls");
      this.buttons = [];
      for (const s of spec.selectors) {
        if (s.values.length > 1) this.control(s.key, s.label, s.values.map((v, i) => [v, s.titles[i]]));
      }
      if (spec.axes.length > 1) this.control("x", "Horizontal axis", spec.axes.map(a => [a.key, a.short]));
      if (spec.series.some(s => s.gap !== undefined)) {
        this.control("gap", "Loss", [[true, "gap to the optimum"], [false, "raw loss"]]);
      }
      this.control("y", "Vertical scale", [["linear", "linear"], ["log", "log"]]);
      this.control("across", "Horizontal scale", [["linear", "linear"], ["log", "log"]]);
      this.legend = this.node.querySelector(".legend");
      this.panels = this.node.querySelector(".panels");
      this.plots = spec.panels.values.map((value, i) => {
        const plot = element("div", { class: "plot", role: "img" });
        const title = spec.panels.titles[i];
        const panel = element("div", { class: "panel" });
        if (title) panel.append(element("h4", {}, ...nodes(title)));
        panel.append(plot);
        this.panels.append(panel);
        return { value, title, plot, panel };
      });
      this.absent = element("p", { class: "nothing", hidden: "" });
      this.panels.after(this.absent);
      this.refresh();
    }

    control(key, label, choices) {
      const row = element("div", { class: "choices" });
      for (const [value, title] of choices) {
        const button = element("button", { type: "button", "data-key": key, "data-value": String(value) }, ...nodes(title));
        button.addEventListener("click", () => this.choose(key, value));
        this.buttons.push({ key, value, button });
        row.append(button);
      }
      this.controls.append(element("fieldset", { class: "control" }, element("legend", {}, label), row));
    }

    refresh() {
      const current = { ...this.state, x: this.axis.key, y: this.scale, gap: this.withGap };
      const chosen = this.chosen();
      for (const { key, value, button } of this.buttons) {
        button.setAttribute("aria-pressed", String(current[key] === value));
        button.disabled = key === "gap" ? value && !chosen.some(s => s.gap !== undefined)
          : key === "x" && !chosen.some(s => s.x[value] !== undefined);
      }
      const present = new Set(chosen.map(s => s.at[this.spec.lines.key]));
      this.legend.replaceChildren();
      for (const style of this.spec.lines.styles) {
        if (!present.has(style.value)) continue;
        const button = element("button", { type: "button", "aria-pressed": String(!this.hidden.has(style.value)),
          "data-line": style.value, title: "Show or hide" }, swatch(style), element("span", {}, ...nodes(style.title)));
        button.addEventListener("click", () => {
          this.hidden.has(style.value) ? this.hidden.delete(style.value) : this.hidden.add(style.value);
          button.setAttribute("aria-pressed", String(!this.hidden.has(style.value)));
          this.draw();
        });
        this.legend.append(element("li", {}, button));
      }
      const key = (node, text) => this.legend.append(element("li", {}, element("span", { class: "key" }, node, text)));
      const variants = this.spec.selectors.find(s => s.key === "variant");
      if (this.state.variant === "*") key(swatch({ colour: "grey" }, true), variants.titles[1]);
      if (this.points().length) {
        key(element("span", { "aria-hidden": "true" }, "◇"), "published end point");
      }
    }

    // --- drawing -----------------------------------------------------------------------------------------------------

    draw() {
      this.drawn = true;
      const visible = this.chosen().filter(s => !this.hidden.has(s.at[this.spec.lines.key]));
      const shown = visible.map(s => this.curve(s)).filter(c => c !== null);
      const points = this.points();
      const ranges = { y: this.rangeY(shown, points), x: this.rangeX(shown) };
      const absent = [];
      for (const { value, title, plot, panel } of this.plots) {
        const inside = c => !(this.spec.panels.key in c.at) || c.at[this.spec.panels.key] === value;
        const curves = shown.filter(inside);
        panel.hidden = !this.chosen().some(inside);
        if (panel.hidden) {
          if (this.spec.series.some(s => inside(s) && this.matches(s.at, "variant"))) absent.push(title);
          continue;
        }
        const traces = [...curves.flatMap(c => [this.band(c), this.line(c)]).filter(t => t), ...points.filter(inside).map(p => this.diamond(p))];
        plot.setAttribute("aria-label", this.describe(curves));
        Plotly.react(plot, traces, this.layout(ranges, curves.length === 0 && this.withGap), {
          displaylogo: false, responsive: true, displayModeBar: hovers.matches ? "hover" : false,
          showSendToCloud: false, modeBarButtons: [["zoom2d", "pan2d", "resetScale2d", "toImage"]],
          toImageButtonOptions: { filename: `${this.spec.name}-${value ?? ""}`, scale: 3 },
        });
      }
      this.absent.hidden = absent.length === 0;
      this.absent.replaceChildren("Not run with these settings: ", ...nodes(absent.join(", ")));
    }

    curve(series) {
      const x = pooled(series.x[this.axis.key]);
      const gap = this.withGap && series.gap !== undefined;
      const mean = pooled(gap ? series.gap : series.mean);
      if (x === null || mean === null || (this.withGap && !gap)) return null;
      const log = this.scale === "log", flat = this.state.across === "log";
      const keep = mean.map((y, i) => y !== null && (!log || y > 0) && x[i] !== null && (!flat || x[i] > 0));
      const pick = values => values && values.filter((_, i) => keep[i]);
      const band = gap ? {} : { low: pick(pooled(series.low)), high: pick(pooled(series.high)) };  // quantiles
      return { at: series.at, runs: series.runs, x: pick(x), y: pick(mean), se: pick(pooled(series.stderr)), ...band };
    }

    points() {
      if (this.axis.key !== "rounds") return [];
      const ends = this.chosen().map(s => pooled(s.x.rounds)).filter(x => x).map(x => x[x.length - 1]);
      const end = Math.max(0, ...ends);
      return this.spec.published
        .filter(p => this.matches(p.at, "variant") && !this.hidden.has(p.at[this.spec.lines.key]))
        .map(p => ({ at: p.at, x: p.round, y: this.withGap ? p.gap : p.value }))
        .filter(p => p.x <= 1.01 * end && p.y !== undefined && p.y !== null && (this.scale !== "log" || p.y > 0));
    }

    rangeY(curves, points) {
      const bands = curves.flatMap(c => (c.high ? c.high : c.se ? c.y.flatMap((y, i) => [y + c.se[i], this.scale === "log" ? y : y - c.se[i]]) : []));
      const ys = finite([...curves.flatMap(c => c.y), ...bands, ...points.map(p => p.y)]);
      if (!ys.length) return undefined;
      let low = ys.reduce((a, b) => Math.min(a, b)), high = ys.reduce((a, b) => Math.max(a, b));
      // A method that runs away must not press all others flat.
      const first = Math.max(...finite(curves.map(c => c.y[0])), low), sorted = ys.slice().sort((a, b) => a - b);
      const cap = this.scale === "log" ? 1e3 * first : 3 * first;
      if (high > cap && high > 20 * sorted[sorted.length >> 1]) high = cap;
      if (this.scale === "log") {
        low = Math.log10(low); high = Math.log10(high);
      } else if (low > 0 && low < 0.25 * high) low = 0;
      const pad = 0.05 * (high - low || Math.abs(high) || 1);
      return [this.scale === "linear" && low === 0 ? -0.2 * pad : low - pad, high + pad];
    }

    rangeX(curves) {
      const xs = finite(curves.flatMap(c => [c.x[0], c.x[c.x.length - 1]]));
      if (!xs.length) return undefined;
      let low = Math.min(...xs), high = Math.max(...xs);
      if (this.state.across === "log") { low = Math.log10(low); high = Math.log10(high); }
      const pad = 0.03 * (high - low || 1);
      return [low - (this.state.across === "log" || low > 0 ? pad : 0), high + pad];
    }

    style(at) { return this.spec.lines.styles.find(s => s.value === at[this.spec.lines.key]); }

    name(at) {
      const variants = this.spec.selectors.find(s => s.key === "variant");
      const second = this.state.variant === "*" && "variant" in at ? `, ${variants.titles[variants.values.indexOf(at.variant)]}` : "";
      return this.style(at).title + second;
    }

    line({ at, x, y, se, low, high, runs }) {
      const style = this.style(at), second = this.state.variant === "*" && at.variant === this.spec.dotted;
      return {
        type: "scatter", mode: this.spec.markers ? "lines+markers" : "lines", x, y, name: html(this.name(at)), showlegend: false,
        line: { color: colour(`--c-${style.colour}`), width: second ? 1.6 : 2.2, dash: second ? "dot" : style.dash },
        marker: { size: 7, symbol: style.symbol },
        customdata: y.map((_, i) => (se && se[i] ? ` ± ${se[i].toPrecision(2)}`
          : low && runs > 1 ? ` (${Number(low[i].toPrecision(3))} … ${Number(high[i].toPrecision(3))})` : "")),
        hovertemplate: `%{y:.4~g}%{customdata}${runs > 1 ? ` <i>(${runs} ${this.spec.seed_words})</i>` : ""}`, meta: "line",
      };
    }

    band({ at, x, y, se, low, high, runs }) {
      if (!(low && runs > 1) && (!se || !se.some(v => v > 0))) return null;
      const floor = this.scale === "log" ? 1e-3 * finite(y).reduce((a, b) => Math.min(a, b), Infinity) : -Infinity;
      const up = low ? high : y.map((v, i) => v + (se[i] || 0));
      const down = low ? low.map(v => Math.max(v, floor)) : y.map((v, i) => Math.max(v - (se[i] || 0), floor));
      return {
        type: "scatter", mode: "lines", x: [...x, ...x.slice().reverse()], y: [...up, ...down.reverse()], fill: "toself",
        fillcolor: faint(colour(`--c-${this.style(at).colour}`), 0.17), line: { width: 0 }, hoverinfo: "skip", showlegend: false, meta: "band",
      };
    }

    diamond({ at, x, y }) {
      return {
        type: "scatter", mode: "markers", x: [x], y: [y], name: html(`${this.style(at).title}, published`), showlegend: false, meta: "published",
        marker: { symbol: "diamond-open", size: 9, color: colour(`--c-${this.style(at).colour}`), line: { width: 2 } },
        hovertemplate: "%{y:.4~g}", cliponaxis: false,
      };
    }

    layout({ x, y }, unknown) {
      const axis = this.axis, grid = colour("--line"), ink = colour("--quiet");
      const ticks = (type, range) => {  // 1, 10, 100 on long axes, 1, 2, 5, 10 on short ones
        const decades = type === "log" && range ? range[1] - range[0] : 0;
        // Plotly writes powers a quarter larger than the rest.
        return decades > 2.5 ? { dtick: Math.ceil(decades / 7), exponentformat: "power", tickfont: { size: 9.6 } }
          : decades > 0.7 ? { dtick: "D2", tickformat: "~g" } : {};
      };
      const common = { gridcolor: grid, zeroline: false, linecolor: colour("--strong-line"), tickcolor: grid, automargin: true,
        fixedrange: coarse.matches, exponentformat: "power", title: { standoff: 8, font: { size: 12 } } };
      return {
        font: { family: getComputedStyle(document.body).getPropertyValue("--sans"), size: 12, color: ink },
        paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", margin: { l: 56, r: 12, t: 10, b: 44 },
        hovermode: this.spec.markers ? "closest" : "x unified", dragmode: coarse.matches ? false : "zoom",
        hoverlabel: { bgcolor: colour("--card"), bordercolor: colour("--strong-line"), font: { color: colour("--ink"), size: 12 } },
        annotations: unknown ? [{ text: "no optimum is known here:<br>look at the raw loss", showarrow: false,
          xref: "paper", yref: "paper", x: 0.5, y: 0.5 }] : [],
        modebar: { bgcolor: "rgba(0,0,0,0)", color: ink, activecolor: colour("--ink") },
        xaxis: { ...common, type: this.state.across, range: x, nticks: 6, ticksuffix: axis.key === "bytes" ? "B" : axis.key === "seconds" ? "s" : "",
          exponentformat: ["rounds", "setting"].includes(axis.key) ? "power" : "SI", ...ticks(this.state.across, x), title: { ...common.title, text: html(axis.title) } },
        yaxis: { ...common, type: this.scale, range: y, nticks: 8, ...ticks(this.scale, y),
          title: { ...common.title, text: html(this.withGap ? this.metric.gap : this.metric.title) } },
      };
    }

    describe(curves) {
      const ends = curves.filter(c => c.y.length)
        .map(c => `${this.name(c.at)} ends at ${Number(c.y[c.y.length - 1].toPrecision(3))}`);
      return `${this.withGap ? this.metric.gap : this.metric.title} against ${this.axis.title}. ${ends.join("; ")}.`;
    }
  }

  const figures = [...document.querySelectorAll("figure[data-figure]")].map(
    node => new Figure(node, data.figures[node.dataset.figure]));
  const pending = new Map(figures.map(f => [f.node, f]));
  const watcher = new IntersectionObserver(entries => {
    for (const { target, isIntersecting } of entries) {
      if (!isIntersecting) continue;
      watcher.unobserve(target);
      pending.get(target).draw();
    }
  }, { rootMargin: "600px" });
  figures.forEach(f => watcher.observe(f.node));
  addEventListener("beforeprint", () => figures.forEach(f => f.drawn || f.draw()));
  dark.addEventListener("change", () => figures.forEach(f => f.drawn && f.draw()));
})();
