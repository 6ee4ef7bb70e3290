// The page: what stands where.

// ---- Head. --------------------------------------------------------------------------------------------------------------------

function writeHead() {
  const head = report.runs[0].head,
    model = objectAt(head, "model"),
    machine = objectAt(head, "machine");
  const models = [
    ...new Set(report.runs.map((run) => text(objectAt(run.head, "model").path_basename).replace(/\.gguf$/, ""))),
  ];
  const commands = [...new Set(report.runs.map((run) => text(run.head.command)))];
  const started = report.runs.map((run) => text(run.head.started)).sort();
  const title = `${commands.join(", ")}: ${models.join(", ")}`;
  document.title = `${title} – tally report`;
  const types = [
    ["weight_type", "weights"],
    ["kv_type", "KV"],
  ]
    .filter(([key]) => model[key])
    .map(([key, name]) => `${text(model[key])} ${name}`);
  const hardware = [
    text(machine.cpu_model),
    `${text(machine.cores_physical)} cores`,
    `${bytes(machine.ram_bytes)} RAM`,
  ];
  document
    .getElementById("head")
    .append(
      html("h1", {}, title),
      html("p", { class: "sub" }, [...(models.length === 1 ? types : []), ...hardware].join(" · ")),
      html(
        "p",
        { class: "sub" },
        `${count(report.runs.length, "run")}, ${started[0]}${started.length > 1 ? ` to ${started.at(-1)}` : ""} · tally ${text(head.tally_version)}`,
      ),
    );
}

function banner(run, name) {
  const reasons = [
    ...(run.head.status === "incomplete" ? ["the run is incomplete"] : []),
    ...listAt(run.head, "invalid_reasons").map(text),
  ];
  const warnings = listAt(run.head, "warnings").map((w) => `Warning: ${text(w)}`),
    lines = [...reasons, ...warnings];
  const good = run.head.valid === true && reasons.length === 0;
  const word =
    run.head.status === "incomplete"
      ? "INCOMPLETE"
      : run.head.valid === true
        ? "VALID"
        : run.head.valid === false
          ? "INVALID"
          : "UNJUDGED";
  return {
    good,
    lines,
    box: html(
      "div",
      { class: good ? "banner" : "banner bad" },
      html("b", {}, word),
      name ? ` ${name}` : "",
      lines.length ? html("ul", {}, ...lines.map((line) => html("li", {}, line))) : null,
    ),
  };
}

const kBanners = 3; // that are open

function writeValidity() {
  const host = body("validity"),
    several = report.runs.length > 1;
  const banners = report.runs.map((run) => banner(run, several ? run.name : ""));
  const bad = banners.filter(({ good }) => !good),
    warned = banners.filter(({ good, lines }) => good && lines.length > 0);
  if (several)
    host.append(
      html(
        "div",
        { class: bad.length ? "banner bad" : "banner" },
        html("b", {}, bad.length ? `${whole(bad.length)} of ${whole(report.runs.length)}` : "VALID"),
        bad.length ? " runs may not be believed, or nobody judged them." : `: all ${whole(report.runs.length)} runs.`,
      ),
    );
  const open = several ? bad : banners;
  host.append(...open.slice(0, kBanners).map(({ box }) => box));
  if (open.length > kBanners)
    host.append(
      html(
        "details",
        {},
        html("summary", {}, `${whole(open.length - kBanners)} more`),
        ...open.slice(kBanners).map(({ box }) => box),
      ),
    );
  if (several && warned.length)
    host.append(
      html(
        "details",
        {},
        html("summary", {}, `Warnings of ${count(warned.length, "run")}`),
        ...warned.map(({ box }) => box),
      ),
    );
  const gates = [
    ["client_lag_p99_ms", "lag of the generator P99, ms", figure],
    ["client_cpu_share", "its CPU", percent],
    ["foreign_cpu_ratio", "CPU of others", percent],
    ["steal_ratio", "stolen by the hypervisor", percent],
    ["majflt", "major faults", whole],
    ["cached_tokens", "prompt tokens found cached", whole],
    ["prompt_tokens_off_ratio", "prompt lengths off", percent],
    ["output_tokens_off_ratio", "output lengths off", percent],
  ];
  if (loads.length === 0) return;
  const rows = loads.map((run) => [
    { text: run.name },
    ...gates.map(([key, , show]) => show(objectAt(run.head, "results")[key])),
  ]);
  host.append(
    html(
      "details",
      {},
      html("summary", {}, "What was checked"),
      table([{ text: "run" }, ...gates.map(([, name]) => ({ text: name }))], rows),
    ),
  );
}

// ---- Runs of other commands: what they stored, as tables. -----------------------------------------------------------------------------

const shown = (value) =>
  typeof value !== "number" ? text(value) : Number.isInteger(value) ? whole(value) : figure(value);

// Nested objects of figures in one row: {text: {kld: {value}}} is "text kld value".
function flatten(object, prefix = "", out = {}) {
  for (const [key, value] of Object.entries(object)) {
    const name = prefix ? `${prefix} ${key}` : key;
    if (isFlat(value)) out[name] = shown(value);
    else if (Array.isArray(value))
      out[name] =
        value.every(isFlat) && value.length <= 8
          ? value.map(shown).join(", ")
          : count(value.length, "entry", "entries");
    else if (prefix.split(" ").length < 4) flatten(value, name, out);
  }
  return out;
}

function results(host, object, depth = 0) {
  const flat = Object.entries(object).filter(([, value]) => isFlat(value));
  if (flat.length)
    host.append(
      table(
        [{ text: "" }, { text: "" }],
        flat.map(([key, value]) => [{ text: key }, { text: shown(value) }]),
      ),
    );
  for (const [key, value] of Object.entries(object)) {
    if (isFlat(value)) continue;
    if (Array.isArray(value) && value.length > 0 && value.every((row) => !isFlat(row) && !Array.isArray(row))) {
      const rows = value.slice(0, 500).map((row) => flatten(row)),
        names = [...new Set(rows.flatMap(Object.keys))];
      host.append(
        html("h3", {}, key),
        table(
          names,
          rows.map((row) => names.map((name) => row[name] ?? kMissing)),
        ),
      );
      if (value.length > rows.length)
        host.append(html("p", { class: "note" }, `The first ${whole(rows.length)} of ${whole(value.length)}.`));
    } else if (Array.isArray(value)) {
      host.append(html("p", {}, html("b", {}, `${key}: `), value.map(shown).join(", ") || "none"));
    } else if (depth < 3) {
      host.append(html("h3", {}, key));
      results(host, value, depth + 1);
    }
  }
}

function writeOther() {
  const others = report.runs.filter((run) => run.requests.id.length === 0);
  if (others.length === 0) return remove("other");
  const host = body("other");
  for (const run of others) {
    host.append(html("h3", {}, `${text(run.head.command)}, ${run.name}`));
    const all = objectAt(run.head, "results");
    if (listAt(all, "codecs").length) paretoPicture(host, all.codecs);
    for (const contrast of listAt(all, "contrasts")) forestPicture(host, contrast);
    if (Object.keys(all).length === 0) host.append(html("p", { class: "empty" }, "The run stored no results."));
    results(host, all);
  }
}

// ---- One run in detail. -------------------------------------------------------------------------------------------------------------

function writeSteps(host, axis, run) {
  stepPictures(host, axis, run.steps, run.requests);
  const total = run.steps.kinds.reduce((sum, k) => sum + k.seconds, 0),
    idle = Math.max(0, run.span_s - total);
  host.append(html("h3", {}, "Where the time of the steps went"));
  stackPicture(host, {
    unit: "s",
    name: "Time by phase",
    rows: run.steps.kinds.map((k) => ({
      label: k.kind,
      note: `${count(k.steps, "step")}, ${percent(total > 0 ? k.seconds / total : 0)} of their time`,
      parts: Object.entries(k.phases_s),
    })),
  });
  host.append(
    html(
      "p",
      { class: "note" },
      `Between steps, or before the first and after the last: ${figure(idle)} s of ${figure(run.span_s)} s. ${
        run.steps.clock_error_s === null
          ? "Nothing in the run ties the server's clock to the client's: the first step is taken to begin as the first request was sent."
          : `The two clocks are tied to within ${figure(run.steps.clock_error_s * 1e3)} ms.`
      }`,
    ),
  );
}

function writePlan(host, rows) {
  planPicture(host, rows);
  host.append(
    table(
      [{ text: "MiB" }, "planned", "measured, least", "most", "error"],
      rows.map(({ name, planned, measured }) => {
        const mib = (n) => (typeof n === "number" ? figure(n / 2 ** 20) : kMissing);
        return [
          { text: name },
          mib(planned),
          mib(measured?.[0]),
          mib(measured?.[1]),
          planned && measured ? signed(measured[1] / planned - 1) : kMissing,
        ];
      }),
      rows.map(({ name }) => (name === "all" ? "sum" : "")),
    ),
    html(
      "p",
      { class: "note" },
      "Accounts: bytes reserved. All: anonymous memory of the process, with swap. Promised: all within 3 % of the plan, unaccounted at most 32 MiB.",
    ),
  );
}

function writeRoofline(host, data) {
  rooflinePicture(host, data);
  const read = Math.max(0, ...data.bandwidth.map((roof) => roof.rate)),
    work = Math.max(0, ...data.operations.map((roof) => roof.rate));
  host.append(
    table(
      [{ text: "steps" }, "op/byte", "GB/s", "of the roof", "Gop/s", "of the roof"],
      data.kinds.map((k) => [
        { text: kKinds[k.kind].name },
        figure(k.intensity),
        figure(k.bytes_per_s / 1e9),
        read ? percent(k.bytes_per_s / read) : kMissing,
        figure(k.flops_per_s / 1e9),
        work ? percent(k.flops_per_s / work) : kMissing,
      ]),
    ),
  );
  if (!read || !work)
    host.append(
      html(
        "p",
        { class: "note" },
        `The roofs of this machine are not measured in this run${read || work ? " (one of them is)" : ""}: tally explain and tally doctor measure them.`,
      ),
    );
}

function writeSlowest(host, data) {
  const row = (r, extra = "") => {
    const brief = `${figure(r.e2e_ms)} ms, ${whole(r.prompt_tokens)} → ${whole(r.output_tokens)} tokens`;
    const preempted = r.preemptions > 0 ? `, preempted ${whole(r.preemptions)}×` : "";
    return {
      label: `${extra}${r.id} ${r.class}`,
      note: `${brief}${preempted}, at ${clock(r.at_s)}`,
      brief,
      parts: r.stages,
    };
  };
  stackPicture(host, {
    unit: "ms",
    name: "Stages of the slowest requests",
    rows: [...data.requests.map((r) => row(r)), row(data.median, "median: ")],
  });
  host.append(
    html(
      "p",
      { class: "note" },
      `The ${whole(data.requests.length)} longest of ${whole(data.of)}, and the median one. Stages that interleave (decode, stalled, sample) are sums.`,
    ),
  );
}

function writeRun(run) {
  const axis = new TimeAxis(run.span_s);
  const part = (id, data, write) => {
    const host = body(id);
    host.replaceChildren();
    data.why ? empty(host, data.why) : write(host, data);
  };
  part("timeline", run.timeline, (host, data) => loadPictures(host, axis, data));
  part("steps", run.steps, (host) => writeSteps(host, axis, run));
  part("gaps", run.gaps, (host, data) => gapPicture(host, axis, data));
  part("memory", run.memory, (host, data) => memoryPicture(host, axis, data));
  part(
    "plan",
    run.memory.why
      ? run.memory
      : run.memory.rows.length
        ? run.memory.rows
        : { why: "This server does not tell its accounts." },
    writePlan,
  );
  part("roofline", run.roofline, writeRoofline);
  part("slowest", run.slowest, writeSlowest);
}

function writeDetail() {
  if (loads.length === 0) {
    for (const section of document.querySelectorAll("section.one")) section.remove();
    return;
  }
  const choice = document.getElementById("choice");
  if (loads.length > 1) {
    const select = html("select", { id: "run" }, ...loads.map((run, i) => html("option", { value: i }, run.name)));
    select.addEventListener("change", () => writeRun(loads[Number(select.value)]));
    choice.append(html("label", { for: "run" }, "One run in detail"), select);
  }
  choice.append(
    html(
      "p",
      { class: "note" },
      "The pictures over time share one axis. Dragging across one looks closer at that part in all of them, a double click at all of it again.",
    ),
  );
  writeRun(loads[0]);
}

// ---- Machine, settings, raw data. -----------------------------------------------------------------------------------------------------

const shownSetting = (entry) =>
  entry === undefined ? kMissing : text(entry && typeof entry === "object" && "value" in entry ? entry.value : entry);

function writeSettings() {
  const host = body("settings"),
    heads = report.runs.map((run) => run.head);
  const pairs = (object) =>
    html(
      "dl",
      {},
      ...Object.entries(object).flatMap(([key, value]) => [
        html("dt", {}, key.replaceAll("_", " ")),
        html("dd", {}, key.endsWith("_bytes") ? bytes(value) : text(value)),
      ]),
    );
  const [head] = heads,
    called = [...new Set(heads.map((h) => `tally ${text(h.command)} ${listAt(h, "argv").map(text).join(" ")}`))];
  host.append(...called.slice(0, 8).map((line) => html("pre", {}, line)));
  for (const [key, title] of [
    ["machine", "Machine"],
    ["model", "Model"],
    ["workload", "Workload"],
    ["client_settings", "Client"],
  ]) {
    const object = objectAt(head, key);
    if (Object.keys(object).length)
      host.append(
        html(
          "details",
          key === "machine" ? { open: "" } : {},
          html("summary", {}, heads.length > 1 ? `${title} of the first run` : title),
          pairs(object),
        ),
      );
  }
  // The settings of the servers: what is no default, and what differs from run to run.
  const maps = heads.map((h) => objectAt(objectAt(h, "settings"), "settings"));
  const names = [...new Set(maps.flatMap(Object.keys))],
    columns = maps
      .map((_, i) => i)
      .filter((i) => Object.keys(maps[i]).length > 0)
      .filter((i) => i === 0 || JSON.stringify(maps[i]) !== JSON.stringify(maps[0]))
      .slice(0, 6);
  if (names.length === 0)
    return void host.append(html("p", { class: "empty" }, "The server does not tell its settings."));
  const isChanged = (name) => new Set(columns.map((i) => shownSetting(maps[i][name]))).size > 1;
  const isSet = (name) =>
    columns.some((i) => objectAt(maps[i], name).source && objectAt(maps[i], name).source !== "default");
  const rows = (list) =>
    table(
      [{ text: "setting" }, ...columns.map((i) => ({ text: columns.length > 1 ? report.runs[i].name : "value" }))],
      list.map((name) => [{ text: name }, ...columns.map((i) => ({ text: shownSetting(maps[i][name]) }))]),
      list.map((name) => (isChanged(name) ? "changed" : "")),
    );
  const told = names.filter((name) => isChanged(name) || isSet(name));
  if (told.length)
    host.append(
      html("h3", {}, columns.length > 1 ? "Settings that are set or differ" : "Settings that are set"),
      rows(told),
    );
  host.append(
    html("details", {}, html("summary", {}, `All ${whole(names.length)} settings of the server`), rows(names)),
  );
}

function writeRaw() {
  const save = document.getElementById("save"),
    data = document.getElementById("data").textContent;
  save.addEventListener(
    "click",
    () => (save.href = URL.createObjectURL(new Blob([data], { type: "application/json" }))),
  );
  save.href = "#raw";
  body("raw").append(
    ...report.runs.map((run) =>
      html("details", {}, html("summary", {}, run.name), html("pre", {}, JSON.stringify(run.head, null, 1))),
    ),
  );
}

// Runs hold what some program of some day wrote: a part that trips over it leaves the others alone.
const kParts = [
  writeHead,
  writeValidity,
  writeFigures,
  writeDistributions,
  writeSweep,
  writeOther,
  writeDetail,
  writeSettings,
  writeRaw,
];
for (const write of kParts) {
  try {
    write();
  } catch (error) {
    const words = `A part of this page cannot be drawn (${write.name}): ${error.message}`;
    document.querySelector("main").prepend(html("p", { class: "banner bad" }, words));
  }
}
addEventListener("beforeprint", () => document.getElementById("definitions").setAttribute("open", ""));
document.documentElement.dataset.drawn = "yes";
