#include "measure/arrival.h"

#include "measure/load_draw.h"

#include <algorithm>
#include <cmath>

namespace tally::measure {
namespace {

// Marsaglia and Tsang 2000; shapes below 1 by their boost.
double gamma(Draw& draw, double shape) {
  if (shape < 1) return gamma(draw, shape + 1) * std::pow(1 - draw.uniform(), 1 / shape);
  const double d = shape - 1. / 3, c = 1 / std::sqrt(9 * d);
  for (;;) {
    const double x = draw.normal(), v = std::pow(1 + c * x, 3);
    if (v > 0 && std::log(1 - draw.uniform()) < x * x / 2 + d - d * v + d * std::log(v)) return d * v;
  }
}

double gap(const ArrivalSpec& spec, size_t index, Draw& draw) {
  switch (spec.kind) {
    case Arrival::kPoisson:
      return draw.exponential();
    case Arrival::kGamma:
      return gamma(draw, spec.burstiness);
    case Arrival::kBurst:
      return index % spec.burst == 0 ? spec.burst : 0;
    default:
      return 1;
  }
}

}  // namespace

std::vector<double> arrival_times(const ArrivalSpec& spec, size_t count, double rate, uint64_t seed) {
  TALLY_CHECK(rate > 0, "arrivals without a rate");
  Draw draw({seed, 0xa221});
  std::vector<double> times(count);
  double sum = 0;
  for (size_t i = 0; i < count; ++i) times[i] = sum += gap(spec, i, draw);
  const double stretch = sum > 0 ? static_cast<double>(count) / rate / sum : 0;
  for (double& time : times) time *= stretch;
  return times;
}

}  // namespace tally::measure
