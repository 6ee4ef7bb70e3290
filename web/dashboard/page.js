// The page: looks at the server, and shows what was seen. Text of the server's enters as text nodes and nothing else does.

const kPeriodS = 1, // between two looks; longer where a look takes long: at most a tenth of the time is spent on them
  kShare = 10,
  kBackOffMaxS = 10,
  kQuietS = 10, // pages that change only with steps are looked at so often without one
  kKeptS = 300,
  kMinuteS = 60,
  kPatienceMs = 10_000, // for one page
  kNameMax = 200;

const byId = (id) => document.getElementById(id);
const cut = (text) => (text.length > kNameMax ? `${text.slice(0, kNameMax)}…` : text);

class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function fetchPage(path) {
  const answer = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(kPatienceMs) });
  if (answer.ok) return answer;
  const body = await answer.json().catch(() => ({}));
  throw new Refused(answer.status, cut(String(body?.error?.message ?? `${path} answered ${answer.status}`)));
}

class Page {
  constructor() {
    this.looks = new Looks(kKeptS);
    this.columns = { at: [], running: [], waiting: [], prefill: [], decode: [], usage: [] };
    this.steps = [];
    this.lastStep = 0;
    this.shownStep = -1;
    this.shownAt = 0;
    this.failures = 0;
    this.shut = new Map(); // routes that this key may not see: path -> why
    this.charts = {
      sequences: new Lines(byId("sequences"), [{ name: "running", style: "s0", variable: "--c0" }, { name: "waiting", style: "s1", variable: "--c1", dash: [5, 4] }], whole),
      tokens: new Lines(byId("tokens"), [{ name: "prefill", style: "s1", variable: "--c1" }, { name: "decode", style: "s0", variable: "--c0" }], figure),
      usage: new Lines(byId("usage"), [{ name: "held", style: "s0", variable: "--c0" }], percent),
    };
    this.map = new BlockMap(byId("map"));
    document.addEventListener("visibilitychange", () => this.wake());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.redraw());
    this.run();
  }

  wake() {
    if (document.hidden) this.say("", "Looks pause while the page is hidden.");
    else this.interrupt?.();
  }

  async run() {
    for (;;) {
      const begin = performance.now();
      if (!document.hidden) {
        await this.look().then(
          () => this.sound(),
          (error) => this.fail(error),
        );
      }
      const tookS = (performance.now() - begin) / 1000;
      const waitS = this.failures > 0 ? Math.min(kBackOffMaxS, kPeriodS * 2 ** (this.failures - 1)) : Math.max(kPeriodS - tookS, (kShare - 1) * tookS);
      await new Promise((done) => {
        this.interrupt = done;
        if (!document.hidden) setTimeout(done, 1000 * waitS);
      });
    }
  }

  sound() {
    this.failures = 0;
    this.say("", "");
    document.documentElement.dataset.drawn = "yes";
  }
  fail(error) {
    ++this.failures;
    this.say("bad", error instanceof Refused ? error.message : "The server does not answer; looking again.");
  }
  say(kind, text) {
    const place = byId("state");
    place.className = `banner ${kind}`;
    place.textContent = text;
    place.hidden = text === "";
  }

  // One round. A route that this key may not see says so in its section; the others go on.
  async look() {
    const metrics = parseMetrics(await (await fetchPage("metrics")).text());
    const at = Date.now() / 1000;
    this.looks.add(at, metrics);
    this.take(at, metrics);
    await this.tryPage("v1/steps", "steps", () => this.takeSteps());
    if (this.lastStep !== this.shownStep || at - this.shownAt >= kQuietS) {
      this.shownStep = this.lastStep;
      this.shownAt = at;
      await this.tryPage("v1/blocks", "kv", async () => this.map.show(await (await fetchPage("v1/blocks")).json()));
      await this.tryPage("v1/accounts", "memory", async () => this.showAccounts(await (await fetchPage("v1/accounts")).json()));
    }
    if (!this.settings) await this.tryPage("v1/settings", "settings", async () => this.showSettings(await (await fetchPage("v1/settings")).json()));
  }
  async tryPage(path, section, work) {
    if (this.shut.has(path)) return;
    try {
      await work();
    } catch (error) {
      if (!(error instanceof Refused) || (error.status !== 403 && error.status !== 501)) throw error;
      this.shut.set(path, error.message);
      byId(section).append(html("p", { class: "banner bad" }, error.message));
    }
  }

  // ---- From /metrics. ----

  take(at, metrics) {
    const of = (name, label, wanted) => valueOf(metrics, name, label, wanted);
    const now = {
      at,
      running: of("vllm:num_requests_running"),
      waiting: of("vllm:num_requests_waiting"),
      prefill: this.looks.rate("tally_step_rows_total", "what", "prefill"),
      decode: this.looks.rate("vllm:generation_tokens_total"),
      usage: of("vllm:kv_cache_usage_perc"),
    };
    const columns = this.columns;
    for (const [name, column] of Object.entries(columns)) column.push(now[name] ?? null);
    while (columns.at.length > 2 && at - columns.at[0] > kKeptS) for (const column of Object.values(columns)) column.shift();
    this.charts.sequences.show([columns.at, columns.running, columns.waiting]);
    this.charts.tokens.show([columns.at, columns.prefill, columns.decode]);
    this.charts.usage.show([columns.at, columns.usage]);
    const before = this.looks.since(kMinuteS).metrics;
    const minute = (name) => between(this.looks.all.length > 1 ? bucketsOf(before, name) : [], bucketsOf(metrics, name));
    this.ttft = minute("vllm:time_to_first_token_seconds");
    this.itl = minute("vllm:inter_token_latency_seconds");
    drawBars(byId("ttft"), this.ttft, "--c1");
    drawBars(byId("itl"), this.itl, "--c0");
    this.showTiles(now, of);
    this.showHead(metrics);
  }

  showHead(metrics) {
    const model = metrics.get("tally_model_info")?.[0]?.labels ?? {},
      build = metrics.get("tally_build_info")?.[0]?.labels ?? {};
    byId("model").textContent = cut(model.model ?? "tally");
    document.title = `${cut(model.model ?? "")} – tally`;
    byId("about").textContent = cut(
      [model.arch, model.weight_type, model.kv_type && `KV ${model.kv_type}`, build.isa, build.version && `tally ${build.version}`].filter(Boolean).join(" · "),
    );
  }

  showTiles(now, of) {
    const range = (buckets) => {
      const p99 = quantile(buckets, 0.99);
      return p99 === undefined ? "of the last minute" : `p99 ${milliseconds(p99)}`;
    };
    const p50 = (buckets) => {
      const value = quantile(buckets, 0.5);
      return value === undefined ? kMissing : milliseconds(value);
    };
    const tiles = [
      ["running", whole(now.running), "sequences"],
      ["waiting", whole(now.waiting), now.waiting > 0 ? `oldest ${clock(of("tally_queue_oldest_seconds"))}` : "sequences"],
      ["KV in use", percent(now.usage), `${whole(of("tally_kv_blocks", "state", "held"))} blocks held`],
      ["decode", figure(now.decode), "tokens/s"],
      ["prefill", figure(now.prefill), "tokens/s"],
      ["TTFT, p50", p50(this.ttft), range(this.ttft)],
      ["ITL, p50", p50(this.itl), range(this.itl)],
      ["preemptions", whole(of("vllm:num_preemptions_total")), "since the start"],
    ];
    byId("tiles").replaceChildren(
      ...tiles.map(([name, value, range]) =>
        html("div", { class: "tile" }, html("div", { class: "name" }, name), html("div", { class: "value" }, value), html("div", { class: "range" }, range)),
      ),
    );
  }

  // ---- From /v1/steps. ----

  async takeSteps() {
    const query = this.lastStep === 0 ? "last=1000" : `since=${this.lastStep}`;
    const page = await (await fetchPage(`v1/steps?${query}`)).json();
    if (page.last_step < this.lastStep) this.steps = []; // another server
    this.steps.push(...page.steps);
    this.lastStep = page.last_step; // what did not fit in one answer is left out
    this.steps = this.steps.filter((s) => s.t_us + s.duration_us > page.now_us - kWindowS * 1e6);
    this.nowUs = page.now_us;
    drawTimeline(byId("timeline"), this.steps, this.nowUs);
  }

  // ---- From /v1/accounts and /v1/settings. ----

  showAccounts(page) {
    const names = Object.keys(page.accounts),
      most = Math.max(1, ...names.map((name) => Math.max(page.accounts[name].planned_bytes, page.accounts[name].reserved_bytes)));
    const gauge = (account) => {
      const bar = (n) => `${Math.min(100, (100 * n) / most)}%`;
      const reserved = html("i", { class: "reserved" }),
        used = html("i"),
        planned = html("b");
      reserved.style.width = bar(account.reserved_bytes);
      used.style.width = bar(account.used_bytes);
      planned.style.left = `calc(${bar(account.planned_bytes)} - 2px)`;
      return html("div", { class: "gauge", title: "used, reserved, and planned (the mark)" }, reserved, used, planned);
    };
    const cells = (tag, ...texts) => texts.map(([text, kind]) => html(tag, { class: kind }, text));
    const rows = names.map((name) => {
      const account = page.accounts[name];
      return html(
        "tr",
        {},
        html("td", {}, name),
        html("td", { class: "bar" }, gauge(account)),
        ...cells("td", [bytes(account.used_bytes)], [bytes(account.reserved_bytes), "wide"], [bytes(account.planned_bytes)], [bytes(account.peak_bytes), "wide"]),
      );
    });
    const head = html("tr", {}, ...cells("th", ["account"], [""], ["used"], ["reserved", "wide"], ["planned"], ["peak", "wide"]));
    byId("accounts").replaceChildren(html("table", {}, html("thead", {}, head), html("tbody", {}, ...rows)));
    byId("memory").querySelector(".readout").textContent =
      `planned ${bytes(page.planned_bytes)}, measured ${bytes(page.measured_rss_anon_bytes)} (${signed(page.plan_error_ratio)}), ` +
      `unaccounted ${bytes(page.unaccounted_bytes)}, cap ${bytes(page.cap_bytes)}`;
  }

  showSettings(page) {
    this.settings = page;
    const rows = Object.entries(page.settings)
      .sort(([a, x], [b, y]) => (x.source === "default") - (y.source === "default") || a.localeCompare(b))
      .map(([name, { value, source }]) => html("tr", {}, html("td", {}, name), html("td", { class: "text" }, cut(String(value)) || kMissing), html("td", {}, source)));
    byId("set").replaceChildren(html("table", {}, html("tbody", {}, ...rows)));
  }

  redraw() {
    for (const chart of Object.values(this.charts)) chart.redraw();
    if (this.ttft) drawBars(byId("ttft"), this.ttft, "--c1");
    if (this.itl) drawBars(byId("itl"), this.itl, "--c0");
    if (this.nowUs) drawTimeline(byId("timeline"), this.steps, this.nowUs);
    if (this.map.page) this.map.show(this.map.page);
  }
}

new Page();
