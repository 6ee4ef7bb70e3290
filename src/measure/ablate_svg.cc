// The forest of an ablation: a line for each ratio, with its interval, over the margin that nobody minds.
#include "base/utf8.h"
#include "measure/ablate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace tally::measure {
namespace {

constexpr double kWidth = 860, kLeft = 150, kRight = 560, kTop = 84, kRow = 19, kHead = 26, kBottom = 44;
constexpr double kSpanMin = .1;  // of the logarithm to either side

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '&' ? "&amp;" : c == '<' ? "&lt;" : std::string(1, c);
  return out;
}

std::string text_at(double x, double y, const char* kind, const std::string& text) {
  return fmt::format("<text class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", kind, x, y,
                     escaped(base::escape_for_log(text, 100)));
}

std::string rectangle(const char* kind, double x1, double x2, double y, double height) {
  return fmt::format("<rect class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\"/>\n",
                     kind, x1, y, x2 - x1, height);
}

class Forest {
 public:
  explicit Forest(const Ablation& ablation) : a_(ablation) {
    for (const ContrastResult& c : a_.contrasts) {
      for (const ComparedMetric& m : c.comparison.metrics) {
        if (!m.judged) continue;
        for (const double ratio : {m.ratio, m.low.value_or(m.ratio), m.high.value_or(m.ratio)})
          span_ = std::max(span_, std::abs(std::log(ratio)) * 1.05);
      }
    }
  }

  std::string draw(const std::string& title) {
    std::string rows;
    double y = kTop;
    for (const ContrastResult& c : a_.contrasts) {
      rows += text_at(
          12, y + kHead - 8, "head",
          fmt::format("{} against {}", a_.design.arms[c.arms.to].name, a_.design.arms[c.arms.from].name));
      y += kHead;
      for (const ComparedMetric& m : c.comparison.metrics) {
        if (!m.judged) continue;
        rows += row(m, y);
        y += kRow;
      }
    }
    return head(title, y + kBottom) + axis(y) + rows + "</svg>\n";
  }

 private:
  double at(double ratio) const {
    return kLeft + (kRight - kLeft) * std::clamp((std::log(ratio) + span_) / (2 * span_), 0., 1.);
  }

  std::string row(const ComparedMetric& m, double y) const {
    const double middle = y + kRow / 2, delta = margin(m.kind);
    std::string out = rectangle("margin", at(std::exp(-delta)), at(std::exp(delta)), y, kRow);
    out += text_at(kLeft - 10, middle + 4, "end", m.name);
    if (m.low)
      out += fmt::format("<line class=\"bar\" x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\"/>\n",
                         at(*m.low), middle, at(*m.high), middle);
    out += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\"/>\n", at(m.ratio), middle);
    const std::string interval = m.low ? fmt::format("  ({:.3f} .. {:.3f})", *m.low, *m.high) : "";
    return out + text_at(kRight + 12, middle + 4, "",
                         fmt::format("{:.3f}{}  {}", m.ratio, interval, verdict_word(m.verdict)));
  }

  // Ticks that are round to either side of 1.
  std::string axis(double y) const {
    const double step = span_ > 1.5   ? std::log(4)
                        : span_ > .6  ? std::log(2)
                        : span_ > .25 ? std::log(1.2)
                                      : std::log(1.05);
    std::string out;
    for (double log = -std::floor(span_ / step) * step; log <= span_ + 1e-9; log += step) {
      const double x = at(std::exp(log));
      out += fmt::format("<line class=\"{}\" x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\"/>\n",
                         std::abs(log) < 1e-9 ? "one" : "tick", x, kTop, x, y);
      out += text_at(x, y + 18, "middle", fmt::format("{:.3g}", std::exp(log)));
    }
    return out;
  }

  std::string head(const std::string& title, double height) const {
    std::string out = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
        "height=\"{1:.0f}\" role=\"img\" aria-label=\"ratios of an ablation with intervals and verdicts\">\n",
        kWidth, height);
    // Colours of the reader's choice: light on dark where that is asked for.
    out +=
        "<style>\n"
        "svg{background:#fff;font:12px system-ui,sans-serif}text{fill:#222}.middle{text-anchor:middle}"
        ".end{text-anchor:end}.title{font-size:15px;font-weight:600}.head{font-weight:600}"
        ".margin{fill:#8892a0;fill-opacity:.16}.tick{stroke:#ddd}.one{stroke:#777}.bar{stroke:#1660b0;stroke-"
        "width:2}"
        "circle{fill:#1660b0}\n"
        "@media (prefers-color-scheme:dark){svg{background:#16181c}text{fill:#e4e6ea}"
        ".tick{stroke:#383c44}.one{stroke:#999}.bar{stroke:#6db3ff}circle{fill:#6db3ff}}\n"
        "</style>\n";
    out += text_at(12, 24, "title", title);
    return out +
           text_at(
               12, 44, "",
               fmt::format(
                   "ratio, better is right of 1; bars: 95 %; grey: the margin of SAME; Holm over {} tests",
                   a_.tests));
  }

  const Ablation& a_;
  double span_ = kSpanMin;
};

}  // namespace

std::string forest_svg(const Ablation& ablation, const std::string& title) {
  return Forest(ablation).draw(title);
}

}  // namespace tally::measure
