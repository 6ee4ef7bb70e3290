#pragma once
// Who may come in: Host, Origin, key. Judged on the head alone, before routing and before the body is read.

#include "base/sha256.h"
#include "serve/errors.h"
#include "serve/http/message.h"
#include "serve/server.h"

#include <optional>
#include <string>
#include <vector>

namespace tally::serve {

class Gate {
 public:
  // loopback: only local names are served (a web page must not reach us through a name of its own).
  Gate(const Settings& settings, bool loopback);

  // The answer to a CORS preflight, or nothing if it is none.
  std::optional<http::Response> preflight(const http::Request& request) const;
  std::optional<ApiError> judge_host(const http::Request& request) const;
  // Sets request.tenant. Every failure costs the same and says the same.
  std::optional<ApiError> judge_key(http::Request& request) const;
  bool has_keys() const { return !keys_.empty(); }
  bool may_administrate(const std::string& tenant) const;
  // Access-Control-Allow-Origin and Vary, if the request's origin is on the list.
  void add_origin(const http::Request& request, std::vector<http::Field>& fields) const;
  // The client's x-request-id if it is harmless, else a new one.
  static std::string request_id(const http::Request& request);

 private:
  struct Key {
    std::string name;
    std::string digest_hex;
  };
  const std::string* allowed_origin(const http::Request& request) const;

  std::vector<Key> keys_;
  std::vector<std::string> hosts_, origins_;
  bool any_host_ = false, has_admin_ = false;
};

}  // namespace tally::serve
