#pragma once
// The roofs of this machine, measured on all threads of a pool: bytes read from memory a second, operations a
// second of each kind and tier.

#include "base/pool.h"
#include "kernels/roof.h"

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

namespace tally::apps {

class Roofs {
 public:
  // Measures, in about a second. Requires: `data` is 64-byte aligned, touched, much larger than the caches
  // and followed by kernels::kTailPadding readable bytes; it outlives this object.
  Roofs(base::ThreadPool& pool, const std::byte* data, size_t bytes);

  // Measures the read bandwidth once more: to be called between other measurements, as it drifts.
  void probe();
  size_t threads() const { return pool_.threads(); }
  // Bytes a second: the median of the probes.
  double read() const;
  // Operations a second of the best instruction that a tier has; 0: no loop for it (the scalar tier).
  double operations(kernels::RoofKind kind, kernels::Isa isa) const;
  // The share of the roof that something reached in `seconds`: the time that the larger of its two bounds
  // asks for, over the time it took. `memory`: which bound that is.
  struct Share {
    double share = 0;
    bool memory = true;
  };
  Share share(double bytes, double operations, double operations_roof, double seconds) const;

  // roof_bytes_per_s {threads: rate} and roof_ops_per_s {instruction: rate} into a machine_json.
  void add_to(nlohmann::json& machine) const;
  // Lines for people.
  std::string text() const;

 private:
  double time_read(const kernels::RoofLoop& loop);
  double time_operations(const kernels::RoofLoop& loop);

  base::ThreadPool& pool_;
  const std::byte* data_;
  size_t bytes_;
  const kernels::RoofLoop* read_loop_ = nullptr;  // the fastest form
  std::vector<double> probes_;
  std::vector<std::pair<const kernels::RoofLoop*, double>> operations_;
};

}  // namespace tally::apps
