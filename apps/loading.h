#pragma once
// What serve and run share: the tokenizer and template of a file, the engine's load request, progress on
// stderr.

#include "base/accounts.h"
#include "base/result.h"
#include "base/settings.h"
#include "engine/memory.h"
#include "sample/constraint.h"
#include "text/chat.h"
#include "text/tokenizer.h"

#include <atomic>
#include <memory>
#include <optional>
#include <string>

namespace tally::apps {

inline constexpr size_t kTemplateBytesMax = size_t{1} << 20;  // of a chat template: longer ones are refused

// The text side of a model file, and what people are shown of it.
struct ModelText {
  text::Tokenizer tokenizer;
  std::optional<text::ChatTemplate> chat_template;
  std::string weight_type;  // of most weights: "Q4_1"
  uint64_t parameters = 0;
};
// template_setting: --chat-template; empty: the file's own template, if own_template. Errors: those of the
// file and of the template, with line and column.
base::Result<ModelText> load_text(const std::string& model_path, const std::string& template_setting,
                                  bool own_template);

// Fills the engine's request from the settings of `serve` or `run`; memory is resolved here. The caller sets
// progress.
engine::LoadRequest load_request(const base::Settings& settings, const std::string& model_path,
                                 const ModelText& text);
// The same but for what the text side tells, for a plan.
engine::LoadRequest load_request(const base::Settings& settings, const std::string& model_path);

// Is there a model that drafts where one is asked for, with the same vocabulary? Errors: kConfig, with the first
// thing that differs; those of its file.
base::Result<void> check_draft_model(const engine::LoadRequest& request, const text::Tokenizer& tokenizer);

// Adds what constraints of answers take to the request of `serve`, or of its plan.
void plan_constraints(engine::LoadRequest& request, const text::Tokenizer& tokenizer);
// What constraints and those who follow them may hold under the cap over all accounts: they come and go, and
// room is kept for them.
sample::ConstraintLimits constraint_limits(const engine::Settings& settings, size_t vocab_size);
// Of the tokenizer, for a model with so many rows.
sample::ConstraintVocabulary constraint_vocabulary(const text::Tokenizer& tokenizer, size_t rows);

// The one argument MODEL. Errors: kUsage.
base::Result<std::string> model_argument(const std::vector<std::string>& arguments, size_t most);

// Threads to start where a flag asks for `wanted` (0: physical cores): at most the CPUs of this process, with
// a warning.
uint32_t usable_threads(uint32_t wanted);

// The file in which start-up tuning is kept for --isa and so many threads; "" where there is no directory for
// it.
std::string tuning_file(const base::Settings& settings, uint32_t threads);

// Where --weights stream keeps its file; "" where there is no directory for it.
std::string weights_directory(const base::Settings& settings);

// Warns where too little of the memory in use lies in huge pages: decode on 4 KiB
// pages runs at a half of its rate.
void warn_of_small_pages(const base::Accounts& accounts);

// Applies --log-level and --log-json.
void configure_log(const base::Settings& settings);

// A bar with rate and ETA on a terminal, a line each 5 s otherwise, nothing when quick.
class Progress {
 public:
  explicit Progress(std::string what);
  ~Progress();
  void update(uint64_t done, uint64_t total);
  // The same for work that is no bytes: what is done now, and the share behind it.
  void update(double share, const std::string& now);

 private:
  bool due(int64_t now_us);
  void draw(double share, const std::string& line);

  std::string what_;
  int64_t begin_us_ = 0, shown_us_ = 0;
  bool terminal_ = false, drawn_ = false;
};

}  // namespace tally::apps
