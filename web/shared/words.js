"use strict";
// Of every page: elements, and figures in words.

// ---- Elements. Text enters as text nodes and nothing else does: what a run says is never read as markup. --------------------

const maker =
  (namespace) =>
  (name, attributes = {}, ...children) => {
    const element = document.createElementNS(namespace, name);
    for (const [key, value] of Object.entries(attributes)) if (value !== undefined) element.setAttribute(key, value);
    element.append(
      ...children
        .filter((child) => child !== null && child !== undefined)
        .map((c) => (c instanceof Node ? c : String(c))),
    );
    return element;
  };
const html = maker("http://www.w3.org/1999/xhtml");
const svg = maker("http://www.w3.org/2000/svg");

// ---- Figures: three significant digits, no exponent. ------------------------------------------------------------------------

const kMissing = "–";

function figure(x) {
  if (typeof x !== "number" || !Number.isFinite(x)) return kMissing;
  if (x === 0) return "0";
  const rounded = Number(x.toPrecision(3));
  const digits = Math.max(0, 2 - Math.floor(Math.log10(Math.abs(rounded))));
  const words = Math.abs(rounded).toLocaleString("en-US", {
    minimumFractionDigits: Math.min(digits, 9),
    maximumFractionDigits: Math.min(digits, 9),
  });
  return rounded < 0 ? `−${words}` : words;
}
const whole = (n) => (typeof n === "number" ? Math.round(n).toLocaleString("en-US") : kMissing);
const plain = (x) => Number(x.toPrecision(6)).toLocaleString("en-US", { maximumFractionDigits: 9 }); // of a tick
const percent = (share) => (typeof share === "number" ? `${figure(share * 100)} %` : kMissing);
const signed = (share) =>
  typeof share !== "number"
    ? kMissing
    : Math.abs(share) < 5e-5
      ? "0 %"
      : `${share < 0 ? "−" : "+"}${figure(Math.abs(share) * 100)} %`;
const count = (n, one, many = `${one}s`) => `${whole(n)} ${n === 1 ? one : many}`;
const clock = (s) =>
  s >= 600
    ? `${Math.floor(s / 60)}:${String(Math.floor(s % 60)).padStart(2, "0")} min`
    : `${figure(Math.round(s * 100) / 100)} s`;

// The unit in which figures up to `most` are readable: [size, name].
const unitOf = (most, units) => units.find(([size]) => most >= size) ?? units.at(-1);
const byteUnit = (most) =>
  unitOf(most, [
    [2 ** 30, "GiB"],
    [2 ** 20, "MiB"],
    [2 ** 10, "KiB"],
    [1, "B"],
  ]);
const rateUnit = (most, name) =>
  unitOf(most, [
    [1e12, `T${name}`],
    [1e9, `G${name}`],
    [1e6, `M${name}`],
    [1, name],
  ]);
function bytes(n) {
  if (typeof n !== "number") return kMissing;
  const [size, name] = byteUnit(Math.abs(n));
  return `${n < 0 ? "−" : ""}${figure(Math.abs(n) / size)} ${name}`;
}
