// The page around the data.
#include "base/check.h"
#include "base/sha256.h"
#include "measure/report.h"
#include "measure/report_assets.h"

#include <fmt/format.h>

#include <span>
#include <string_view>

namespace tally::measure {
namespace {

using nlohmann::json;

std::string base64(std::span<const uint8_t> bytes) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t group = 0;
    for (size_t k = 0; k < 3; ++k) group = group << 8 | (i + k < bytes.size() ? bytes[i + k] : 0u);
    for (size_t k = 0; k < 4; ++k) out += i + k <= bytes.size() ? kDigits[group >> (18 - 6 * k) & 63] : '=';
  }
  return out;
}

std::string source_of(std::string_view inline_text) {
  return fmt::format("'sha256-{}'", base64(base::sha256(inline_text)));
}

// JSON that cannot end the element it stands in: a browser looks for "</script" and "<!--" and for nothing
// else.
std::string inert(const json& data) {
  std::string out;
  for (const char c : data.dump(-1, ' ', true, json::error_handler_t::replace))
    c == '<' ? void(out += "\\u003c") : void(out += c);
  return out;
}

// The template with "{{name}}" filled in, each once and in this order; what is filled in is not looked at
// again.
std::string filled(std::string_view page, std::span<const std::pair<std::string_view, std::string>> values) {
  std::string out;
  for (const auto& [name, value] : values) {
    const std::string mark = fmt::format("{{{{{}}}}}", name);
    const size_t at = page.find(mark);
    TALLY_CHECK(at != std::string_view::npos, "a mark that the template lacks");
    out.append(page.substr(0, at)).append(value);
    page.remove_prefix(at + mark.size());
  }
  return out.append(page);
}

}  // namespace

std::string report_page(const json& data) {
  const std::string policy =
      fmt::format("default-src 'none'; script-src {}; style-src {}; base-uri 'none'; form-action 'none'",
                  source_of(kReportScript), source_of(kReportCss));
  const std::pair<std::string_view, std::string> values[] = {{"policy", policy},
                                                             {"style", std::string(kReportCss)},
                                                             {"data", inert(data)},
                                                             {"script", std::string(kReportScript)}};
  return filled(kReportHtml, values);
}

}  // namespace tally::measure
