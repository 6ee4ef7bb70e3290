#pragma once
// The arms of an ablation at work: a server of its own for every run, one at a time.
//
// One at a time, because two would need the memory of two models, and because a process is a draw: where its
// pages lie moves a figure by percents for as long as it lives. An arm that kept one server would carry one
// such draw through all its rounds; with a server each run, the spread of the pairs holds it.

#include "ablate_plan.h"
#include "loading.h"
#include "measure/ablate.h"
#include "measure/load.h"
#include "measure/server_process.h"

#include <atomic>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace tally::apps {

class AblateSession final : public measure::ArmRunner {
 public:
  // Requires: the ending signals are held. `directory` gets the runs of the arms.
  AblateSession(const Invocation& call, const AblatePlan& plan, std::string directory);
  ~AblateSession();

  // KLD and agreement of every KV type there is among the arms, by `eval kld` as a process of its own.
  // Errors: kUnavailable with what it said last.
  base::Result<void> measure_quality();

  base::Result<measure::Run> run(size_t arm, uint32_t round) override;
  bool is_stopped() const override { return live_.stop; }
  void on_round(uint32_t round) override;

  const std::vector<measure::ArmFacts>& facts() const { return facts_; }
  const std::vector<std::vector<std::string>>& paths() const { return paths_; }  // by arm

 private:
  base::Result<measure::Run> run_against(measure::ServerProcess& server, size_t arm, uint32_t round);
  base::Result<void> learn(const measure::ServerProcess& server, size_t arm);
  void look();
  void say(std::string now);

  const Invocation& call_;
  const AblatePlan& plan_;
  const std::string directory_;
  std::vector<measure::ArmFacts> facts_;
  std::vector<std::vector<std::string>> paths_;
  int64_t begin_us_ = 0;                                // of the first round
  std::optional<std::pair<size_t, uint32_t>> running_;  // arm and round

  // Shared with the thread that draws progress and looks for Ctrl-C.
  measure::LoadLive live_;
  std::atomic<size_t> runs_done_{0};  // without those that are made again
  std::atomic<bool> is_over_{false}, is_loading_{false};
  std::mutex mutex_;
  std::string now_;  // guarded by mutex_
  std::thread onlooker_;
};

}  // namespace tally::apps
