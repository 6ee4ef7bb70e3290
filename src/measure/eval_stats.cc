#include "measure/eval_stats.h"

#include "base/check.h"
#include "measure/quantile.h"

#include <algorithm>
#include <boost/math/distributions/binomial.hpp>
#include <numeric>
#include <random>
#include <vector>

namespace tally::measure {

Estimate block_mean(std::span<const double> values, size_t block, uint64_t seed) {
  TALLY_CHECK(!values.empty() && block > 0, "a mean of nothing");
  struct Block {
    double sum = 0, count = 0;
  };
  constexpr size_t kBlocksMin = 8, kResamples = 2000;
  const size_t length = std::min(block, std::max<size_t>(1, values.size() / kBlocksMin));
  std::vector<Block> blocks;
  Block all;
  for (size_t begin = 0; begin < values.size(); begin += length) {
    const auto part = values.subspan(begin, std::min(length, values.size() - begin));
    const Block b{std::accumulate(part.begin(), part.end(), 0.0), static_cast<double>(part.size())};
    blocks.push_back(b);
    all.sum += b.sum, all.count += b.count;
  }
  std::mt19937_64 random(seed);
  std::vector<double> means;
  for (size_t r = 0; r < kResamples; ++r) {
    Block drawn;
    for (size_t i = 0; i < blocks.size(); ++i) {
      const Block& b = blocks[random() % blocks.size()];
      drawn.sum += b.sum, drawn.count += b.count;
    }
    means.push_back(drawn.sum / drawn.count);
  }
  std::sort(means.begin(), means.end());
  return {all.sum / all.count, {quantile(means, 0.025), quantile(means, 0.975)}};
}

double mcnemar_p(size_t only_a, size_t only_b) {
  const size_t n = only_a + only_b;
  if (n == 0) return 1;
  const boost::math::binomial_distribution<double> coin(static_cast<double>(n), 0.5);
  return std::min(1.0, 2 * boost::math::cdf(coin, static_cast<double>(std::min(only_a, only_b))));
}

}  // namespace tally::measure
