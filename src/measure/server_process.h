// A server of our own on a free loopback port: started, waited for, stopped.
#pragma once

#include "base/result.h"
#include "measure/child_process.h"

#include <functional>
#include <string>
#include <vector>

namespace tally::measure {

struct ServerStart {
  std::string program, model;      // paths; the program is called as PROGRAM serve MODEL --port 0 FLAGS...
  std::vector<std::string> flags;  // "--kv-type", "int8", ...
  double timeout_s = 600;          // until it is ready
};

class ServerProcess {
 public:
  // Returns when /readyz is 200. `go_on` is asked every few milliseconds and may give up.
  // Errors: kUnavailable with what the server said last: it ended, or was not ready in time; kInternal
  // "interrupted".
  static base::Result<ServerProcess> start(const ServerStart& how, const std::function<bool()>& go_on);

  const std::string& url() const { return url_; }
  int pid() const { return child_.pid(); }
  // SIGTERM, and SIGKILL after half a minute. Errors: kUnavailable when the server had ended before or did
  // not end with 0, with what it said last.
  base::Result<void> stop();

 private:
  explicit ServerProcess(ChildProcess child) : child_(std::move(child)) {}

  ChildProcess child_;
  std::string url_;
};

}  // namespace tally::measure
