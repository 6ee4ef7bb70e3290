// What all runs of the page say together: the data, figures by class, latency, load.

const report = JSON.parse(document.getElementById("data").textContent);
const body = (id) => document.querySelector(`#${id} .body`);
const remove = (id) => document.getElementById(id).remove();
const isFlat = (value) => value === null || typeof value !== "object";
const text = (value) =>
  value === null || value === undefined || value === ""
    ? kMissing
    : Array.isArray(value) && value.every(isFlat)
      ? value.join(", ")
      : typeof value === "object"
        ? JSON.stringify(value)
        : String(value);
const objectAt = (object, key) =>
  object && typeof object[key] === "object" && object[key] !== null ? object[key] : {};
const listAt = (object, key) => (object && Array.isArray(object[key]) ? object[key] : []);

const loads = report.runs.filter((run) => run.requests.id.length > 0);
const levelName = (series) => (series.open ? "requests/s" : "users");

// ---- Figures. -------------------------------------------------------------------------------------------------------------------

const kColumns = [
  ["ttft_planned", "TTFT", ["p50", "p95", "p99"]],
  ["tpot", "TPOT", ["p50", "p95"]],
  ["itl", "ITL", ["p50", "p99"]],
  ["e2e_planned", "E2E", ["p50", "p95", "p99"]],
];

// "≥" where nothing bounds it from above; the interval below it.
function percentile(results, q, metric) {
  if (!objectAt(results, "n")[metric]) return kMissing;
  const value = results[`${q}_${metric}_ms`],
    [low, high] = listAt(objectAt(results, "ci95"), `${q}_${metric}_ms`);
  const bounded = typeof high === "number";
  return html(
    "span",
    {},
    `${bounded ? "" : "≥ "}${figure(value)}`,
    bounded && typeof low === "number" ? html("small", {}, `${figure(low)}–${figure(high)}`) : null,
  );
}

function figuresTable(first, rows, kinds) {
  const head = [
    { text: first },
    "n",
    "tok\u2060/\u2060s",
    ...kColumns.flatMap(([, name, qs]) => qs.map((q) => `${name} ${q.toUpperCase()}`)),
  ];
  const cells = rows.map(([name, r]) => [
    { text: name },
    html(
      "span",
      {},
      whole(r.completed),
      r.failed + r.refused + r.incomplete > 0
        ? html("small", {}, `+ ${whole(r.failed + r.refused + r.incomplete)} not`)
        : null,
    ),
    figure(r.output_throughput),
    ...kColumns.flatMap(([metric, , qs]) => qs.map((q) => percentile(r, q, metric))),
  ]);
  return table(head, cells, kinds);
}

function tile(name, value, unit, range) {
  return html(
    "div",
    { class: "tile" },
    html("div", { class: "name" }, name),
    html("div", { class: "value" }, value, unit ? html("small", {}, ` ${unit}`) : null),
    html("div", { class: "range" }, range ?? "\u00a0"),
  );
}

function writeFigures() {
  if (report.series.length === 0) return remove("figures");
  const host = body("figures");
  if (report.series.length === 1) {
    const [series] = report.series,
      r = series.results,
      runs = series.runs.map((i) => objectAt(report.runs[i].head, "results"));
    const quantile = (name, metric) => {
      if (!objectAt(r, "n")[metric]) return null;
      const [low, high] = listAt(objectAt(r, "ci95"), `p50_${metric}_ms`);
      return tile(
        name,
        figure(r[`p50_${metric}_ms`]),
        "ms",
        typeof low === "number" && typeof high === "number"
          ? `95 %: ${figure(low)}–${figure(high)}`
          : `n = ${whole(r.n[metric])}`,
      );
    };
    const peak = Math.max(...runs.map((run) => run.peak_rss_anon_bytes ?? 0));
    host.append(
      html(
        "div",
        { class: "tiles" },
        tile(
          "Completed",
          `${whole(r.completed)}`,
          `of ${whole(r.num_prompts)}`,
          `${figure(r.request_throughput)} requests/s`,
        ),
        tile(
          "Throughput",
          figure(r.output_throughput),
          "tokens/s",
          typeof r.goodput_tokens_per_s === "number"
            ? `good: ${figure(r.goodput_tokens_per_s)}`
            : `${figure(r.duration)} s`,
        ),
        quantile("TTFT, median", "ttft_planned"),
        quantile("TPOT, median", "tpot"),
        quantile("E2E, median", "e2e_planned"),
        peak > 0
          ? tile(
              "Memory peak",
              bytes(peak),
              "",
              typeof runs[0].plan_error_ratio === "number" ? `plan ${signed(runs[0].plan_error_ratio)}` : null,
            )
          : null,
      ),
    );
    const classes = Object.entries(series.by_class);
    host.append(
      figuresTable(
        "ms",
        [...(classes.length > 1 ? classes : []), ["all", r]],
        [...(classes.length > 1 ? classes.map(() => "") : []), "sum"],
      ),
    );
    if (series.runs.length > 1)
      host.append(
        html("p", { class: "note" }, `${count(series.runs.length, "repetition")}, one after the other in time.`),
      );
    return;
  }
  host.append(
    figuresTable(
      "ms",
      report.series.map((s) => [`${s.name}${s.runs.length > 1 ? ` (${s.runs.length} runs)` : ""}`, s.results]),
    ),
  );
  for (const series of report.series)
    if (Object.keys(series.by_class).length > 1)
      host.append(
        html(
          "details",
          {},
          html("summary", {}, `${series.name}, by class`),
          figuresTable("ms", Object.entries(series.by_class)),
        ),
      );
}

// ---- Latency: classes of one series, or series over each other, class by class. -----------------------------------------------------

const kLines = 8;

// Lines of a picture: series over each other, or the classes of the only one.
function linesOf(shown, metric, name) {
  if (shown.length > 1)
    return shown
      .filter((s) => s.distributions[metric]?.[name])
      .map((s) => ({ name: s.name, data: s.distributions[metric][name] }));
  const all = objectAt(shown[0].distributions, metric),
    classes = Object.keys(all).filter((key) => key !== "all");
  const names = classes.length > 1 ? ["all", ...classes] : Object.keys(all).slice(0, 1);
  return names.slice(0, kLines).map((key) => ({ name: key, data: all[key] }));
}

function distributionCharts(host, series) {
  host.replaceChildren();
  const shown = series.slice(0, kLines),
    slo = objectAt(shown[0], "slo");
  const panels = (name, title) => {
    const charts = html("div", { class: "charts" });
    host.append(charts);
    for (const [metric, word] of kMetrics) {
      const lines = linesOf(shown, metric, name);
      if (lines.length > 0) distributionPicture(charts, `${word}${title}`, lines, slo[`${metric}_ms`]);
    }
    return charts.childElementCount;
  };
  if (panels("all", "") === 0) return empty(host, "No request completed.");
  if (series.length > kLines)
    host.append(html("p", { class: "note" }, `The first ${kLines} of ${whole(series.length)} are shown.`));
  const classes = [...new Set(shown.flatMap((s) => Object.keys(s.by_class)))];
  if (shown.length > 1 && classes.length > 1) for (const name of classes) panels(name, `, ${name}`);
}

// Several arms at several levels: one level at a time, or the lines would be too many to tell anything.
function writeDistributions() {
  if (report.series.length === 0) return remove("distributions");
  const host = body("distributions"),
    charts = html("div");
  const keyOf = (s) => `${plain(s.level)} ${s.open ? "requests/s" : "users"}`,
    keys = [...new Set(report.series.map(keyOf))];
  const at = (key) => report.series.filter((s) => keyOf(s) === key),
    shared = keys.filter((key) => at(key).length > 1);
  if (shared.length > 0 && keys.length > 1) {
    const select = html(
      "select",
      { "aria-label": "Level" },
      ...shared.map((key) => html("option", { value: key }, key)),
    );
    select.value = shared.at(-1);
    select.addEventListener("change", () => distributionCharts(charts, at(select.value)));
    host.append(
      html("p", { class: "choice" }, "At ", select, ` of ${count(shared.length, "level")} that several arms have.`),
      charts,
    );
    return distributionCharts(charts, at(select.value));
  }
  host.append(charts);
  distributionCharts(charts, report.series);
}

function writeSweep() {
  if (report.sweep.why || report.series.length === 0)
    return report.series.length ? empty(body("sweep"), report.sweep.why) : remove("sweep");
  const host = body("sweep");
  if (report.sweep.arms.every((arm) => arm.points.length < 2))
    return empty(host, "One level only: where throughput bends is seen with several (--concurrency 1,2,4,8).");
  for (const open of [false, true]) {
    const arms = report.sweep.arms.filter((arm) => arm.open === open);
    if (arms.length === 0) continue;
    const several = arms.length > 1,
      charts = html("div", { class: "charts" });
    const lines = (key, name, dash) =>
      arms
        .map((arm, series) => ({
          name: several ? `${arm.arm}, ${name}` : name,
          series,
          dash,
          points: arm.points.filter((p) => p[key] !== null).map((p) => ({ level: p.level, value: p[key] })),
        }))
        .filter(({ points }) => points.length > 0);
    host.append(charts);
    levelPicture(charts, {
      title: "Output tokens a second",
      unit: "tokens/s",
      levelName: levelName(arms[0]),
      lines: [...lines("throughput", "throughput"), ...lines("goodput", "goodput", "7 3")],
      knees: arms.map((arm, series) => ({ knee: arm.knee, series })),
    });
    const slow = [...lines("ttft_ms", "P50"), ...lines("ttft_p95_ms", "P95", "7 3")];
    if (slow.length)
      levelPicture(charts, {
        title: "Time to the first token",
        unit: "ms",
        levelName: levelName(arms[0]),
        log: true,
        lines: slow,
        knees: [],
      });
    if (arms.every((arm) => arm.knee === null))
      host.append(html("p", { class: "empty" }, "No knee: fewer than three levels, or none was good enough."));
  }
}
