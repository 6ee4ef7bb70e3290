// What the server tells, as figures: the pages of its public routes, read, and what lies between two looks.

const unescaped = (value) => value.replace(/\\(.)/g, (_, c) => (c === "n" ? "\n" : c));

// A page of /metrics: name -> [{labels, value}].
function parseMetrics(text) {
  const families = new Map();
  for (const line of text.split("\n")) {
    const found = /^([A-Za-z_:][\w:]*)(?:\{(.*)\})? (\S+)$/.exec(line);
    if (!found) continue;
    const labels = {};
    for (const [, key, value] of (found[2] ?? "").matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)) labels[key] = unescaped(value);
    const series = { labels, value: found[3] === "+Inf" ? Infinity : Number(found[3]) };
    const family = families.get(found[1]);
    family ? family.push(series) : families.set(found[1], [series]);
  }
  return families;
}

// The value of a series without labels of its own, or with this one.
function valueOf(metrics, name, label, wanted) {
  const found = (metrics.get(name) ?? []).find((series) => label === undefined || series.labels[label] === wanted);
  return found?.value;
}

// A histogram: [[upper edge, count up to it]], ascending.
const bucketsOf = (metrics, name) =>
  (metrics.get(`${name}_bucket`) ?? [])
    .map(({ labels, value }) => [labels.le === "+Inf" ? Infinity : Number(labels.le), value])
    .sort((a, b) => a[0] - b[0]);

// What came between two looks: [{low, high, count}], a bucket each.
function between(before, now) {
  let low = 0,
    counted = 0;
  return now.map(([high, upTo], i) => {
    const total = upTo - (before[i]?.[1] ?? 0);
    const bucket = { low, high, count: total - counted };
    low = high;
    counted = total;
    return bucket;
  });
}

// The q-quantile of buckets, straight within one. Undefined: they are empty. In the last, which has no end, its beginning.
function quantile(buckets, q) {
  const total = buckets.reduce((sum, bucket) => sum + bucket.count, 0);
  let below = 0;
  for (const { low, high, count } of buckets) {
    if (count > 0 && below + count >= q * total)
      return high === Infinity ? low : low + ((high - low) * (q * total - below)) / count;
    below += count;
  }
  return undefined;
}

// The looks of the last while, oldest first: {at (s), metrics}. `since(s)` is the newest that is so old, or the oldest there is.
class Looks {
  constructor(keptS) {
    this.keptS = keptS;
    this.all = [];
  }
  add(at, metrics) {
    // A server that was started anew counts from 0 again: what was before is of no use.
    const steps = (m) => (m.get("tally_steps_total") ?? []).reduce((sum, s) => sum + s.value, 0);
    if (this.all.length > 0 && steps(metrics) < steps(this.last().metrics)) this.all = [];
    this.all.push({ at, metrics });
    while (this.all.length > 2 && at - this.all[1].at >= this.keptS) this.all.shift();
  }
  last() {
    return this.all.at(-1);
  }
  previous() {
    return this.all.at(-2);
  }
  since(seconds) {
    const at = this.last().at - seconds;
    return this.all.findLast((look) => look.at <= at) ?? this.all[0];
  }
  // Growth a second of a counter between the last two looks.
  rate(name, label, wanted) {
    const now = this.last(),
      before = this.previous();
    if (!before) return undefined;
    const grown = valueOf(now.metrics, name, label, wanted) - valueOf(before.metrics, name, label, wanted);
    return Number.isFinite(grown) ? Math.max(0, grown) / (now.at - before.at) : undefined;
  }
}
