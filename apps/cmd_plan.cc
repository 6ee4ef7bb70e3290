// tally plan: from the header alone what serving a model takes, and what the budget allows.
#include "cli.h"
#include "loading.h"
#include "plan_page.h"
#include "plan_shape.h"

#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <vector>

namespace tally::apps {
namespace {

using base::ErrorCode;

// Exit code of a plan of the model at `path`, which people know as `name`.
int plan(const Invocation& call, const std::string& path, const std::string& name, bool has_text) {
  std::vector<std::string> notes;
  engine::LoadRequest request = load_request(call.settings, path);
  if (!has_text) {
    notes.push_back("the tokenizer's tables are not counted: a shape has none");
  } else if (const auto text = load_text(path, "", false)) {
    if (const auto drafts = check_draft_model(request, text->tokenizer); !drafts) return fail(drafts.error());
    request.tokenizer_bytes = text->tokenizer.memory_bytes();
    plan_constraints(request, text->tokenizer);
  } else {
    notes.push_back(fmt::format("the tokenizer's tables are not counted: {}", text.error().message));
  }
  const auto outlook = engine::look_ahead(request);
  if (!outlook) return fail(outlook.error());
  const PlanPage page{*outlook, name, std::move(notes)};
  call.settings.on("json") ? write_json(page.results()) : page.print();
  std::fflush(stdout);
  return outlook->refusal ? fail(*outlook->refusal) : 0;
}

}  // namespace

int run_plan(const Invocation& call) {
  const std::string& shape = call.settings.text("shape");
  if (shape.empty()) {
    const auto model = model_argument(call.arguments, 1);
    return model ? plan(call, *model, *model, true) : fail(model.error());
  }
  if (!call.arguments.empty()) {
    return fail({ErrorCode::kUsage, "--shape and MODEL exclude each other: a shape has no file"});
  }
  const auto file = ShapeFile::make(shape);
  return file ? plan(call, file->path(), shape, false) : fail(file.error());
}

}  // namespace tally::apps
