"use strict";
// What every picture is made of, beside web/shared/words.js: scales, and a frame with axes.

const extent = (values) =>
  values.reduce(
    ([low, high], v) => (Number.isFinite(v) ? [Math.min(low, v), Math.max(high, v)] : [low, high]),
    [Infinity, -Infinity],
  );

// ---- Scales: from a figure to a place, with .invert and .ticks(about how many). ----------------------------------------------

function linear([a, b], [from, to]) {
  const scale = (value) => from + ((value - a) / (b - a)) * (to - from);
  scale.invert = (place) => a + ((place - from) / (to - from)) * (b - a);
  scale.domain = [a, b];
  scale.ticks = (wanted) => {
    const raw = (b - a) / Math.max(1, wanted),
      unit = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].find((k) => k * unit >= raw * 0.999) * unit;
    const ticks = [];
    for (let i = Math.ceil(a / step - 1e-9); i * step <= b + step * 1e-9; ++i) ticks.push(i * step + 0); // + 0: no -0
    return ticks;
  };
  return scale;
}

function logarithmic([a, b], [from, to]) {
  const inner = linear([Math.log10(a), Math.log10(b)], [from, to]);
  const scale = (value) => inner(Math.log10(Math.max(value, a * 1e-3)));
  scale.invert = (place) => 10 ** inner.invert(place);
  scale.domain = [a, b];
  scale.ticks = (wanted) => {
    const decades = Math.log10(b / a);
    const steps = decades * 3 <= wanted * 1.6 ? [1, 2, 5] : [1];
    const skip = Math.max(1, Math.ceil(decades / Math.max(1, wanted)));
    const ticks = [];
    for (let e = Math.floor(Math.log10(a) - 1e-9); e <= Math.ceil(Math.log10(b)); ++e)
      if (e % skip === 0) for (const k of steps) ticks.push(k * 10 ** e);
    return ticks.filter((t) => t >= a * 0.999 && t <= b * 1.001);
  };
  return scale;
}
// The ends of a logarithmic axis around these values.
function logDomain(values) {
  const [low, high] = extent(values.filter((v) => v > 0));
  if (!(low <= high)) return [1, 10];
  const pad = Math.max(1.08, (high / low) ** 0.03);
  return high / low > 1.5 ? [low / pad, high * pad] : [low / 1.5, high * 1.5];
}

// ---- Paths. -----------------------------------------------------------------------------------------------------------------

const spot = (n) => Math.round(n * 10) / 10;

// A line through [x, y], interrupted where y is null; `stairs`: each value holds until the next x.
function linePath(points, x, y, stairs = false) {
  let path = "",
    last = null;
  for (const [px, py] of points) {
    if (py === null || py === undefined) {
      last = null;
      continue;
    }
    const at = [spot(x(px)), spot(y(py))];
    if (last === null) path += `M${at[0]} ${at[1]}`;
    else if (stairs) path += at[1] === last[1] ? `H${at[0]}` : `H${at[0]}V${at[1]}`;
    else path += `L${at[0]} ${at[1]}`;
    last = at;
  }
  return path;
}
// The area between two lines over the same xs.
function areaPath(xs, low, high, x, y) {
  if (xs.length === 0) return "";
  const top = xs.map((v, i) => `${spot(x(v))} ${spot(y(high[i]))}`),
    bottom = xs.map((v, i) => `${spot(x(v))} ${spot(y(low[i]))}`).reverse();
  return `M${top.join("L")}L${bottom.join("L")}Z`;
}
const rectPath = (x, y, width, height) => `M${spot(x)} ${spot(y)}h${spot(width)}v${spot(height)}h${-spot(width)}z`;

// ---- The frame of a picture. -------------------------------------------------------------------------------------------------

const kDashes = [undefined, "7 3", "2 3", "9 3 2 3", "1 3", "12 4", "5 2 1 2", "3 6"];
let frames = 0;

class Frame {
  // `x` and `y` make a scale of the range they are given. `name` is what a screen reader says.
  constructor(width, height, { x, y, name, left = 54, right = 14, top = 22, bottom = 36 }) {
    Object.assign(this, { width, height, left, right: width - right, top, bottom: height - bottom });
    this.x = x([this.left, this.right]);
    this.y = y([this.bottom, this.top]);
    const clip = `clip${++frames}`;
    this.plot = svg("g", { "clip-path": `url(#${clip})` });
    this.over = svg("g");
    this.under = svg("g");
    this.root = svg(
      "svg",
      { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": name },
      svg(
        "clipPath",
        { id: clip },
        svg("rect", {
          x: this.left,
          y: this.top - 1,
          width: this.right - this.left,
          height: this.bottom - this.top + 2,
        }),
      ),
      this.under,
      this.plot,
      this.over,
    );
  }

  axisX(label, format = plain, ticks = this.x.ticks(Math.max(2, (this.right - this.left) / 85))) {
    for (const tick of ticks) {
      const at = spot(this.x(tick));
      this.under.append(
        svg("path", { class: "grid", d: `M${at} ${this.top}V${this.bottom}` }),
        svg("text", { x: at, y: this.bottom + 15, "text-anchor": "middle" }, format(tick)),
      );
    }
    this.under.append(
      svg("path", { class: "axis", d: `M${this.left} ${this.bottom}H${this.right}` }),
      svg("text", { x: this.right, y: this.height - 4, "text-anchor": "end" }, label),
    );
    return this;
  }

  axisY(label, format = plain, ticks = this.y.ticks(Math.max(2, (this.bottom - this.top) / 42))) {
    for (const tick of ticks) {
      const at = spot(this.y(tick));
      this.under.append(
        svg("path", { class: "grid", d: `M${this.left} ${at}H${this.right}` }),
        svg("text", { x: this.left - 7, y: at + 4, "text-anchor": "end" }, format(tick)),
      );
    }
    this.under.append(svg("text", { x: 0, y: 10 }, label));
    return this;
  }

  mark(kind, d, series, attributes = {}) {
    this.plot.append(
      svg("path", { class: `${kind}${series === undefined ? "" : ` s${series % 8}`}`, d, ...attributes }),
    );
    return this;
  }
  text(x, y, words, attributes = {}) {
    this.over.append(svg("text", { x: spot(x), y: spot(y), ...attributes }, words));
    return this;
  }
}

// ---- Around a picture. ------------------------------------------------------------------------------------------------------

// A figure in `host`, drawn for the width there is and again when that changes. draw(width) gives a Frame or an <svg>.
function picture(host, { title, legend = [], kept, draw, live }) {
  const holder = html("div"),
    readout = html("div", { class: "readout" });
  const box = html(
    "figure",
    {},
    title ? html("h3", {}, title) : null,
    legend.length ? legendList(legend) : null,
    holder,
    live ? readout : null,
    kept ? html("figcaption", { class: "kept" }, kept) : null,
  );
  host.append(box);
  let last = 0;
  const again = (force = false) => {
    const width = Math.max(240, Math.round(box.clientWidth));
    if (width === last && !force) return;
    last = width;
    const frame = draw(width);
    holder.replaceChildren(frame instanceof Frame ? frame.root : frame);
    if (live) live(frame, readout);
  };
  again();
  new ResizeObserver(() => requestAnimationFrame(() => again())).observe(box); // later: drawing changes what is observed
  return again;
}

// Entries: {name, series, dash?, kind: "line" | "fill" | "limit"}.
function legendList(entries) {
  const swatch = ({ series = 0, dash, kind = "line" }) =>
    svg(
      "svg",
      { viewBox: "0 0 22 10", "aria-hidden": "true" },
      kind === "fill"
        ? svg("rect", { class: `fill s${series % 8}`, x: 4, y: 0, width: 14, height: 10, rx: 2 })
        : svg("path", {
            class: kind === "limit" ? "limit" : `line s${series % 8}`,
            d: "M0 5H22",
            "stroke-dasharray": dash,
          }),
    );
  return html(
    "ul",
    { class: "legend" },
    ...entries.map((entry) => html("li", {}, swatch(entry), html("span", {}, entry.name))),
  );
}

const empty = (host, words) => host.replaceChildren(html("p", { class: "empty" }, words));

// `rows` of cells: a value, a Node, or {text: value}, which is read from the left. `kinds`: a class of each row.
function table(head, rows, kinds = []) {
  const cell = (tag) => (value) =>
    value !== null && typeof value === "object" && !(value instanceof Node)
      ? html(tag, { class: "text" }, value.text)
      : html(tag, {}, value ?? kMissing);
  return html(
    "div",
    { class: "table" },
    html(
      "table",
      {},
      html("thead", {}, html("tr", {}, ...head.map(cell("th")))),
      html(
        "tbody",
        {},
        ...rows.map((row, i) => html("tr", kinds[i] ? { class: kinds[i] } : {}, ...row.map(cell("td")))),
      ),
    ),
  );
}
