#include "serve/gate.h"

#include "serve/build_info.h"

#include <openssl/crypto.h>

#include <algorithm>
#include <cctype>

namespace tally::serve {
namespace {

constexpr size_t kRequestIdMax = 64;

std::string lowered(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return out;
}

// Host without its port; brackets of IPv6 stay.
std::string host_name(std::string_view host) {
  if (!host.empty() && host[0] == '[') return lowered(host.substr(0, host.find(']') + 1));
  return lowered(host.substr(0, host.find(':')));
}

bool is_id_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
         c == '-';
}

}  // namespace

Gate::Gate(const Settings& settings, bool loopback)
    : origins_(settings.allowed_origins), any_host_(!loopback) {
  for (const auto& [name, digest] : settings.api_keys) {
    keys_.push_back({name, lowered(digest)});
    has_admin_ = has_admin_ || name.starts_with("admin");
  }
  hosts_ = {"localhost", "127.0.0.1", "[::1]"};
  for (const std::string& host : settings.allowed_hosts) hosts_.push_back(host_name(host));
}

std::optional<ApiError> Gate::judge_host(const http::Request& request) const {
  const std::string* host = request.find("host");
  if (any_host_ || (host && std::find(hosts_.begin(), hosts_.end(), host_name(*host)) != hosts_.end()))
    return std::nullopt;
  return ApiError{Code::kMisdirected, "This server does not answer for that Host."};
}

std::optional<ApiError> Gate::judge_key(http::Request& request) const {
  if (keys_.empty()) return std::nullopt;
  const std::string* header = request.find("authorization");
  std::string_view given = header ? std::string_view(*header) : std::string_view();
  const bool one = request.count("authorization") == 1;
  const bool bearer = given.size() >= 7 && lowered(given.substr(0, 7)) == "bearer ";
  given.remove_prefix(bearer ? 7 : given.size());
  while (!given.empty() && given[0] == ' ') given.remove_prefix(1);
  const std::string digest = base::hex(base::sha256(given));
  const Key* found = nullptr;
  for (const Key& key : keys_)
    if (key.digest_hex.size() == digest.size() &&
        CRYPTO_memcmp(key.digest_hex.data(), digest.data(), digest.size()) == 0)
      found = &key;
  if (!found || !one || !bearer)
    return ApiError{Code::kInvalidApiKey, "A valid API key is needed: Authorization: Bearer <key>."};
  request.tenant = found->name;
  return std::nullopt;
}

bool Gate::may_administrate(const std::string& tenant) const {
  return !has_admin_ || tenant.starts_with("admin");
}

const std::string* Gate::allowed_origin(const http::Request& request) const {
  const std::string* origin = request.find("origin");
  if (!origin || *origin == "null" || request.count("origin") != 1) return nullptr;
  const auto at = std::find(origins_.begin(), origins_.end(), *origin);
  return at == origins_.end() ? nullptr : &*at;
}

void Gate::add_origin(const http::Request& request, std::vector<http::Field>& fields) const {
  const std::string* origin = allowed_origin(request);
  if (!origin) return;
  fields.push_back({"Access-Control-Allow-Origin", *origin});
  fields.push_back({"Vary", "Origin"});
}

std::optional<http::Response> Gate::preflight(const http::Request& request) const {
  if (request.method != "OPTIONS" || !request.find("origin") ||
      !request.find("access-control-request-method"))
    return std::nullopt;
  if (!allowed_origin(request)) return error_response({Code::kForbidden, "This origin is not allowed."});
  http::Response response;
  response.status = 204;
  response.fields.push_back({"Access-Control-Allow-Methods", "GET, HEAD, POST"});
  response.fields.push_back(
      {"Access-Control-Allow-Headers", "Authorization, Content-Type, x-request-id, x-request-timeout"});
  response.fields.push_back({"Access-Control-Max-Age", "600"});
  return response;
}

std::string Gate::request_id(const http::Request& request) {
  const std::string* id = request.find("x-request-id");
  const bool harmless = id && request.count("x-request-id") == 1 && !id->empty() &&
                        id->size() <= kRequestIdMax && std::all_of(id->begin(), id->end(), is_id_char);
  return harmless ? *id : random_hex(16);
}

}  // namespace tally::serve
