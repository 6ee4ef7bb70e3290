#include "serve/rate_window.h"

#include <algorithm>

namespace tally::serve {

bool RateWindow::due(int64_t now_us) const {
  const std::lock_guard lock(mutex_);
  return count_ == 0 || now_us - looks_[(count_ - 1) % looks_.size()].at_us >= kEveryUs;
}

void RateWindow::look(int64_t now_us, uint64_t prompt, uint64_t generated) {
  const std::lock_guard lock(mutex_);
  looks_[count_++ % looks_.size()] = {now_us, prompt, generated};
}

RateWindow::Rates RateWindow::rates(int64_t now_us, uint64_t prompt, uint64_t generated) const {
  const std::lock_guard lock(mutex_);
  for (size_t i = count_ - std::min(count_, looks_.size()); i < count_; ++i) {
    const Look& look = looks_[i % looks_.size()];
    if (now_us - look.at_us > kSpanUs || now_us <= look.at_us) continue;
    const double seconds = static_cast<double>(now_us - look.at_us) * 1e-6;
    return {static_cast<double>(prompt - look.prompt) / seconds,
            static_cast<double>(generated - look.generated) / seconds};
  }
  return {};
}

}  // namespace tally::serve
