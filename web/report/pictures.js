// Pictures whose x is no time: distributions, levels, roofs, plans, stages.

const kMetrics = [
  ["ttft", "TTFT"],
  ["tpot", "TPOT"],
  ["itl", "ITL"],
  ["e2e", "E2E"],
];

// ---- Distributions: a line for each of `lines` {name, data}. ------------------------------------------------------------------

function distributionPicture(host, title, lines, limit_ms) {
  const values = lines.flatMap(({ data }) => [data.x[0], data.x.at(-1)]);
  if (limit_ms) values.push(limit_ms);
  const domain = logDomain(values);
  const shown = lines.map((line, i) => ({ ...line, series: i, dash: kDashes[i % kDashes.length] }));
  const shareBelow = ({ x, share, n }, value) => {
    let at = -1;
    while (at + 1 < x.length && x[at + 1] <= value) ++at;
    return at < 0 ? (share[0] > 1 / n ? null : 0) : share[at];
  };
  picture(host, {
    title,
    legend: [
      ...shown.map(({ name, data, series, dash }) => ({
        name: `${name} (n = ${whole(data.n)})`,
        series,
        dash,
      })),
      ...(limit_ms ? [{ name: `SLO ${figure(limit_ms)} ms`, kind: "limit" }] : []),
    ],
    draw: (width) => {
      const frame = new Frame(width, 260, {
        name: `Distribution of ${title}`,
        x: (r) => logarithmic(domain, r),
        y: (r) => linear([0, 1], r),
        left: 44,
      });
      frame
        .axisX("ms", (v) => v.toLocaleString("en-US"))
        .axisY("", (v) => `${plain(v * 100)} %`, [0, 0.25, 0.5, 0.75, 0.9, 1]);
      for (const { name, data, series } of shown) {
        if (!data.low || (shown.length > 2 && name !== "all")) continue; // more would only cover each other
        const known = data.x.map((_, i) => i).filter((i) => data.low[i] !== null && data.high[i] !== null);
        if (known.length < 2) continue;
        const edge = (side) => known.map((i) => `${spot(frame.x(data[side][i]))} ${spot(frame.y(data.share[i]))}`);
        frame.mark("band", `M${edge("low").join("L")}L${edge("high").reverse().join("L")}Z`, series);
      }
      for (const { data, series, dash } of shown)
        frame.mark(
          "line",
          linePath([[data.x[0], 0], ...data.x.map((v, i) => [v, data.share[i]])], frame.x, frame.y, true),
          series,
          { "stroke-dasharray": dash },
        );
      if (limit_ms) frame.mark("limit", `M${spot(frame.x(limit_ms))} ${frame.top}V${frame.bottom}`);
      return frame;
    },
    live: (frame, readout) =>
      probe(
        frame,
        readout,
        (x) =>
          `${figure(x)} ms: ${shown.map(({ name, data }) => `${percent(shareBelow(data, x))} of ${name}`).join(", ")}`,
      ),
  });
}

// An upright line under the pointer, and what stands there in words.
function probe(frame, readout, words) {
  const line = svg("path", { class: "cursor" });
  frame.over.append(line);
  readout.textContent = "\u00a0";
  frame.root.addEventListener("pointermove", (event) => {
    const at = placeOf(frame, event);
    line.setAttribute("d", `M${spot(at)} ${frame.top}V${frame.bottom}`);
    line.style.visibility = "visible";
    readout.textContent = words(frame.x.invert(at));
  });
  frame.root.addEventListener("pointerleave", () => {
    line.style.visibility = "hidden";
    readout.textContent = "\u00a0";
  });
}
// The x of a pointer in units of the picture, inside its frame.
function placeOf(frame, event) {
  const box = frame.root.getBoundingClientRect();
  return Math.min(frame.right, Math.max(frame.left, ((event.clientX - box.left) * frame.width) / box.width));
}

// ---- Levels: figures {low, middle, high} against how much at once. --------------------------------------------------------------

function levelPicture(host, { title, unit, lines, knees, levelName, log = false }) {
  const levels = [...new Set(lines.flatMap(({ points }) => points.map((p) => p.level)))].sort((a, b) => a - b);
  const most = Math.max(...lines.flatMap(({ points }) => points.map((p) => p.value[2])));
  picture(host, {
    title,
    legend: lines.map(({ name, series, dash }) => ({ name, series, dash })),
    draw: (width) => {
      const xs = levels.length > 1 ? [levels[0] / 1.15, levels.at(-1) * 1.15] : [levels[0] / 2, levels[0] * 2];
      const frame = new Frame(width, 260, {
        name: title,
        left: 54,
        x: (r) => logarithmic(xs, r),
        y: (r) =>
          log
            ? logarithmic(logDomain(lines.flatMap(({ points }) => points.flatMap((p) => p.value))), r)
            : linear([0, most * 1.08 || 1], r),
      });
      let last = -Infinity;
      const ticks = levels.filter((level) => frame.x(level) - last > 26 && ((last = frame.x(level)), true));
      frame.axisX(levelName, plain, ticks).axisY(unit, (v) => v.toLocaleString("en-US"));
      for (const { knee, series } of knees) {
        if (knee === null) continue;
        const at = spot(frame.x(knee));
        const isRight = at > width - 90;
        frame.mark("knee", `M${at} ${frame.top}V${frame.bottom}`, series);
        frame.text(at + (isRight ? -6 : 6), frame.bottom - 6 - 14 * series, `knee ${plain(knee)}`, {
          class: `named s${series % 8}`,
          "text-anchor": isRight ? "end" : "start",
        });
      }
      for (const { points, series, dash } of lines) {
        frame.mark(
          "line",
          linePath(
            points.map((p) => [p.level, p.value[1]]),
            frame.x,
            frame.y,
          ),
          series,
          { "stroke-dasharray": dash },
        );
        for (const {
          level,
          value: [low, middle, high],
        } of points) {
          const at = spot(frame.x(level));
          if (high > low) frame.mark("line", `M${at} ${spot(frame.y(low))}V${spot(frame.y(high))}`, series);
          frame.plot.append(
            svg(
              "circle",
              { class: `ring s${series % 8}`, cx: at, cy: spot(frame.y(middle)), r: 3.5 },
              svg("title", {}, `${plain(level)}: ${figure(middle)} ${unit}`),
            ),
          );
        }
      }
      return frame;
    },
  });
}

// ---- Roofline. ----------------------------------------------------------------------------------------------------------------

const kKinds = [
  { name: "prefill", series: 1 },
  { name: "decode", series: 0 },
  { name: "mixed", series: 3 },
];

function rooflinePicture(host, { kinds, bandwidth, operations }) {
  const best = (roofs) => roofs.reduce((most, roof) => (most === null || roof.rate > most.rate ? roof : most), null);
  const read = best(bandwidth),
    work = best(operations);
  const dots = kinds.flatMap(({ dots: all }) => all);
  const xs = logDomain([...dots.map(([x]) => x), ...(read && work ? [work.rate / read.rate] : [])]);
  const ys = logDomain([...dots.map(([, y]) => y), ...(work ? [work.rate] : []), ...(read ? [read.rate * xs[0]] : [])]);
  const top = work ? work.rate : read ? read.rate * xs[1] : ys[1];
  picture(host, {
    legend: kinds.map(({ kind, steps }) => ({
      ...kKinds[kind],
      name: `${kKinds[kind].name} (${count(steps, "step")})`,
      kind: "fill",
    })),
    kept: kinds.some(({ dots: all, steps }) => steps > all.length)
      ? `A dot a step; of each kind at most ${Math.max(...kinds.map((k) => k.dots.length))}, evenly chosen. Rings: all steps of a kind together.`
      : "A dot a step. Rings: all steps of a kind together.",
    draw: (width) => {
      const [size, unit] = rateUnit(ys[1], "op/s");
      const frame = new Frame(width, 320, {
        name: "Roofline",
        x: (r) => logarithmic(xs, r),
        y: (r) => logarithmic([ys[0], Math.max(ys[1], top * 1.25)], r),
      });
      frame.axisX("operations a byte").axisY(unit, (v) => plain(v / size));
      if (read) {
        const bend = work ? Math.min(xs[1], work.rate / read.rate) : xs[1];
        frame.mark(
          "roof",
          `M${spot(frame.x(xs[0]))} ${spot(frame.y(read.rate * xs[0]))}L${spot(frame.x(bend))} ${spot(frame.y(read.rate * bend))}`,
        );
        frame.text(
          frame.x(xs[0]) + 8,
          frame.y(read.rate * xs[0]) - 12,
          `${figure(read.rate / 1e9)} GB/s${read.name ? `, ${read.name} threads` : ""}`,
          { class: "mark" },
        );
      }
      if (work) {
        const bend = read ? Math.max(xs[0], work.rate / read.rate) : xs[0];
        frame.mark("roof", `M${spot(frame.x(bend))} ${spot(frame.y(work.rate))}H${frame.right}`);
        for (const { name, rate } of operations) {
          const at = frame.y(rate);
          if (rate !== work.rate) frame.mark("roof thin quiet", `M${frame.left} ${spot(at)}H${frame.right}`);
          frame.text(frame.right - 4, at - 6, `${figure(rate / 1e9)} Gop/s ${name}`, {
            class: "mark",
            "text-anchor": "end",
          });
        }
      }
      for (const { kind, dots: all } of kinds)
        frame.mark(
          "dot",
          all
            .map(([x, y]) => `M${spot(frame.x(x) - 2.5)} ${spot(frame.y(y))}a2.5 2.5 0 1 0 5 0a2.5 2.5 0 1 0 -5 0`)
            .join(""),
          kKinds[kind].series,
        );
      for (const { kind, intensity, flops_per_s } of kinds)
        frame.plot.append(
          svg("circle", {
            class: `ring s${kKinds[kind].series}`,
            cx: spot(frame.x(intensity)),
            cy: spot(frame.y(flops_per_s)),
            r: 5,
          }),
        );
      return frame;
    },
  });
}

// ---- Planned and measured: a range against a mark, one row an account. -----------------------------------------------------------

function planPicture(host, rows) {
  const most = Math.max(...rows.flatMap(({ planned, measured }) => [planned ?? 0, measured ? measured[1] : 0]));
  const [size, unit] = byteUnit(most);
  picture(host, {
    legend: [
      { name: "planned", kind: "limit" },
      { name: "measured: least to most of the run", series: 0, kind: "fill" },
    ],
    draw: (width) => {
      const height = 30 * rows.length + 44;
      const frame = new Frame(width, height, {
        name: "Planned and measured memory",
        left: 92,
        top: 6,
        x: (r) => linear([0, most * 1.05], r),
        y: (r) => linear([rows.length, 0], r),
      });
      frame.axisX(
        unit,
        (v) => plain(v / size),
        linear([0, (most * 1.05) / size], [0, 1])
          .ticks(Math.max(2, (width - 106) / 85))
          .map((t) => t * size),
      );
      rows.forEach(({ name, planned, measured }, i) => {
        const middle = frame.y(i + 0.5);
        frame.text(0, middle + 4, name, { class: name === "all" ? "strong" : "mark" });
        if (measured) {
          const [low, high] = measured.map(frame.x);
          frame.mark("fill quiet", rectPath(frame.left, middle - 6, Math.max(0, low - frame.left), 12), 0);
          frame.mark("fill", rectPath(low, middle - 6, Math.max(1.5, high - low), 12), 0);
        }
        if (planned !== null)
          frame.mark("limit", `M${spot(frame.x(planned))} ${spot(middle - 11)}V${spot(middle + 11)}`);
      });
      return frame;
    },
  });
}

// ---- Where the time of a request went. ------------------------------------------------------------------------------------------

const kStages = {
  client: [6, "waits in the client"],
  tokenize: [7, "tokenize"],
  queue: [4, "queue"],
  prefill: [1, "prefill"],
  stalled: [3, "stalled by others"],
  decode: [0, "decode"],
  sample: [2, "sample"],
  detokenize: [5, "detokenize"],
  send: [5, "send"],
  outside: [6, "outside the server"],
  "first token": [1, "to the first token"],
  stream: [0, "stream"],
  plan: [6, "plan"],
  pack: [7, "pack"],
  linear: [0, "linear"],
  attention: [1, "attention"],
  head: [2, "head"],
  other: [5, "other"],
  commit: [3, "commit"],
};
const stage = (name) => kStages[name] ?? [6, name];

// Rows {label, note, brief, parts: [[name, value]]}; brief: the note where there is little room. Parts below a pixel
// are still in the words of a row.
function stackPicture(host, { rows, unit, name }) {
  const most = Math.max(...rows.map(({ parts }) => parts.reduce((sum, [, value]) => sum + value, 0)));
  const used = [...new Set(rows.flatMap(({ parts }) => parts.filter(([, v]) => v > most / 400).map(([part]) => part)))];
  const order = Object.keys(kStages)
    .filter((part) => used.includes(part))
    .concat(used.filter((part) => !(part in kStages)));
  picture(host, {
    legend: order.map((part) => ({ name: stage(part)[1], series: stage(part)[0], kind: "fill" })),
    draw: (width) => {
      const pitch = 38,
        height = pitch * rows.length + 40;
      const frame = new Frame(width, height, {
        name,
        left: 2,
        right: 20,
        top: 0,
        x: (r) => linear([0, most], r),
        y: (r) => linear([rows.length, 0], r),
      });
      frame.axisX(unit, (v) => v.toLocaleString("en-US"));
      rows.forEach(({ label, note, brief = note, parts }, i) => {
        const top = frame.y(i);
        frame.text(frame.left, top + 14, label, { class: "strong" });
        frame.text(frame.right, top + 14, width < 520 ? brief : note, { "text-anchor": "end" });
        let at = 0;
        const group = svg(
          "g",
          {},
          svg(
            "title",
            {},
            `${label}: ${parts.map(([part, value]) => `${stage(part)[1]} ${figure(value)} ${unit}`).join(", ")}`,
          ),
        );
        for (const [part, value] of parts) {
          const from = frame.x(at),
            to = frame.x((at += value));
          if (to - from > 0.2)
            group.append(svg("path", { class: `fill s${stage(part)[0]}`, d: rectPath(from, top + 19, to - from, 12) }));
        }
        frame.plot.append(group);
      });
      return frame;
    },
  });
}

// ---- Quality of KV types: bytes a token against divergence. ----------------------------------------------------------------------

function paretoPicture(host, codecs) {
  const known = codecs
    .filter((c) => c !== null && typeof c === "object")
    .map((c) => ({ name: String(c.kv_type), bytes: c.bytes_per_token, kld: c.text?.kld_mean }))
    .filter((c) => c.bytes > 0 && c.kld && c.kld.value > 0);
  if (known.length === 0) return;
  const xs = logDomain(known.map((c) => c.bytes)),
    [low, high] = logDomain(known.flatMap((c) => [c.kld.value, c.kld.low, c.kld.high])),
    ys = [low, high * 1.8]; // room for the name of the highest
  picture(host, {
    title: "KLD against f32 KV, by bytes a token; lower left is better",
    draw: (width) => {
      const [size, unit] = byteUnit(xs[1]);
      const frame = new Frame(width, 300, {
        name: "Bytes a token against KLD",
        left: 70,
        right: 40,
        x: (r) => logarithmic([xs[0] / 1.2, xs[1] * 1.2], r),
        y: (r) => logarithmic(ys, r),
      });
      frame
        .axisX(
          `${unit} a token`,
          (v) => figure(v / size),
          known.map((c) => c.bytes),
        )
        .axisY("KLD, nats a token", (v) => plain(v));
      for (const { name, bytes: x, kld } of known) {
        const at = spot(frame.x(x));
        if (kld.low > 0) frame.mark("line", `M${at} ${spot(frame.y(kld.low))}V${spot(frame.y(kld.high))}`, 0);
        frame.plot.append(svg("circle", { class: "ring s0", cx: at, cy: spot(frame.y(kld.value)), r: 4.5 }));
        frame.text(at + (at > width / 2 ? -9 : 9), frame.y(kld.value) - 7, `${name} ${figure(kld.value)}`, {
          class: "mark",
          "text-anchor": at > width / 2 ? "end" : "start",
        });
      }
      return frame;
    },
  });
}

// ---- Did it help: a ratio with its interval for each metric that was judged, against the margin around 1. ----------

function forestPicture(host, contrast) {
  const rows = listAt(contrast, "metrics").filter((m) => m && m.judged === true && m.class === null && m.ratio > 0);
  if (rows.length === 0) return;
  const interval = ({ ci95 }) => (Array.isArray(ci95) && ci95.every((v) => v > 0) ? ci95 : null);
  const ends = rows.flatMap((m) => [m.ratio, ...(interval(m) ?? []), 1 + (m.margin ?? 0), 1 / (1 + (m.margin ?? 0))]);
  const [low, high] = logDomain([...ends, 0.9, 1.1]);
  picture(host, {
    title: `${text(contrast.to)} against ${text(contrast.from)}: ${text(contrast.verdict)}`,
    kept: `Ratio of ${count(contrast.pairs, "pair")}, above 1: better. Bars: 95 % interval; shaded: the margin that counts as the same.`,
    draw: (width) => {
      const frame = new Frame(width, 30 * rows.length + 44, {
        name: "Ratios with their intervals",
        left: 118,
        right: Math.min(170, width / 3),
        top: 6,
        x: (r) => logarithmic([low, high], r),
        y: (r) => linear([rows.length, 0], r),
      });
      const wide = linear([low, high], [0, 1]).ticks(Math.max(2, (frame.right - frame.left) / 85));
      frame.axisX("ratio", plain, wide).mark("limit", `M${spot(frame.x(1))} ${frame.top}V${frame.bottom}`);
      rows.forEach((m, i) => {
        const middle = spot(frame.y(i + 0.5)),
          margin = 1 + (m.margin ?? 0),
          ci = interval(m);
        const from = frame.x(1 / margin);
        frame.mark("band", rectPath(from, middle - 13, frame.x(margin) - from, 26), 6);
        if (ci) frame.mark("line", `M${spot(frame.x(ci[0]))} ${middle}H${spot(frame.x(ci[1]))}`, 0);
        frame.plot.append(svg("circle", { class: "ring s0", cx: spot(frame.x(m.ratio)), cy: middle, r: 4 }));
        frame.text(0, middle + 4, text(m.metric).replaceAll("_", " "), { class: "mark" });
        frame.text(frame.right + 8, middle + 4, `${figure(m.ratio)}  ${text(m.verdict)}`);
      });
      return frame;
    },
  });
}
