// Pictures over the time of one run. They share one axis, one cursor, and what part of the run is looked at.

class TimeAxis {
  constructor(span_s) {
    this.span = span_s;
    this.view = [0, span_s];
    this.cursors = []; // of the pictures: (seconds or null) => void
    this.again = []; // draws a picture anew
  }

  // A frame of the common width; its y is the picture's own.
  frame(width, height, options) {
    const frame = new Frame(width, height, {
      ...options,
      left: 54,
      right: 14,
      x: (r) => linear(this.view, r),
    });
    const long = this.view[1] >= 600;
    return frame.axisX(
      long ? "minutes since the start" : "seconds since the start",
      (v) => (long ? plain(v / 60) : plain(v)),
      long
        ? linear(
            this.view.map((v) => v / 60),
            [0, 1],
          )
            .ticks((frame.right - frame.left) / 85)
            .map((v) => v * 60)
        : undefined,
    );
  }

  picture(host, { words, ...options }) {
    const axis = this;
    this.again.push(picture(host, { ...options, live: (frame, readout) => axis.follow(frame, readout, words) }));
  }

  // The pointer moves the cursor of all pictures; dragging looks closer, a double click at all again.
  follow(frame, readout, words) {
    const line = svg("path", { class: "cursor" }),
      chosen = svg("path", { class: "band s6" });
    frame.over.append(line);
    frame.plot.append(chosen);
    readout.textContent = "\u00a0";
    const show = (t) => {
      line.style.visibility = t === null || t < this.view[0] || t > this.view[1] ? "hidden" : "visible";
      if (t !== null) line.setAttribute("d", `M${spot(frame.x(t))} ${frame.top}V${frame.bottom}`);
      readout.textContent = t === null ? "\u00a0" : `${clock(t)}: ${words(t)}`;
    };
    this.cursors = this.cursors.filter(({ root }) => root.isConnected);
    this.cursors.push({ root: frame.root, show });
    let from = null;
    const root = frame.root;
    root.addEventListener("pointermove", (event) => {
      const t = frame.x.invert(placeOf(frame, event));
      for (const cursor of this.cursors) cursor.show(t);
      if (from !== null)
        chosen.setAttribute(
          "d",
          rectPath(
            Math.min(frame.x(from), frame.x(t)),
            frame.top,
            Math.abs(frame.x(t) - frame.x(from)),
            frame.bottom - frame.top,
          ),
        );
    });
    root.addEventListener("pointerleave", () => {
      from = null;
      chosen.setAttribute("d", "");
      for (const cursor of this.cursors) cursor.show(null);
    });
    root.addEventListener("pointerdown", (event) => {
      if (event.pointerType === "mouse" && event.button === 0) from = frame.x.invert(placeOf(frame, event));
    });
    root.addEventListener("pointerup", (event) => {
      if (from === null) return;
      const to = frame.x.invert(placeOf(frame, event)),
        view = [Math.min(from, to), Math.max(from, to)];
      from = null;
      if (frame.x(view[1]) - frame.x(view[0]) > 6) this.look(view);
    });
    root.addEventListener("dblclick", () => this.look([0, this.span]));
  }

  look(view) {
    this.view = view;
    for (const draw of this.again) draw(true);
  }
}

// The value that holds at t of a curve over equal columns.
const valueAt = (ts, values, t) => {
  if (!values) return null;
  const width = ts.length > 1 ? ts[1] - ts[0] : 1;
  return values[Math.min(ts.length - 1, Math.max(0, Math.floor(t / width)))];
};
// The last column reaches to its end.
const curve = (ts, values) => {
  const points = ts.map((t, i) => [t, values[i]]);
  const width = ts.length > 1 ? ts[1] - ts[0] : 0;
  return points.length ? [...points, [ts.at(-1) + width, values.at(-1)]] : points;
};

// ---- Load. ------------------------------------------------------------------------------------------------------------------

const kSources = {
  steps: "Running, waiting and KV at the end of each step; the largest value of each column",
  samples: "Running, waiting and KV from metrics sampled each 500 ms; the largest value of each column",
  requests: "This server tells nothing of itself: requests as the client saw them",
};

function loadPictures(host, axis, data) {
  const { t } = data,
    most = Math.max(
      1,
      ...["running", "waiting", "under_way"].flatMap((key) => data[key] ?? []).filter(Number.isFinite),
    );
  const lines = [
    ["under_way", "under way (client)", 6, "2 3"],
    ["running", "running", 0],
    ["waiting", "waiting", 1, "7 3"],
  ].filter(([key]) => data[key]);
  axis.picture(host, {
    title: "Requests",
    legend: lines.map(([, name, series, dash]) => ({ name, series, dash })),
    kept: `${kSources[data.source] ?? ""} (${whole(data.points)} points in ${whole(data.columns)} columns).`,
    draw: (width) => {
      const frame = axis
        .frame(width, 190, { name: "Requests running and waiting", y: (r) => linear([0, most * 1.06], r) })
        .axisY("requests");
      for (const [key, , series, dash] of lines)
        frame.mark("line", linePath(curve(t, data[key]), frame.x, frame.y, true), series, {
          "stroke-dasharray": dash,
        });
      return frame;
    },
    words: (at) => lines.map(([key, name]) => `${whole(valueAt(t, data[key], at))} ${name}`).join(", "),
  });
  if (data.kv_held) {
    const held = data.kv_held,
      all = held.map((v, i) => (v === null ? null : v + (data.kv_cached?.[i] ?? 0)));
    axis.picture(host, {
      title: "KV cache",
      legend: [
        { name: "held by requests", series: 0, kind: "fill" },
        ...(data.kv_cached ? [{ name: "cached, free to be taken", series: 5, kind: "fill" }] : []),
        ...(data.recomputed.length ? [{ name: "tokens recomputed after a preemption", series: 1, kind: "fill" }] : []),
      ],
      draw: (width) => {
        const frame = axis
          .frame(width, 150, { name: "Share of the KV cache", y: (r) => linear([0, 1], r) })
          .axisY("of all blocks", (v) => `${plain(v * 100)} %`, [0, 0.5, 1]);
        frame.mark("area quiet", columnsPath(t, all, frame), 5).mark("area", columnsPath(t, held, frame), 0);
        frame.mark("fill", data.recomputed.map(([at]) => rectPath(frame.x(at) - 1, frame.top, 2, 9)).join(""), 1);
        return frame;
      },
      words: (at) =>
        `${percent(valueAt(t, held, at))} held${data.kv_cached ? `, ${percent(valueAt(t, data.kv_cached, at))} cached` : ""}`,
    });
  }
  const { t: at, rate } = data.offered;
  axis.picture(host, {
    title: "Arrivals",
    draw: (width) => {
      const frame = axis
        .frame(width, 120, {
          name: "Requests arriving a second",
          y: (r) => linear([0, Math.max(...rate) * 1.08 || 1], r),
        })
        .axisY("requests/s", plain, undefined);
      const span = at.length > 1 ? at[1] - at[0] : axis.span;
      frame.mark(
        "fill",
        at
          .map((v, i) =>
            rate[i] > 0
              ? rectPath(
                  frame.x(v),
                  frame.y(rate[i]),
                  Math.max(0.8, frame.x(v + span) - frame.x(v) - 1),
                  frame.bottom - frame.y(rate[i]),
                )
              : "",
          )
          .join(""),
        6,
      );
      return frame;
    },
    words: (when) => `${figure(valueAt(at, rate, when) ?? 0)} requests/s`,
  });
}

// A filled curve down to zero.
function columnsPath(ts, values, frame) {
  const points = curve(ts, values).filter(([, v]) => v !== null);
  if (points.length === 0) return "";
  const base = spot(frame.y(0));
  return `${linePath(points, frame.x, frame.y, true).replace(/^M(\S+) /, `M$1 ${base}V`)}V${base}Z`;
}

// ---- Memory. -----------------------------------------------------------------------------------------------------------------

const kAccounts = [
  ["weights", 0],
  ["kv", 2],
  ["activations", 4],
  ["runtime", 3],
];

function memoryPicture(host, axis, data) {
  const { t } = data,
    parts = kAccounts.filter(([name]) => data.accounts[name]);
  const stacked = []; // [name, series, low, high]
  let base = t.map(() => 0);
  for (const [name, series] of parts) {
    const high = base.map((v, i) => v + (data.accounts[name][i] ?? 0));
    stacked.push([name, series, base, high]);
    base = high;
  }
  const known = parts.length ? t.findIndex((_, i) => data.accounts[parts[0][0]][i] !== null) : 0;
  if (parts.length && data.rss_anon) {
    const high = base.map((v, i) => (i < known ? v : Math.max(v, data.rss_anon[i] ?? v)));
    stacked.push(["unaccounted", 1, base, high]);
  }
  const peak = Math.max(
    ...stacked.flatMap(([, , , high]) => high),
    ...(data.rss_anon ?? []).filter(Number.isFinite),
    data.planned_bytes ?? 0,
  );
  const cap = data.cap_bytes,
    capFits = cap !== null && cap <= peak * 1.5;
  const top = Math.max(peak, capFits ? cap : 0) * 1.1,
    [size, unit] = byteUnit(top);
  axis.picture(host, {
    legend: [
      ...stacked.map(([name, series]) => ({ name, series, kind: "fill" })),
      ...(data.rss_anon ? [{ name: "anonymous memory, measured", series: 6 }] : []),
      ...(data.planned_bytes ? [{ name: `plan ${bytes(data.planned_bytes)}`, kind: "limit" }] : []),
      ...(cap !== null
        ? [{ name: `cap ${bytes(cap)}${capFits ? "" : ", above the picture"}`, series: 1, dash: "9 3 2 3" }]
        : []),
    ],
    kept: `${whole(data.samples)} samples in ${whole(data.columns)} columns, the largest value of each. Files (the model mapped or cached) are not in it.`,
    draw: (width) => {
      const frame = axis.frame(width, 260, { name: "Memory over time", y: (r) => linear([0, top], r) });
      frame.axisY(
        unit,
        (v) => plain(v / size),
        linear([0, top / size], [0, 1])
          .ticks(5)
          .map((v) => v * size),
      );
      const from = Math.max(0, known),
        xs = [...t.slice(from), t.at(-1) + (t[1] - t[0] || 0)],
        upTo = (values) => [...values.slice(from), values.at(-1)];
      for (const [, series, low, high] of stacked)
        frame.mark("area", areaPath(xs, upTo(low), upTo(high), frame.x, frame.y), series);
      if (data.rss_anon) frame.mark("line", linePath(curve(t, data.rss_anon), frame.x, frame.y, true), 6);
      const across = (value) => `M${frame.left} ${spot(frame.y(value))}H${frame.right}`;
      if (data.planned_bytes) frame.mark("limit", across(data.planned_bytes));
      if (capFits) frame.mark("line", across(cap), 1, { "stroke-dasharray": "9 3 2 3" });
      return frame;
    },
    words: (at) =>
      [
        `measured ${bytes(valueAt(t, data.rss_anon, at))}`,
        ...parts.map(([name]) => `${name} ${bytes(valueAt(t, data.accounts[name], at))}`),
      ].join(", "),
  });
}

// ---- Steps, and below them who was served by them. --------------------------------------------------------------------------------

function stepPictures(host, axis, data, requests) {
  const most = Math.max(...data.d) * 1e3;
  axis.picture(host, {
    title: "How long each step took",
    legend: kKinds.filter((_, kind) => data.kind.includes(kind)).map((kind) => ({ ...kind, kind: "fill" })),
    kept:
      data.t.length < data.of
        ? `${whole(data.t.length)} of ${whole(data.of)} steps: the longest of each kind in each of 600 equal pieces of time.`
        : `All ${whole(data.of)} steps.`,
    draw: (width) => {
      const frame = axis
        .frame(width, 170, { name: "Duration of steps", y: (r) => linear([0, most * 1.05], r) })
        .axisY("ms");
      const paths = kKinds.map(() => "");
      data.t.forEach((t, i) => {
        if (t + data.d[i] < axis.view[0] || t > axis.view[1]) return;
        const top = frame.y(data.d[i] * 1e3);
        paths[data.kind[i]] += rectPath(
          frame.x(t),
          top,
          Math.max(0.7, frame.x(t + data.d[i]) - frame.x(t)),
          frame.bottom - top,
        );
      });
      paths.forEach((path, kind) => path && frame.mark("fill", path, kKinds[kind].series));
      return frame;
    },
    words: (at) => {
      let i = -1;
      while (i + 1 < data.t.length && data.t[i + 1] <= at) ++i;
      return i < 0 || at > data.t[i] + data.d[i]
        ? "between the steps shown"
        : `step ${data.step[i]}, ${kKinds[data.kind[i]].name}: ${figure(data.d[i] * 1e3)} ms, ${count(data.prefill[i], "prompt token")}, ${count(data.decode[i], "generated token")}, ${count(data.sequences[i], "sequence")}`;
    },
  });
  lanesPicture(host, axis, requests);
}

// A lane is a place that requests take one after the other: as many as there were at once.
function lanesOf(requests) {
  const order = requests.id.map((_, i) => i).sort((a, b) => requests.planned_s[a] - requests.planned_s[b]);
  const free = [],
    lanes = requests.id.map(() => 0);
  for (const i of order) {
    let lane = free.findIndex((end) => end <= requests.planned_s[i] + 1e-9);
    if (lane < 0) lane = free.push(0) - 1;
    free[lane] = requests.end_s[i];
    lanes[i] = lane;
  }
  return { lanes, height: free.length };
}

const kPhases = [
  ["waits", 4],
  ["prompt, to the first token", 1],
  ["tokens come", 0],
  ["failed", 7],
];

function lanesPicture(host, axis, requests) {
  if (requests.id.length === 0) return;
  const { lanes, height } = lanesOf(requests),
    pitch = Math.max(3, Math.min(14, 420 / height));
  axis.picture(host, {
    title: "Requests, a lane for each that was under way at once",
    legend: kPhases
      .filter((_, i) => i < 3 || requests.status.some((s) => s !== "completed"))
      .map(([name, series]) => ({ name, series, kind: "fill" })),
    draw: (width) => {
      const frame = axis.frame(width, height * pitch + 44, {
        name: "Requests over time",
        top: 6,
        y: (r) => linear([height, 0], r),
      });
      const paths = kPhases.map(() => "");
      const bar = (phase, lane, from, to) => {
        if (to <= from || to < axis.view[0] || from > axis.view[1]) return;
        paths[phase] += rectPath(
          frame.x(from),
          frame.y(lane) + 0.5,
          Math.max(0.6, frame.x(to) - frame.x(from)),
          pitch - Math.min(2, pitch / 3),
        );
      };
      requests.id.forEach((_, i) => {
        const sent = requests.sent_s[i],
          first = requests.first_s[i] ?? requests.end_s[i],
          end = requests.end_s[i];
        if (requests.status[i] !== "completed") return bar(3, lanes[i], requests.planned_s[i], end);
        const scheduled = Math.min(first, sent + (requests.queue_s[i] ?? 0));
        bar(0, lanes[i], requests.planned_s[i], scheduled);
        bar(1, lanes[i], scheduled, first);
        bar(2, lanes[i], first, end);
      });
      paths.forEach((path, phase) => path && frame.mark("fill", path, kPhases[phase][1]));
      return frame;
    },
    words: (at) => {
      const now = requests.id.map((_, i) => i).filter((i) => requests.planned_s[i] <= at && at < requests.end_s[i]);
      return now.length === 0
        ? "no request under way"
        : `under way: ${now
            .slice(0, 12)
            .map((i) => `${requests.id[i]} ${requests.class[i]}`)
            .join(", ")}${now.length > 12 ? " …" : ""}`;
    },
  });
}

// ---- Gaps between events: time x length, the darker the more. ---------------------------------------------------------------------

function gapPicture(host, axis, data) {
  const rows = data.cells.map(([, row]) => row),
    edge = (row) => 10 ** (row / data.rows_per_decade);
  const domain = [edge(Math.min(...rows) - 1), edge(Math.max(...rows) + 2)],
    most = Math.max(...data.cells.map(([, , n]) => n));
  const shades = 6,
    shade = (n) => Math.min(shades - 1, Math.floor((Math.log1p(n) / Math.log1p(most)) * shades));
  axis.picture(host, {
    kept: `${whole(data.gaps)} gaps; the darkest cell holds ${whole(most)}. A row that stays dark is the pace; what stands above it in a column is a stall that many felt at once.`,
    draw: (width) => {
      const frame = axis
        .frame(width, 260, { name: "Gaps between events over time", y: (r) => logarithmic(domain, r) })
        .axisY("ms", (v) => v.toLocaleString("en-US"));
      const paths = Array.from({ length: shades }, () => "");
      for (const [column, row, n] of data.cells) {
        const x = frame.x(column * data.width_s),
          y = frame.y(edge(row + 1));
        paths[shade(n)] += rectPath(x, y, frame.x((column + 1) * data.width_s) - x + 0.2, frame.y(edge(row)) - y + 0.2);
      }
      paths.forEach(
        (path, i) =>
          path &&
          frame.plot.append(
            svg("path", { class: "heat", d: path, "fill-opacity": 0.14 + (0.86 * (i + 1)) / shades - 0.02 }),
          ),
      );
      return frame;
    },
    words: (at) => {
      const column = Math.floor(at / data.width_s),
        here = data.cells.filter(([c]) => c === column);
      return here.length === 0
        ? "no gap ends here"
        : `${whole(here.reduce((sum, [, , n]) => sum + n, 0))} gaps, the longest up to ${figure(edge(Math.max(...here.map(([, row]) => row)) + 1))} ms`;
    },
  });
}
