// Bytes per token against KLD: which codec is worth its memory.
#include "base/check.h"
#include "measure/eval.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace tally::measure {
namespace {

constexpr double kWidth = 640, kHeight = 420, kLeft = 84, kRight = 36, kTop = 56, kBottom = 72;

// Both axes are logarithmic; whole decades (or, of bytes, powers of two) at the ends.
struct Axis {
  double low = 0, high = 1;  // of the logarithm
  double from = 0, to = 1;   // in the picture
  double at(double log) const { return from + (to - from) * (log - low) / (high - low); }
};

Axis axis_of(std::vector<double> logs, double from, double to) {
  const auto [least, most] = std::minmax_element(logs.begin(), logs.end());
  Axis axis{std::floor(*least), std::ceil(*most), from, to};
  if (axis.high <= axis.low) axis.high = axis.low + 1;
  return axis;
}

std::string bytes_word(double bytes) {
  if (bytes >= 0x1p20) return fmt::format("{:g} MiB", bytes / 0x1p20);
  return bytes >= 1024 ? fmt::format("{:g} KiB", bytes / 1024) : fmt::format("{:g} B", bytes);
}

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      default:
        out += c >= ' ' && c != 127 ? c : '?';
    }
  }
  return out;
}

std::string text_at(double x, double y, std::string_view kind, const std::string& text) {
  return fmt::format("<text class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", kind, x, y, escaped(text));
}

std::string line(double x1, double y1, double x2, double y2) {
  return fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\"/>\n", x1, y1, x2, y2);
}

std::string grid(const Axis& x, const Axis& y) {
  std::string lines, words;
  for (double log = x.low; log <= x.high; ++log) {
    lines += line(x.at(log), y.from, x.at(log), y.to);
    words += text_at(x.at(log), y.from + 18, "middle", bytes_word(std::exp2(log)));
  }
  for (double log = y.low; log <= y.high; ++log) {
    lines += line(x.from, y.at(log), x.to, y.at(log));
    words += text_at(x.from - 8, y.at(log) + 4, "end", fmt::format("{:g}", std::pow(10, log)));
  }
  return fmt::format("<g class=\"grid\">\n{}</g>\n{}", lines, words);
}

// A codec whose KLD is 0 has no place on a logarithmic axis: it stands on its lower edge.
std::string points(const EvalReport& report, const Axis& x, const Axis& y) {
  std::string out;
  for (const CodecFigures& codec : report.codecs) {
    const double px = x.at(std::log2(static_cast<double>(codec.bytes_per_token)));
    const Estimate& kld = codec.text.kld;
    const double py = kld.value > 0 ? y.at(std::log10(kld.value)) : y.from;
    if (kld.interval.low > 0) {
      const auto inside = [&](double value) { return std::clamp(y.at(std::log10(value)), y.to, y.from); };
      out += fmt::format("<g class=\"bar\">{}</g>\n",
                         line(px, inside(kld.interval.low), px, inside(kld.interval.high)));
    }
    out += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"5\"/>\n", px, py);
    const std::string label = kld.value > 0 ? fmt::format("{}  {:.2g}", codec.kv_type, kld.value)
                                            : fmt::format("{}  0", codec.kv_type);
    const bool is_right = px > (x.from + x.to) / 2;
    out += text_at(px + (is_right ? -10 : 10), py - 8, is_right ? "label end" : "label", label);
  }
  return out;
}

}  // namespace

std::string eval_svg(const EvalReport& report, const std::string& title) {
  TALLY_CHECK(report.has_reference(), "a picture without a reference");
  std::vector<double> bytes, klds;
  for (const CodecFigures& codec : report.codecs) {
    bytes.push_back(std::log2(static_cast<double>(codec.bytes_per_token)));
    if (codec.text.kld.value > 0) klds.push_back(std::log10(codec.text.kld.value));
  }
  if (klds.empty()) klds.push_back(-4);
  const Axis x = axis_of(bytes, kLeft, kWidth - kRight), y = axis_of(klds, kHeight - kBottom, kTop);
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
      "height=\"{1:.0f}\" role=\"img\" aria-label=\"{2}\">\n",
      kWidth, kHeight, "KV cache bytes per token against KL divergence from f32 KV");
  // Colours of the reader's choice: light on dark where that is asked for.
  out +=
      "<style>\n"
      "svg{background:#fff;font:12px system-ui,sans-serif}text{fill:#222}.middle{text-anchor:middle}"
      ".end{text-anchor:end}.title{font-size:15px;font-weight:600}.label{font-weight:600}"
      ".grid line{stroke:#ddd}.bar line{stroke:#1660b0;stroke-width:2}circle{fill:#1660b0}\n"
      "@media (prefers-color-scheme:dark){svg{background:#16181c}text{fill:#e4e6ea}.grid line{stroke:#383c44}"
      ".bar line{stroke:#6db3ff}circle{fill:#6db3ff}}\n"
      "</style>\n";
  out += text_at(kLeft, 24, "title", title);
  out += text_at(kLeft, 42, "",
                 fmt::format("{} positions, windows of {} tokens; bars: 95 %; lower left is better",
                             report.codecs.front().text.positions, report.options.context));
  out += grid(x, y);
  out += text_at((x.from + x.to) / 2, kHeight - 22, "middle", "KV cache per token, bytes (log scale)");
  out += fmt::format(
      "<text class=\"middle\" transform=\"translate(20 {:.1f}) rotate(-90)\">KLD against f32 KV, nats per "
      "token "
      "(log scale)</text>\n",
      (y.from + y.to) / 2);
  out += points(report, x, y);
  return out + "</svg>\n";
}

}  // namespace tally::measure
