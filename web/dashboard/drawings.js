// The pictures: lines by uPlot, the rest on canvases of our own.

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const kFont = '11px system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif';

// ---- Lines over time. -------------------------------------------------------------------------------------------------------

const timeOfDay = (s) => new Date(s * 1000).toLocaleTimeString("en-GB");

// lines: [{name, colour (a variable of the style)}]; unit: a figure in words.
class Lines {
  constructor(place, lines, unit) {
    this.readouts = lines.map(({ name }) => html("span", {}, name));
    const legend = html("ul", { class: "legend" });
    lines.forEach(({ style }, i) => legend.append(html("li", { class: style }, this.readouts[i])));
    this.lines = lines;
    this.unit = unit;
    const ink = () => colour("--soft"),
      axis = { stroke: ink, font: kFont, grid: { stroke: () => colour("--faint"), width: 1 }, ticks: { show: false } };
    this.plot = new uPlot(
      {
        width: Math.max(200, place.clientWidth),
        height: 170,
        legend: { show: false },
        cursor: { drag: { x: false, y: false }, y: false, points: { size: 6 } },
        scales: { y: { range: (_, low, high) => [0, Math.max(high, 1e-9) * 1.08] } },
        axes: [{ ...axis, size: 32, space: 76, incrs: [1, 2, 5, 10, 20, 30, 60, 120], values: (_, ticks) => ticks.map(timeOfDay) }, { ...axis, size: 54, values: (_, ticks) => ticks.map(unit) }],
        series: [
          {},
          ...lines.map(({ variable, dash }) => ({
            stroke: () => colour(variable),
            width: 1.7,
            dash,
            points: { show: false },
          })),
        ],
        hooks: { setCursor: [() => this.tell()] },
      },
      [[], ...lines.map(() => [])],
      place,
    );
    place.append(legend);
    new ResizeObserver(() => this.plot.setSize({ width: Math.max(200, place.clientWidth), height: 170 })).observe(place);
  }
  // columns: the times, then the values of each line.
  show(columns) {
    this.plot.setData(columns);
    this.tell();
  }
  tell() {
    const at = this.plot?.cursor.idx ?? undefined;
    this.lines.forEach(({ name }, i) => {
      const values = this.plot?.data[i + 1] ?? [];
      const value = at === undefined ? values.at(-1) : values[at];
      this.readouts[i].textContent = `${name} ${typeof value === "number" ? this.unit(value) : kMissing}`;
    });
  }
  redraw() {
    this.plot.redraw();
  }
}

// ---- Canvases. --------------------------------------------------------------------------------------------------------------

// A canvas that is as sharp as the screen: {context, width, height} in CSS pixels, empty.
function fresh(canvas, height = canvas.clientHeight) {
  const scale = window.devicePixelRatio || 1,
    width = canvas.clientWidth;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.font = kFont;
  return { context, width, height };
}

const milliseconds = (s) => (s >= 1 ? `${figure(s)} s` : `${figure(s * 1000)} ms`);

// Buckets of a histogram as bars of one width each. Tells p50 and p99 beneath.
function drawBars(canvas, buckets, style) {
  const { context, width, height } = fresh(canvas);
  const readout = canvas.parentElement.querySelector(".readout");
  const total = buckets.reduce((sum, bucket) => sum + bucket.count, 0);
  const told =
    total === 0
      ? "nothing came"
      : `p50 ${milliseconds(quantile(buckets, 0.5))}, p90 ${milliseconds(quantile(buckets, 0.9))}, p99 ` +
        `${milliseconds(quantile(buckets, 0.99))} of ${count(total, "value")}`;
  readout.textContent = told;
  canvas.setAttribute("aria-label", told);
  canvas.dataset.values = String(total);
  if (total === 0) return;
  const first = Math.max(0, buckets.findIndex((b) => b.count > 0) - 1),
    last = Math.min(buckets.length - 1, buckets.findLastIndex((b) => b.count > 0) + 1);
  const shown = buckets.slice(first, last + 1),
    most = Math.max(...shown.map((b) => b.count)),
    step = width / shown.length,
    floor = height - 18;
  context.fillStyle = colour(style);
  shown.forEach(({ count }, i) => {
    const tall = (count / most) * (floor - 14);
    context.fillRect(i * step + 1, floor - tall, Math.max(1, step - 2), tall);
  });
  context.fillStyle = colour("--line");
  context.fillRect(0, floor, width, 1);
  context.fillStyle = colour("--soft");
  context.textAlign = "center";
  context.textBaseline = "top";
  const every = Math.ceil(58 / step);
  shown.forEach(({ high }, i) => {
    const x = (i + 1) * step;
    if (i % every === 0 && Number.isFinite(high) && x > 20 && x < width - 20) context.fillText(milliseconds(high), x, floor + 4);
  });
  shown.forEach(({ count }, i) => {
    if (count > 0 && step >= 26) context.fillText(whole(count), (i + 0.5) * step, floor - (count / most) * (floor - 14) - 13);
  });
}

const kWindowS = 10;

// Steps of the last seconds. Each: {t_us, duration_us, prefill_tokens, recompute_tokens, decode_tokens}.
function drawTimeline(canvas, steps, nowUs) {
  const { context, width, height } = fresh(canvas);
  const floor = height - 18,
    from = nowUs - kWindowS * 1e6,
    xOf = (us) => ((us - from) / (kWindowS * 1e6)) * width;
  const seen = steps.filter((s) => s.t_us + s.duration_us > from);
  const most = Math.max(1000, ...seen.map((s) => s.duration_us));
  const prefill = colour("--c1"),
    decode = colour("--c0");
  let busyUs = 0,
    prefillUs = 0;
  for (const s of seen) {
    const x = Math.max(0, xOf(s.t_us)),
      wide = Math.max(0.7, xOf(s.t_us + s.duration_us) - x - 0.4),
      tall = Math.max(1, (s.duration_us / most) * (floor - 16));
    const prompt = s.prefill_tokens + s.recompute_tokens,
      share = prompt / Math.max(1, prompt + s.decode_tokens);
    context.fillStyle = decode;
    context.fillRect(x, floor - tall * (1 - share), wide, tall * (1 - share));
    context.fillStyle = prefill;
    context.fillRect(x, floor - tall, wide, tall * share);
    busyUs += s.duration_us;
    prefillUs += s.duration_us * share;
  }
  context.fillStyle = colour("--line");
  context.fillRect(0, floor, width, 1);
  context.fillStyle = colour("--soft");
  context.textBaseline = "top";
  context.textAlign = "left";
  context.fillText(`${milliseconds(most / 1e6)} high`, 2, 0);
  const labels = [10, 8, 6, 4, 2, 0];
  labels.forEach((s) => {
    context.textAlign = s === 0 ? "right" : s === 10 ? "left" : "center";
    context.fillText(s === 0 ? "now" : `−${s} s`, width * (1 - s / kWindowS), floor + 4);
  });
  const told =
    seen.length === 0
      ? "no step"
      : `${count(seen.length, "step")}; the engine was busy for ${percent(Math.min(1, busyUs / (kWindowS * 1e6)))} of the time, ` +
        `${percent(prefillUs / busyUs)} of that with prompts`;
  canvas.parentElement.querySelector(".readout").textContent = told;
  canvas.setAttribute("aria-label", told);
  canvas.dataset.steps = String(seen.length);
}

// The pool, a cell a block, or several where there are more blocks than places: then the one most in use is shown.
class BlockMap {
  constructor(canvas) {
    this.canvas = canvas;
    this.readout = canvas.parentElement.querySelector(".readout");
    canvas.addEventListener("pointermove", (event) => this.point(event));
    canvas.addEventListener("pointerleave", () => this.tell());
  }
  show(page) {
    this.page = page;
    const n = page.blocks.length,
      width = this.canvas.clientWidth,
      kTall = 190;
    this.cell = Math.min(15, Math.max(3, Math.floor(Math.sqrt((width * kTall) / Math.max(1, n)))));
    this.columns = Math.max(1, Math.floor(width / this.cell));
    this.together = Math.max(1, Math.ceil(n / (this.columns * Math.floor(kTall / this.cell))));
    const cells = Math.ceil(n / this.together),
      height = Math.max(this.cell, Math.ceil(cells / this.columns) * this.cell);
    this.canvas.style.height = `${height}px`;
    const { context } = fresh(this.canvas, height);
    const colours = { held: colour("--c0"), shared: colour("--c3"), cached: colour("--c2"), free: colour("--faint") };
    const gap = this.cell > 4 ? 1 : 0.5;
    for (let i = 0; i < cells; ++i) {
      const { kind, fill } = this.most(i);
      context.fillStyle = colours[kind];
      context.globalAlpha = kind === "free" ? 1 : kind === "cached" ? 0.5 : 0.4 + 0.6 * fill;
      context.fillRect((i % this.columns) * this.cell, Math.floor(i / this.columns) * this.cell, this.cell - gap, this.cell - gap);
    }
    context.globalAlpha = 1;
    this.canvas.dataset.blocks = String(n);
    this.tell();
  }
  // Of the blocks of a cell, that which is used most.
  most(cell) {
    const rank = ["free", "cached", "held", "shared"];
    let best = { kind: "free", fill: 0 };
    for (let id = cell * this.together; id < Math.min(this.page.blocks.length, (cell + 1) * this.together); ++id) {
      const block = this.page.blocks[id],
        kind = block.owners > 1 ? "shared" : block.state;
      if (rank.indexOf(kind) >= rank.indexOf(best.kind)) best = { kind, fill: block.tokens / this.page.block_tokens };
    }
    return best;
  }
  tell() {
    const p = this.page;
    if (!p) return;
    const told =
      `${count(p.total, "block")} of ${whole(p.block_tokens)} tokens: ${whole(p.held)} held, of which ${whole(p.shared)} shared; ` +
      `${whole(p.cached)} cached, ${whole(p.free)} free; ${count(p.internal_waste_tokens, "row")} of held blocks not written yet`;
    this.readout.textContent = told;
    this.canvas.setAttribute("aria-label", told);
  }
  point(event) {
    if (!this.page) return;
    const box = this.canvas.getBoundingClientRect();
    const cell = Math.floor((event.clientY - box.top) / this.cell) * this.columns + Math.floor((event.clientX - box.left) / this.cell);
    const block = this.page.blocks[cell * this.together];
    if (!block) return this.tell();
    this.readout.textContent =
      `block ${block.id}: ${block.state}${block.registered ? ", registered" : ""}, ${count(block.owners, "owner")}, ` +
      `${whole(block.tokens)} tokens, used ${count(block.age_steps, "step")} ago`;
  }
}
