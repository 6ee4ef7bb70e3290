// The ceilings of this machine: bytes read from memory a second by so many threads, operations a second.
#pragma once

#include "base/pool.h"
#include "base/result.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tally::measure {

enum class RoofKind : uint8_t { kRead, kInt8, kF32 };

// A loop that does one thing and nothing else; apps fills a table of them from the kernels. `run` returns
// what depends on all that it did.
struct RoofProbe {
  RoofKind kind{};
  std::string name;  // of the instruction or of the form of reading
  double work = 1;   // operations of a round; kRead: unused
  std::function<uint64_t(const std::byte* data, size_t bytes, uint64_t rounds)> run;
};

// Reads `data` once on all threads of the pool: bytes a second. Requires: `data` as the probe wants it, in
// pieces of 4 MiB.
double read_rate(const RoofProbe& probe, base::ThreadPool& pool, std::span<const std::byte> data);
// Operations a second of all threads of the pool.
double operation_rate(const RoofProbe& probe, base::ThreadPool& pool);

struct Roofs {
  std::map<uint32_t, double> bytes_per_s;        // by threads
  double int8_ops_per_s = 0, f32_ops_per_s = 0;  // of all threads; 0: this tier has no loop for it
  std::string isa;                               // the tier that the operations were measured on
  std::string read_form;                         // the fastest
  bool disturbed = false;                        // others used the CPUs meanwhile

  bool empty() const { return bytes_per_s.empty(); }
  uint32_t threads_max() const { return empty() ? 0 : bytes_per_s.rbegin()->first; }
  // Of so many threads, straight lines between those measured. Requires: not empty.
  double read_at(uint32_t threads) const;
  // Operations a second of so many threads, of the kind that such weights ("F16", "Q4_1") take.
  double operations_at(uint32_t threads, std::string_view weight_type) const;
};

struct RoofRequest {
  std::vector<RoofProbe> probes;  // of one tier: its best loop for each kind of operation, all for reading
  std::string isa;
  uint32_t threads = 1;             // most
  std::span<const std::byte> data;  // touched, much larger than the caches
};
// Measures in at most about a second: reading with 1, 2, 3 ... threads (beyond 8 with powers of two),
// operations with all. Each rate is the largest of three that another one confirms within 5 %, else the
// median.
Roofs measure_roofs(const RoofRequest& request);
double largest_confirmed(std::vector<double> rates);

// {"isa", "bytes_per_s": {"1": rate}, "ops_per_s": {"int8": rate}, "read_form", "disturbed"}
nlohmann::json roofs_json(const Roofs& roofs);
// Of untrusted JSON: what is no rate is left out; empty roofs where nothing is told.
Roofs parse_roofs(const nlohmann::json& value);

// The file that keeps the roofs of this machine below a directory of caches ("": none, nothing is kept).
std::string roofs_file(const std::string& directory);
// Absent: no file, none that can be read, or of another machine.
std::optional<Roofs> kept_roofs(const std::string& file);
// A file that cannot be written costs a measurement each time, nothing else.
void keep_roofs(const std::string& file, const Roofs& roofs);

}  // namespace tally::measure
