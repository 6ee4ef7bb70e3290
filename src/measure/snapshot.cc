#include "measure/snapshot.h"

#include "base/utf8.h"
#include "measure/client.h"
#include "measure/load_head.h"
#include "measure/store.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <set>

namespace tally::measure {
namespace {

using base::Error;
using base::ErrorCode;
using base::Result;
using nlohmann::json;

constexpr uint64_t kFileBytesMax = uint64_t{256} << 20;
constexpr const char* kTotals[] = {"planned_bytes",           "reserved_bytes",
                                   "measured_rss_anon_bytes", "measured_rss_file_bytes",
                                   "measured_swap_bytes",     "unaccounted_bytes"};
constexpr const char* kUses[] = {"planned_bytes", "reserved_bytes", "used_bytes", "peak_bytes"};
constexpr const char* kStates[] = {"free", "held", "cached", "shared", "registered"};

// A whole number of either sign under `key`, that an int64_t holds.
bool has_number(const json& object, const char* key) {
  const auto at = object.find(key);
  return at != object.end() && at->is_number_integer() &&
         (!at->is_number_unsigned() || at->get<uint64_t>() <= uint64_t{INT64_MAX});
}

// The first thing that is not as a snapshot has it; "": nothing.
std::string fault(const json& s) {
  const auto object = [](const json& from, const char* key) {
    return from.contains(key) && from[key].is_object();
  };
  if (!has_number(s, "schema") || s["schema"] != 1) return "schema: not 1, the only one there is";
  if (!object(s, "accounts") || !object(s["accounts"], "accounts")) return "accounts: no memory accounts";
  for (const char* key : kTotals)
    if (!has_number(s["accounts"], key)) return fmt::format("accounts.{}: no whole number", key);
  for (const auto& [name, account] : s["accounts"]["accounts"].items()) {
    const std::string path = "accounts." + base::escape_for_log(name, 40);
    if (!account.is_object() || !object(account, "parts")) return path + ": no account";
    for (const char* key : kUses)
      if (!has_number(account, key)) return fmt::format("{}.{}: no whole number", path, key);
    for (const auto& [part, use] : account["parts"].items())
      if (!use.is_object() || !has_number(use, "reserved_bytes"))
        return fmt::format("{}.{}: no part", path, base::escape_for_log(part, 40));
  }
  if (!object(s, "blocks") || !s["blocks"].contains("blocks") || !s["blocks"]["blocks"].is_array())
    return "blocks: no block map";
  for (const char* key : kStates)
    if (!has_number(s["blocks"], key)) return fmt::format("blocks.{}: no whole number", key);
  return "";
}

Result<json> page_of(Caller& caller, const std::string& url, std::string_view path) {
  TALLY_TRY(const Answer answer, caller.call({.method = "GET", .path = path, .body = ""}));
  const auto refuse = [&](const std::string& what) {
    return Error{ErrorCode::kUnavailable,
                 fmt::format("{}: GET {}: {}", base::escape_for_log(url, 80), path, what)};
  };
  if (answer.status == 401 || answer.status == 403)
    return refuse(fmt::format("HTTP {}: the variable TALLY_API_KEY must hold a key that may administrate",
                              answer.status));
  if (answer.status != 200) return refuse(fmt::format("HTTP {}", answer.status));
  auto page = parse_object(answer.body);
  return page ? std::move(page) : refuse(page.error().message);
}

int64_t number(const json* object, const char* key) {
  return object == nullptr ? 0 : object->at(key).get<int64_t>();
}

json change(int64_t before, int64_t after) { return json::array({before, after, after - before}); }

const json* member(const json& object, const std::string& key) {
  const auto at = object.find(key);
  return at == object.end() ? nullptr : &*at;
}

std::set<std::string> keys_of(const json& a, const json& b) {
  std::set<std::string> keys;
  for (const json* object : {&a, &b})
    for (const auto& item : object->items()) keys.insert(item.key());
  return keys;
}

}  // namespace

Result<json> take_snapshot(const std::string& url, const std::string& api_key) {
  TALLY_TRY(const Endpoint endpoint, resolve(url, api_key));
  Caller caller(endpoint);
  json out = {{"schema", 1}, {"taken", wall_clock()}, {"url", url}};
  TALLY_TRY(out["accounts"], page_of(caller, url, "/v1/accounts"));
  TALLY_TRY(out["blocks"], page_of(caller, url, "/v1/blocks"));
  TALLY_TRY(out["settings"], page_of(caller, url, "/v1/settings"));
  if (const std::string wrong = fault(out); !wrong.empty())
    return Error{ErrorCode::kUnavailable, fmt::format("{}: {}", base::escape_for_log(url, 80), wrong)};
  return out;
}

Result<json> load_snapshot(const std::string& path) {
  const std::string shown = base::escape_for_log(path);
  std::error_code ec;
  if (!std::filesystem::is_regular_file(path, ec))
    return Error{ErrorCode::kNoInput, shown + ": no such file"};
  const uint64_t bytes = std::filesystem::file_size(path, ec);
  if (ec || bytes > kFileBytesMax)
    return Error{ErrorCode::kBadData,
                 fmt::format("{}: {} bytes, at most {} are allowed", shown, bytes, kFileBytesMax)};
  std::string text(bytes, '\0');
  if (!std::ifstream(path, std::ios::binary).read(text.data(), static_cast<std::streamsize>(bytes)))
    return Error{ErrorCode::kNoInput, shown + ": cannot be read"};
  auto snapshot = parse_object(text);
  const std::string wrong = snapshot ? fault(*snapshot) : snapshot.error().message;
  if (!wrong.empty()) return Error{ErrorCode::kBadData, fmt::format("{}: {}", shown, wrong)};
  return snapshot;
}

json diff_snapshots(const json& before, const json& after) {
  const json &a = before["accounts"], &b = after["accounts"];
  json out = {{"totals", json::object()},
              {"accounts", json::object()},
              {"parts", json::object()},
              {"blocks", json::object()}};
  for (const char* key : kTotals) out["totals"][key] = change(number(&a, key), number(&b, key));
  const json none = json::object();
  for (const std::string& name : keys_of(a["accounts"], b["accounts"])) {
    const json *x = member(a["accounts"], name), *y = member(b["accounts"], name);
    for (const char* key : kUses) out["accounts"][name][key] = change(number(x, key), number(y, key));
    const json &xs = x == nullptr ? none : x->at("parts"), &ys = y == nullptr ? none : y->at("parts");
    for (const std::string& part : keys_of(xs, ys))
      out["parts"][name + "/" + part] =
          change(number(member(xs, part), "reserved_bytes"), number(member(ys, part), "reserved_bytes"));
  }
  for (const char* key : kStates)
    out["blocks"][key] = change(number(&before["blocks"], key), number(&after["blocks"], key));
  const json &xs = before["blocks"]["blocks"], &ys = after["blocks"]["blocks"];
  size_t changed = std::max(xs.size(), ys.size()) - std::min(xs.size(), ys.size());
  for (size_t id = 0; id < std::min(xs.size(), ys.size()); ++id)
    changed +=
        xs[id].is_object() && ys[id].is_object() && text_at(xs[id], "state") != text_at(ys[id], "state");
  out["changed_blocks"] = changed;
  return out;
}

}  // namespace tally::measure
