#include "load_onlooker.h"

#include "interrupt.h"
#include "loading.h"

#include <fmt/format.h>

#include <chrono>

namespace tally::apps {

void LoadOnlooker::look() {
  Progress progress("load");
  while (!is_over_) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    if (interrupted()) live_.stop = true;
    const uint32_t total = live_.total, ended = live_.ended;
    if (total == 0) continue;
    progress.update(static_cast<double>(ended) / total,
                    fmt::format("{} of {} ended, {} running, {} failed, {} events", ended, total,
                                live_.running.load(), live_.failed.load(), live_.events.load()));
  }
}

}  // namespace tally::apps
